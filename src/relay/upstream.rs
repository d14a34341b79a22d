//! Connections to apiservers: one set for the local one, one for peers, each with and without our certificate.
//!
//! Two kinds of connection, because kube-apiserver judges the connection before the token: with the proxy client
//! certificate a named user is believed and an anonymous request is a 401; without it tokens and anonymous requests
//! mean what they mean without a proxy. Pools belong to one thread each. Long-running requests have connections of
//! their own: what a slow watcher leaves unread must not use up the window of everybody else's connection.
//!
//! When certificate files change there are new sets ([`Credentials`]); what is under way ends on the old ones, and
//! long-running requests in their turn ([`super::standing`]).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use pingora_core::protocols::http::client::HttpSession;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora_core::upstreams::peer::Peer;
use rustls::ClientConfig;

use super::pool::Pool;
use crate::config::Config;
use crate::tls::credentials::{Credentials, Trust};

/// Most streams on one connection; fewer, if its server allows fewer.
const SHORT_STREAMS: usize = 64;
const LONG_STREAMS: usize = 16;
/// Bytes that an unread response may hold here.
pub const STREAM_WINDOW: u32 = 256 << 10;

/// How a request travels upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Shares a connection with other short requests.
    Short,
    /// Watches, logs and the like: connections of their own.
    Long,
    /// `exec` and the like: one HTTP/1.1 connection for itself.
    Upgrade,
}

/// Where to connect to and whom to expect there.
#[derive(Debug, Clone)]
pub struct Destination {
    address: SocketAddr,
    /// The same, for pingora.
    peer: PingoraAddr,
    hash: u64,
    name: Arc<str>,
}

impl Destination {
    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name that the server's certificate must have.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.address, self.name)
    }
}

impl Peer for Destination {
    fn address(&self) -> &PingoraAddr {
        &self.peer
    }
    fn tls(&self) -> bool {
        true
    }
    fn sni(&self) -> &str {
        &self.name
    }
    fn reuse_hash(&self) -> u64 {
        self.hash
    }
}

/// Servers that are trusted alike: one CA, one expected name.
pub struct Group {
    name: Arc<str>,
    trust: Arc<Trust>,
    with_certificate: Lanes,
    without: Lanes,
}

/// Short and long requests never share a connection.
struct Lanes {
    short: Pool,
    long: Pool,
}

/// All upstream connections of one thread that are made with the same credentials.
pub struct Upstreams {
    credentials: Arc<Credentials>,
    /// The apiserver beside us.
    pub local: Group,
    /// Other proxies, and native kube-apiservers.
    pub peers: Group,
}

impl Upstreams {
    /// Without connections yet.
    pub fn new(config: &Config, credentials: Arc<Credentials>) -> Self {
        Self {
            local: Group::new(&config.api_server.server_name, &credentials.local),
            peers: Group::new(&config.peer.server_name, &credentials.peers),
            credentials,
        }
    }

    /// Whether connections are made with these.
    pub fn are_of(&self, credentials: &Arc<Credentials>) -> bool {
        Arc::ptr_eq(&self.credentials, credentials)
    }
}

impl Group {
    fn new(name: &str, trust: &Arc<Trust>) -> Self {
        let lanes = |tls: &ClientConfig| Lanes {
            short: Pool::new(tls, SHORT_STREAMS),
            long: Pool::new(tls, LONG_STREAMS),
        };
        Self {
            name: name.into(),
            trust: trust.clone(),
            with_certificate: lanes(&trust.with_certificate),
            without: lanes(&trust.without),
        }
    }

    /// What its connections are made with.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// A member of the group.
    pub fn at(&self, address: SocketAddr) -> Destination {
        Destination {
            address,
            peer: PingoraAddr::Inet(address),
            hash: hash(address),
            name: self.name.clone(),
        }
    }

    /// A session with `to`, and whether its connection was used before.
    pub async fn session(
        &self,
        to: &Destination,
        kind: Kind,
        certificate: bool,
    ) -> pingora_core::Result<(HttpSession, bool)> {
        let pool = self.pool(kind, certificate);
        if kind == Kind::Upgrade {
            return Ok((pool.session_alone(to).await?, false));
        }
        pool.session(to).await
    }

    /// Gives the connection of a finished session back.
    pub async fn release(
        &self,
        session: HttpSession,
        to: &Destination,
        kind: Kind,
        certificate: bool,
    ) {
        self.pool(kind, certificate).release(session, to).await;
    }

    fn pool(&self, kind: Kind, certificate: bool) -> &Pool {
        let lanes = if certificate {
            &self.with_certificate
        } else {
            &self.without
        };
        match kind {
            Kind::Short => &lanes.short,
            Kind::Long | Kind::Upgrade => &lanes.long,
        }
    }
}

fn hash(address: SocketAddr) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault};
    BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(address)
}
