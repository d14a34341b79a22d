//! The local apiserver: whether it is initialized, and what it serves.

pub mod discovery;
pub mod groups;
mod own;
pub mod probe;
pub mod process;
pub mod reader;
pub mod requestheader;
pub mod state;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use self::discovery::LocalView;
use self::reader::Reader;
use self::requestheader::names::NamesInEtcd;
use self::state::LocalState;
use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::tls::credentials::Current;

/// Timeout of the proxy's own requests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes clients of the local apiserver, as `apiServer.internalUser`.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    let user = &config.api_server.internal_user;
    let identity = client::identity(names, user, &["system:masters"])?;
    let name = &config.api_server.server_name;
    ClientMaker::new(name, credentials, |of| &of.local, identity, TIMEOUT)
}

/// Spawns the probe, discovery and the check of the request header configuration. Returns what discovery reads. `custom`:
/// CRDs and aggregated APIs; `None` until etcd was read. `header_names`: by which apiservers recognise users.
pub fn start(
    config: &Config,
    maker: &Arc<ClientMaker>,
    state: &Arc<LocalState>,
    custom: watch::Receiver<Option<Arc<Custom>>>,
    header_names: NamesInEtcd,
    control: &mut JoinSet<()>,
) -> watch::Receiver<LocalView> {
    let server = &config.api_server;
    let client = || maker.client(server.address);
    let (view_sender, view) = watch::channel(LocalView::default());
    control.spawn(probe::run(client(), state.clone(), server.probe_interval));
    let mut reader = Reader::new(client());
    reader.former = Some(state.former.clone());
    control.spawn(discovery::run(
        reader,
        state.clone(),
        server.discovery_interval,
        custom,
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        maker.credentials.clone(),
        header_names,
        state.clone(),
    ));
    view
}
