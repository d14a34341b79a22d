//! Puts together what requests are served by, and starts what asks failed peers again.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::MakerError;
use crate::cluster::catalog::{OwnServer, Published};
use crate::config::Config;
use crate::config::settings::SharedSettings;
use crate::discovery::peer_discovery::SharedPeerDiscovery;
use crate::local::state::LocalState;
use crate::otlp::Tracer;
use crate::publish::announcement::Announcement;
use crate::relay::client::unread::UnreadBudget;
use crate::relay::documents::Cache;
use crate::relay::inspect::denials::Denials;
use crate::relay::observe::{Metrics, RecentEvents};
use crate::relay::shared::{Callers, Limits, ServerStates, Shared};
use crate::relay::shutdown::{Shutdown, ShutdownPhase};
use crate::relay::upstream::frozen::{self, FrozenServers, Questions};
use crate::relay::upstream::health;
use crate::request::caller::Authenticator;
use crate::request::headers::PrivilegedHeaders;
use crate::tls::credentials::Current;
use crate::tls::verify::ClientCas;
use crate::watches::WatchState;

/// What requests are served by and others write.
pub struct RelayInputs {
    pub settings: Arc<SharedSettings>,
    pub own: OwnServer,
    pub cas: ClientCas,
    pub credentials: Current,
    pub published: Published,
    pub peer_discovery: Arc<SharedPeerDiscovery>,
    pub local: Arc<LocalState>,
    pub announcement: Arc<Announcement>,
    pub watches: WatchState,
    pub metrics: Metrics,
    pub tracer: Option<Tracer>,
    pub phase: watch::Receiver<ShutdownPhase>,
}

/// Spawns the tasks that ask failed peers again, and servers that requests wait for. Returns what all serving threads share.
pub fn start(
    config: Config,
    inputs: RelayInputs,
    control: &mut JoinSet<()>,
) -> Result<Arc<Shared>, MakerError> {
    let (frozen, to_ask) = FrozenServers::new();
    let unread = UnreadBudget::new(inputs.metrics.unread.clone());
    let shared = Arc::new(Shared {
        settings: inputs.settings,
        own: inputs.own,
        callers: Callers {
            judge: ArcSwap::from_pointee(Authenticator {
                generation: 0,
                cas: inputs.cas,
                allowed_names: config.serving.request_header_allowed_names.clone(),
            }),
            privileged: PrivilegedHeaders::new(&config.serving.request_headers),
            revalidations: watch::Sender::new(()),
        },
        credentials: inputs.credentials,
        published: inputs.published,
        peer_discovery: inputs.peer_discovery,
        local: inputs.local,
        announcement: inputs.announcement,
        servers: ServerStates {
            health: Arc::default(),
            frozen: Arc::new(frozen),
            denials: Denials::default(),
        },
        merge_cache: Cache::default(),
        watches: inputs.watches,
        limits: Limits::new(unread),
        recent: RecentEvents::default(),
        metrics: inputs.metrics,
        tracer: inputs.tracer,
        shutdown: Shutdown::new(inputs.phase, config.shutdown.drain),
        control_panicked: Arc::default(),
        config,
    });
    let peers = Arc::new(health::maker(&shared.config, shared.credentials.clone())?);
    let questions = Questions {
        config: shared.config.clone(),
        credentials: shared.credentials.clone(),
        frozen: shared.servers.frozen.clone(),
        local: shared.local.clone(),
        health: shared.servers.health.clone(),
        snapshot: shared.published.snapshot.clone(),
    };
    control.spawn(frozen::run(questions, to_ask));
    control.spawn(health::run(
        peers,
        shared.servers.health.clone(),
        shared.published.snapshot.clone(),
    ));
    Ok(shared)
}
