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

/// What the tasks read and write.
pub struct LocalInputs {
    pub maker: Arc<ClientMaker>,
    pub state: Arc<LocalState>,
    /// CRDs and aggregated APIs; `None` until etcd was read.
    pub custom: watch::Receiver<Option<Arc<Custom>>>,
    /// The header names by which apiservers recognise users.
    pub header_names: NamesInEtcd,
}

/// Spawns the probe, discovery and the check of the request header configuration. Returns what discovery reads.
pub fn start(
    config: &Config,
    inputs: LocalInputs,
    control: &mut JoinSet<()>,
) -> watch::Receiver<LocalView> {
    let server = &config.api_server;
    let client = || inputs.maker.client(server.address);
    let state = inputs.state;
    let (view_sender, view) = watch::channel(LocalView::default());
    control.spawn(probe::run(client(), state.clone(), server.probe_interval));
    let mut reader = Reader::new(client());
    reader.former = Some(state.former.clone());
    control.spawn(discovery::run(
        reader,
        state.clone(),
        server.discovery_interval,
        inputs.custom,
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        inputs.maker.credentials.clone(),
        inputs.header_names,
        state,
    ));
    view
}
