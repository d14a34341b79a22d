//! Puts together what requests are served by, and starts what asks failed peers again.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, watch};
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
use crate::relay::shared::{EXPIRED_WATCHES, NOT_FOUND_RETRIES, Shared, ShutdownPhase};
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
    let shared = Arc::new(Shared {
        settings: inputs.settings,
        own: inputs.own,
        judge: ArcSwap::from_pointee(Authenticator {
            generation: 0,
            cas: inputs.cas,
            allowed_names: config.serving.request_header_allowed_names.clone(),
        }),
        credentials: inputs.credentials,
        revalidations: watch::Sender::new(()),
        privileged: PrivilegedHeaders::new(&config.serving.request_headers),
        published: inputs.published,
        peer_discovery: inputs.peer_discovery,
        local: inputs.local,
        announcement: inputs.announcement,
        health: Arc::default(),
        frozen: Arc::new(frozen),
        merge_cache: Cache::default(),
        watches: inputs.watches,
        control_panicked: Arc::default(),
        recent: RecentEvents::default(),
        unread: Arc::new(UnreadBudget::new(inputs.metrics.unread.clone())),
        denials: Denials::default(),
        not_found_retries: Semaphore::new(NOT_FOUND_RETRIES),
        expired_watches: Arc::new(Semaphore::new(EXPIRED_WATCHES)),
        metrics: inputs.metrics,
        tracer: inputs.tracer,
        phase: inputs.phase,
        drain_begin: OnceLock::new(),
        config,
    });
    let peers = Arc::new(health::maker(&shared.config, shared.credentials.clone())?);
    let questions = Questions {
        config: shared.config.clone(),
        credentials: shared.credentials.clone(),
        frozen: shared.frozen.clone(),
        local: shared.local.clone(),
        health: shared.health.clone(),
        snapshot: shared.published.snapshot.clone(),
    };
    control.spawn(frozen::run(questions, to_ask));
    control.spawn(health::run(
        peers,
        shared.health.clone(),
        shared.published.snapshot.clone(),
    ));
    Ok(shared)
}
