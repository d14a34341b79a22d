//! Connections to apiservers: one group for the local apiserver and one for peers, each with and without our
//! certificate.
//!
//! There are two kinds of connection, because kube-apiserver authenticates the connection before the token: with the
//! proxy client certificate it accepts the named user and answers anonymous requests with 401. Without the certificate
//! tokens and anonymous requests work as they do without a proxy. Each thread has its own pools. Long-running requests
//! have their own connections: the unread data of a slow watcher must not use up the window of a shared connection.
//!
//! Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. So callers
//! without our certificate share connections to such a server only after an apiserver has accepted their token
//! ([`super::tokens`]). Until then they use the connections of their own client's connection ([`crate::relay::client`]),
//! and cannot end other requests. Who has a certificate and is named as if unauthenticated gets a connection for each
//! request.
//!
//! When certificate files change, new groups are made ([`Credentials`]). Running requests end on the old ones;
//! long-running requests end one after the other ([`crate::relay::watch`]).

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection::{LONG_RUNNING_WINDOW, STREAM_WINDOW};
use super::frozen::{ReadBudget, Ticker};
use super::pool::{ConnectionPool, Protocols};
use super::stream::UpstreamSession;
use crate::config::Config;
use crate::net::{Destination, rare};
use crate::tls::credentials::{Credentials, Trust};

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

/// The pool that a request uses.
#[derive(Clone)]
pub enum PoolChoice {
    /// Connections with our certificate.
    Certificate,
    /// Connections without our certificate, for callers that do not get a connection closed: their token was accepted,
    /// or the apiserver is older than 1.29.
    Shared,
    /// Connections of its client's connection.
    Unverified(Arc<ConnectionPool>),
}

/// Which connection of the pool a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionChoice {
    /// Any connection with room.
    Any,
    /// A new connection that no other request uses.
    New,
    /// A new HTTP/1.1 connection, which limits only bytes: an HTTP/1.1 header may be too large for HTTP/2.
    NewHttp1,
}

/// Upstream connections for callers on one connection that no apiserver has authenticated yet.
#[derive(Clone)]
pub struct UnverifiedPools {
    pub credentials: Arc<Credentials>,
    pub local: Arc<ConnectionPool>,
    /// To peers and native apiservers.
    pub peers: Arc<ConnectionPool>,
}

/// Servers with the same CA and expected name.
pub struct UpstreamGroup {
    name: Arc<str>,
    trust: Arc<Trust>,
    with_certificate: Pools,
    without: Pools,
    protocols_without: Protocols,
}

/// Short and long requests never share a connection.
struct Pools {
    short: ConnectionPool,
    long: ConnectionPool,
}

/// All upstream connections of one thread with the same credentials.
pub struct Upstreams {
    credentials: Arc<Credentials>,
    /// The local apiserver.
    pub local: UpstreamGroup,
    /// Other proxies, and native kube-apiservers.
    pub peers: UpstreamGroup,
    /// Reads that may leave a frozen server.
    pub read_budget: ReadBudget,
    /// For requests that wait.
    pub ticker: Arc<Ticker>,
}

impl Upstreams {
    pub fn new(config: &Config, credentials: Arc<Credentials>) -> Self {
        Self {
            local: UpstreamGroup::new(&config.api_server.server_name, &credentials.local),
            peers: UpstreamGroup::new(&config.peer.server_name, &credentials.peers),
            credentials,
            read_budget: ReadBudget::default(),
            ticker: Arc::default(),
        }
    }

    /// Whether these credentials are used.
    pub fn are_of(&self, credentials: &Arc<Credentials>) -> bool {
        Arc::ptr_eq(&self.credentials, credentials)
    }

    /// Pools for unverified callers of one client's connection.
    pub fn unverified_pools(&self) -> UnverifiedPools {
        let pool = |group: &UpstreamGroup| {
            ConnectionPool::new(
                &group.protocols_without,
                UNVERIFIED_STREAMS,
                LONG_RUNNING_WINDOW,
            )
        };
        UnverifiedPools {
            credentials: self.credentials.clone(),
            local: Arc::new(pool(&self.local)),
            peers: Arc::new(pool(&self.peers)),
        }
    }
}

impl UpstreamGroup {
    fn new(name: &str, trust: &Arc<Trust>) -> Self {
        let pools = |protocols: &Protocols| Pools {
            short: ConnectionPool::new(protocols, STREAMS as usize, STREAM_WINDOW),
            long: ConnectionPool::new(protocols, STREAMS as usize, LONG_RUNNING_WINDOW),
        };
        let protocols_without = Protocols::new(&trust.without);
        Self {
            name: name.into(),
            trust: trust.clone(),
            with_certificate: pools(&Protocols::new(&trust.with_certificate)),
            without: pools(&protocols_without),
            protocols_without,
        }
    }

    /// The trust and certificate of its connections.
    pub fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// The destination at an address.
    pub fn at(&self, address: SocketAddr) -> Destination {
        Destination {
            address,
            name: self.name.clone(),
        }
    }

    /// Opens a session with `to`. Returns whether its connection was used before.
    pub async fn session(
        &self,
        to: &Destination,
        kind: RequestKind,
        pool_choice: &PoolChoice,
        connection_choice: ConnectionChoice,
    ) -> pingora_core::Result<(UpstreamSession, bool)> {
        let pool = self.pool(kind, pool_choice);
        match (kind, connection_choice) {
            // Boxed, because opening a connection takes more memory than all the rest of a request.
            (RequestKind::Upgrade, _) | (_, ConnectionChoice::NewHttp1) => {
                Ok((rare(|| pool.session_of_http1(to)).await?, false))
            }
            (_, ConnectionChoice::New) => Ok((rare(|| pool.session_alone(to)).await?, false)),
            (_, ConnectionChoice::Any) => pool.session(to).await,
        }
    }

    /// Returns the connection of a finished session to its pool.
    pub async fn release(
        &self,
        session: UpstreamSession,
        to: &Destination,
        kind: RequestKind,
        pool_choice: &PoolChoice,
    ) {
        // An HTTP/2 stream ends with its session.
        if let UpstreamSession::H1(session) = session {
            let pool = self.pool(kind, pool_choice);
            rare(|| pool.release(*session, to)).await;
        }
    }

    fn pool<'s>(&'s self, kind: RequestKind, pool_choice: &'s PoolChoice) -> &'s ConnectionPool {
        let pools = match pool_choice {
            PoolChoice::Certificate => &self.with_certificate,
            PoolChoice::Shared => &self.without,
            PoolChoice::Unverified(own) => return own,
        };
        match kind {
            RequestKind::Short => &pools.short,
            RequestKind::Long | RequestKind::Upgrade => &pools.long,
        }
    }
}
