//! Connections to apiservers, and what is known of the servers behind them: which have failed ([`health`]), and from which
//! nothing comes ([`frozen`]). The plan asks which servers to avoid; an exchange takes a session and gives it back.
//!
//! There are two kinds of connection, because kube-apiserver authenticates the connection before the token: with the
//! proxy client certificate it accepts the named user and answers anonymous requests with 401. Without the certificate
//! tokens and anonymous requests work as they do without a proxy. Each thread has its own pools. Long-running requests
//! have their own connections: the unread data of a slow watcher must not use up the window of a shared connection.
//!
//! Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. So callers
//! without our certificate share connections to such a server only after an apiserver has accepted their token
//! ([`Tokens`]). Until then they use the connections of their own client's connection ([`crate::relay::client`]),
//! and cannot end other requests. Who has a certificate and is named as if unauthenticated gets a connection for each
//! request.
//!
//! When certificate files change, new pools are made ([`Credentials`]). Running requests end on the old ones;
//! long-running requests end one after the other ([`crate::relay::watch`]).

use std::sync::Arc;

use crate::config::Config;
use crate::tls::credentials::Credentials;

mod connection;
pub mod frozen;
pub mod health;
mod pool;
mod stream;
mod tokens;

use self::frozen::{ReadBudget, Ticker};

pub use self::connection::{LONG_RUNNING_WINDOW, STREAM_WINDOW};
pub use self::pool::{ConnectionChoice, ConnectionPool, Upstream};
pub use self::stream::{BodyPrefix, UpstreamSession, UpstreamStream};
pub use self::tokens::{Token, Tokens};

/// Most streams on one connection. A server may allow fewer.
pub const STREAMS: u32 = 128;
const UNVERIFIED_STREAMS: usize = 64;

/// How a request uses its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Shares a connection with other short requests.
    Short,
    /// Watches, logs and the like: connections of their own.
    Long,
    /// `exec` and the like: one HTTP/1.1 connection for itself.
    Upgrade,
}

/// All upstream connections of one thread with the same credentials.
pub struct Upstreams {
    credentials: Arc<Credentials>,
    local: Pools,
    /// Other proxies, and native kube-apiservers.
    peers: Pools,
    /// Reads that may leave a frozen server.
    pub read_budget: ReadBudget,
    /// For requests that wait.
    pub ticker: Arc<Ticker>,
}

/// Connections to servers of one kind, for short and for long-running requests: these never share one.
struct Pools {
    with_certificate: [Arc<ConnectionPool>; 2],
    without: [Arc<ConnectionPool>; 2],
}

impl Upstreams {
    pub fn new(config: &Config, credentials: Arc<Credentials>) -> Self {
        let pools = |name: &str, trust| {
            let pools = |presents_certificate| {
                let to = Upstream::new(name, trust, presents_certificate);
                let pool = |window| ConnectionPool::new(&to, STREAMS as usize, window);
                [STREAM_WINDOW, LONG_RUNNING_WINDOW].map(|window| Arc::new(pool(window)))
            };
            Pools {
                with_certificate: pools(true),
                without: pools(false),
            }
        };
        Self {
            local: pools(&config.api_server.server_name, &credentials.local),
            peers: pools(&config.peer.server_name, &credentials.peers),
            credentials,
            read_budget: ReadBudget::default(),
            ticker: Arc::default(),
        }
    }

    /// Whether these credentials are used.
    pub fn are_of(&self, credentials: &Arc<Credentials>) -> bool {
        Arc::ptr_eq(&self.credentials, credentials)
    }

    /// Connections to the local apiserver or other servers, with or without our certificate, for requests of a kind.
    pub fn pool(&self, local: bool, certificate: bool, kind: RequestKind) -> &Arc<ConnectionPool> {
        let pools = if local { &self.local } else { &self.peers };
        let [short, long] = match certificate {
            true => &pools.with_certificate,
            false => &pools.without,
        };
        match kind {
            RequestKind::Short => short,
            RequestKind::Long | RequestKind::Upgrade => long,
        }
    }
}

/// A pool for unverified callers of one client's connection, to the servers of `shared`.
pub fn unverified(shared: &ConnectionPool) -> ConnectionPool {
    ConnectionPool::new(&shared.to, UNVERIFIED_STREAMS, LONG_RUNNING_WINDOW)
}
