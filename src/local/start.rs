//! Starts what watches the local apiserver.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::discovery::{self, EtcdResources, LocalView};
use super::requestheader::names::NamesInEtcd;
use super::state::LocalState;
use super::{probe, requestheader};
use crate::client::ClientMaker;
use crate::config::Config;
use crate::tls::credentials::Current;

/// What etcd says, while it is known.
pub struct EtcdFacts {
    pub resources: EtcdResources,
    /// The header names by which apiservers recognise users.
    pub header_names: NamesInEtcd,
}

/// Spawns the probe, discovery and the check of the request header configuration. Returns what discovery reads.
/// `etcd`: what the cluster's etcd says.
pub fn start(
    config: &Config,
    credentials: &Current,
    maker: &Arc<ClientMaker>,
    state: &Arc<LocalState>,
    etcd: EtcdFacts,
    control: &mut JoinSet<()>,
) -> watch::Receiver<LocalView> {
    let address = config.api_server.address;
    let (view_sender, view) = watch::channel(LocalView::default());
    control.spawn(probe::run(
        maker.client(address),
        state.clone(),
        config.api_server.probe_interval,
    ));
    control.spawn(discovery::run(
        maker.client(address),
        state.clone(),
        config.api_server.discovery_interval,
        etcd.resources,
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
