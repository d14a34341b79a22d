//! State that all serving threads share. Requests read it, other tasks write it. [`start`] puts it together, and starts what
//! asks failed peers again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue};
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
use crate::relay::answer::Refusal;
use crate::relay::client::unread::UnreadBudget;
use crate::relay::documents::Cache;
use crate::relay::inspect::denials::Denials;
use crate::relay::observe::Metrics;
use crate::relay::shutdown::{Shutdown, ShutdownPhase};
use crate::relay::upstream::frozen::{self, FrozenServers, Questions};
use crate::relay::upstream::health;
use crate::relay::upstream::health::Health;
use crate::request::caller::{Authenticator, Caller};
use crate::request::headers::PrivilegedHeaders;
use crate::tls::credentials::Current;
use crate::tls::verify::ClientCas;
use crate::watches::WatchState;

pub struct Shared {
    /// As at the start: what is read again while the proxy runs is in `settings`.
    pub config: Config,
    pub settings: Arc<SharedSettings>,
    pub own: OwnServer,
    pub callers: Callers,
    /// Credentials of connections to apiservers.
    pub credentials: Current,
    /// The state of the cluster in etcd.
    pub published: Published,
    /// What peers' discovery lists and the local apiserver's does not.
    pub peer_discovery: Arc<SharedPeerDiscovery>,
    /// The local apiserver.
    pub local: Arc<LocalState>,
    pub announcement: Arc<Announcement>,
    pub servers: ServerStates,
    /// Merged discovery documents.
    pub merge_cache: Cache,
    /// What etcd says, for the final bookmarks of watches.
    pub watches: WatchState,
    pub limits: Limits,
    pub metrics: Metrics,
    /// Set with `tracing.endpoint`.
    pub tracer: Option<Tracer>,
    pub shutdown: Shutdown,
    /// A control task has panicked.
    pub control_panicked: Arc<AtomicBool>,
}

/// Who sends requests.
pub struct Callers {
    /// Identifies callers by their client certificates.
    pub judge: ArcSwap<Authenticator>,
    /// Headers that only peers may send.
    pub privileged: PrivilegedHeaders,
    /// Notified when the authenticator or the credentials were replaced, and when the shutdown has begun.
    pub revalidations: watch::Sender<()>,
}

impl Callers {
    /// The user that the proxy vouches for. Only an apiserver knows the user of a token.
    pub fn user<'h>(&self, caller: &'h Caller, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        match caller {
            Caller::User(user) => Some(&user.user),
            Caller::Peer => self.privileged.named_user(headers),
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => None,
        }
    }
}

/// What requests have found of servers.
pub struct ServerStates {
    pub health: Arc<Health>,
    /// Servers from which nothing comes.
    pub frozen: Arc<FrozenServers>,
    /// What servers deny although they list it.
    pub denials: Denials,
}

/// What requests share and must not use up.
pub struct Limits {
    /// The budget for answers that clients do not read.
    pub unread: Arc<UnreadBudget>,
    /// For requests that are sent to another server because the local apiserver does not know a custom resource.
    pub not_found_retries: Semaphore,
    /// For watches that ask other servers because one has answered 410.
    pub expired_watches: Arc<Semaphore>,
}

/// At most so many requests at a time ask other servers whether they know a custom resource.
const NOT_FOUND_RETRIES: usize = 64;

/// At most so many watches at a time ask other servers after a 410.
const EXPIRED_WATCHES: usize = 64;

impl Limits {
    pub fn new(unread: UnreadBudget) -> Self {
        Self {
            unread: Arc::new(unread),
            not_found_retries: Semaphore::new(NOT_FOUND_RETRIES),
            expired_watches: Arc::new(Semaphore::new(EXPIRED_WATCHES)),
        }
    }
}

impl Shared {
    /// Whether load balancers should send requests to this proxy.
    pub fn is_ready(&self) -> bool {
        self.local.is_ready()
            && self.local.trusts_proxy()
            && self.announcement.is_made()
            && !self.shutdown.is_leaving()
    }

    /// Whether requests go to the local apiserver first. One that has lost its etcd comes after peers that say that they
    /// are ready; the proxy that a request was rerouted by knows whether there are others.
    pub fn local_serves(&self, rerouted: bool) -> bool {
        let lacks_etcd = || self.local.lacks_etcd() && !rerouted && self.has_ready_target();
        self.local.serves() && !lacks_etcd()
    }

    /// Whether a peer's apiserver is ready.
    pub fn has_ready_target(&self) -> bool {
        self.published.snapshot.load().has_ready_target()
    }

    /// Whether the snapshot is too old to prove that no server serves a resource.
    pub fn is_stale(&self) -> bool {
        self.published.freshness.age() > 2 * self.config.peer.lease_ttl
    }

    /// Why a peer's request is not served by the local apiserver.
    pub fn local_refusal(&self) -> Refusal {
        if self.local.turns_away() {
            Refusal::Terminating
        } else if self.local.is_frozen() {
            Refusal::PeerFrozen
        } else {
            Refusal::PeerNotInitialized
        }
    }

    /// Our server ID for peers that may not know that a proxy answers; empty while there is none.
    pub fn server_id_header(&self) -> HeaderValue {
        let id = self.own.id.borrow();
        let id = id.as_deref().map(HeaderValue::from_str);
        id.and_then(Result::ok)
            .unwrap_or(HeaderValue::from_static(""))
    }
}

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
