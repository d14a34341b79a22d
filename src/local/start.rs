//! Starts what watches the local apiserver.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::discovery::{self, LocalView};
use super::state::LocalState;
use super::{probe, requestheader};
use crate::client::ClientMaker;
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::tls::credentials::Current;

/// Spawns the probe, discovery and the check of the request header configuration. Returns what discovery reads.
/// `custom`: see [`discovery::run`].
pub fn start(
    config: &Config,
    credentials: &Current,
    maker: &Arc<ClientMaker>,
    state: &Arc<LocalState>,
    custom: watch::Receiver<Option<Arc<Custom>>>,
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
        custom,
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        credentials.clone(),
        state.clone(),
    ));
    view
}
