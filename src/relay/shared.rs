//! State that all serving threads share. Requests read it, other tasks write it. `app` puts it together.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::cluster::catalog::{OwnServer, Published};
use crate::config::settings::SharedSettings;
use crate::config::{Config, ServingConfig};
use crate::discovery::peer_discovery::SharedPeerDiscovery;
use crate::local::state::LocalState;
use crate::net::lock;
use crate::otlp::Tracer;
use crate::publish::announcement::Announcement;
use crate::relay::answer::Refusal;
use crate::relay::client::unread::{UnreadBudget, UnreadMetrics};
use crate::relay::documents::Cache;
use crate::relay::inspect::denials::Denials;
use crate::relay::observe::Metrics;
use crate::relay::upstream::health::{FrozenServers, Health};
use crate::request::caller::Authenticator;
use crate::request::headers::PrivilegedHeaders;
use crate::shutdown::Shutdown;
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
    pub authenticator: ArcSwap<Authenticator>,
    /// Headers that only peers may send.
    pub privileged: PrivilegedHeaders,
    /// Notified when the authenticator or the credentials were replaced, when the shutdown has begun, and when the state of the
    /// local apiserver has changed.
    pub revalidations: watch::Sender<()>,
}

impl Callers {
    pub fn new(config: &ServingConfig, cas: ClientCas) -> Self {
        Self {
            authenticator: ArcSwap::from_pointee(Authenticator {
                generation: 0,
                cas,
                allowed_names: config.request_header_allowed_names.clone(),
            }),
            privileged: PrivilegedHeaders::new(&config.request_headers),
            revalidations: watch::Sender::new(()),
        }
    }
}

/// What requests have found of servers.
#[derive(Default)]
pub struct ServerStates {
    pub health: Health,
    /// Servers from which nothing comes.
    pub frozen: FrozenServers,
    /// What servers deny although they list it.
    pub denials: Denials,
}

/// What requests share and must not use up.
pub struct Limits {
    /// The budget for answers that clients do not read.
    pub unread: Arc<UnreadBudget>,
    /// For requests that are sent to another server because the local apiserver does not know a custom resource.
    pub not_found: Semaphore,
    /// For requests that are sent to a newer server because an older one does not understand them.
    pub not_understood: Semaphore,
    /// For watches that ask other servers because one has answered 410.
    pub expired_watches: Arc<Semaphore>,
    /// For watches that go on at other servers because theirs has stopped.
    pub hand_overs: PermitsByServer,
}

/// At most so many requests at a time ask other servers whether they know a custom resource, or a newer server.
const RETRIES: usize = 64;

/// At most so many watches at a time ask other servers after a 410.
const EXPIRED_WATCHES: usize = 64;

/// At most so many watches at a time are opened anew at another server: tens of thousands may have to.
const HAND_OVERS: usize = 64;

/// For so long others are asked first, after one took too long to answer.
const SLOW: Duration = Duration::from_secs(5);

/// Permits for each server: who waits for a slow one is in nobody's way.
#[derive(Default)]
pub struct PermitsByServer {
    permits: Mutex<HashMap<SocketAddr, Arc<Semaphore>>>,
    /// When these took too long to answer last.
    slow: Mutex<HashMap<SocketAddr, Instant>>,
}

impl PermitsByServer {
    pub fn of(&self, server: SocketAddr) -> Arc<Semaphore> {
        let mut permits = lock(&self.permits);
        // Those of other servers that nobody asks are not kept.
        permits.retain(|known, permits| *known == server || Arc::strong_count(permits) > 1);
        let new = || Arc::new(Semaphore::new(HAND_OVERS));
        permits.entry(server).or_insert_with(new).clone()
    }

    /// Who waits for one gets none.
    pub fn close(&self) {
        lock(&self.permits).values().for_each(|it| it.close());
    }

    /// The server took too long to answer.
    pub fn is_slow(&self, server: SocketAddr) {
        lock(&self.slow).insert(server, Instant::now());
    }

    /// The servers that others are asked before.
    pub fn slow(&self, now: Instant) -> Vec<SocketAddr> {
        let slow = lock(&self.slow);
        let slow = slow.iter().filter(|(_, at)| **at + SLOW > now);
        slow.map(|(server, _)| *server).collect()
    }
}

impl Limits {
    pub fn new(unread: UnreadMetrics) -> Self {
        Self {
            unread: Arc::new(UnreadBudget::new(unread)),
            not_found: Semaphore::new(RETRIES),
            not_understood: Semaphore::new(RETRIES),
            expired_watches: Arc::new(Semaphore::new(EXPIRED_WATCHES)),
            hand_overs: PermitsByServer::default(),
        }
    }
}

impl Shared {
    /// Whether load balancers should send requests to this proxy.
    pub fn is_ready(&self) -> bool {
        self.local.is_ready()
            && self.local.trusts_proxy()
            && self.announcement.is_made()
            && self.shutdown.missing().is_none()
    }

    /// Whether the snapshot is too old to prove that no server serves a resource.
    pub fn is_stale(&self) -> bool {
        self.published.etcd.load().heard.elapsed() > 2 * self.config.peer.lease_ttl
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
