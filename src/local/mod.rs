//! The local apiserver: whether it is initialized, and what it serves.

mod client;
pub mod discovery;
pub mod groups;
mod own;
pub mod probe;
pub mod process;
pub mod reader;
pub mod requestheader;
pub mod state;

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::client::maker;
use self::discovery::LocalView;
use self::reader::{FormerRecord, Reader};
use self::requestheader::names::NamesInEtcd;
use self::state::LocalState;
use crate::client::ClientMaker;
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::tls::credentials::Current;

/// What etcd says, while it is known.
pub struct EtcdFacts {
    /// CRDs and aggregated APIs; `None` until etcd was read.
    pub custom: watch::Receiver<Option<Arc<Custom>>>,
    /// What the proxy before this one has written. Set before `custom`.
    pub former: Arc<OnceLock<FormerRecord>>,
    /// The header names by which apiservers recognise users.
    pub header_names: NamesInEtcd,
}

/// Spawns the probe, discovery and the check of the request header configuration. Returns what discovery reads.
pub fn start(
    config: &Config,
    credentials: &Current,
    maker: &Arc<ClientMaker>,
    state: &Arc<LocalState>,
    etcd: EtcdFacts,
    control: &mut JoinSet<()>,
) -> watch::Receiver<LocalView> {
    let server = &config.api_server;
    let client = || maker.client(server.address);
    let (view_sender, view) = watch::channel(LocalView::default());
    control.spawn(probe::run(client(), state.clone(), server.probe_interval));
    control.spawn(discovery::run(
        Reader::after(client(), etcd.former),
        state.clone(),
        server.discovery_interval,
        etcd.custom,
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        credentials.clone(),
        etcd.header_names,
        state.clone(),
    ));
    view
}
