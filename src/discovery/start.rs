//! Starts what reads peers' discovery.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::clients::Clients;
use super::metrics::PeerDiscoveryMetrics;
use super::peer_discovery::SharedPeerDiscovery;
use super::reader::PeerDiscoveryReader;
use crate::client::MakerError;
use crate::cluster::catalog::Published;
use crate::config::Config;
use crate::config::settings::SharedSettings;
use crate::local::discovery::LocalView;
use crate::tls::credentials::Current;

/// What the reader of peers' discovery reads and writes.
pub struct DiscoveryInputs {
    pub settings: Arc<SharedSettings>,
    pub credentials: Current,
    pub published: Published,
    /// The local apiserver's discovery.
    pub view: watch::Receiver<LocalView>,
    pub metrics: PeerDiscoveryMetrics,
}

/// Spawns the reader of peers' discovery. Returns where it publishes.
pub fn start(
    config: &Config,
    inputs: DiscoveryInputs,
    control: &mut JoinSet<()>,
) -> Result<Arc<SharedPeerDiscovery>, MakerError> {
    let peer_discovery: Arc<SharedPeerDiscovery> = Arc::default();
    let reader = PeerDiscoveryReader {
        settings: inputs.settings,
        published: inputs.published,
        view: inputs.view,
        peer_discovery: peer_discovery.clone(),
        clients: Clients::new(config, &inputs.credentials)?,
        discovery_interval: config.api_server.discovery_interval,
        metrics: inputs.metrics,
        own: None,
    };
    control.spawn(reader.run());
    Ok(peer_discovery)
}
