//! Connections to apiservers: one set for the local one, one for peers, each with and without our certificate.
//!
//! Two kinds of connection, because kube-apiserver judges the connection before the token: with the proxy client
//! certificate a named user is believed and an anonymous request is a 401; without it tokens and anonymous requests
//! mean what they mean without a proxy. Pools belong to one thread each. Long-running requests have connections of
//! their own: what a slow watcher leaves unread must not use up the window of everybody else's connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::connectors::ConnectorOptions;
use pingora_core::protocols::ALPN;
use pingora_core::protocols::TcpKeepalive;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora_core::upstreams::peer::{Peer, PeerOptions};

use super::pool::Pool;
use crate::config::{ApiServer, Config, KeyPair};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_AND_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(6);
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
    address: PingoraAddr,
    hash: u64,
    name: Arc<str>,
    options: Arc<PeerOptions>,
}

impl Destination {
    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.as_inet().copied()
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
        &self.address
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
    fn get_peer_options(&self) -> Option<&PeerOptions> {
        Some(&self.options)
    }
}

/// Servers that are trusted alike: one CA, one expected name.
pub struct Group {
    name: Arc<str>,
    shared: Arc<PeerOptions>,
    alone: Arc<PeerOptions>,
    with_certificate: Lanes,
    without: Lanes,
}

/// Short and long requests never share a connection.
struct Lanes {
    short: Pool,
    long: Pool,
}

/// All upstream connections of one thread.
pub struct Upstreams {
    /// The apiserver beside us.
    pub local: Group,
    /// Other proxies, and native kube-apiservers.
    pub peers: Group,
}

impl Upstreams {
    /// Reads the certificate files; they were validated with the configuration.
    pub fn new(config: &Config) -> Self {
        let ApiServer { proxy_client, .. } = &config.api_server;
        Self {
            local: Group::new(
                &config.api_server.server_name,
                &config.api_server.ca_file,
                proxy_client,
            ),
            peers: Group::new(&config.peer.server_name, &config.peer.ca_file, proxy_client),
        }
    }
}

impl Group {
    fn new(name: &str, ca_file: &std::path::Path, identity: &KeyPair) -> Self {
        let lanes = |identity: Option<&KeyPair>| {
            let pool = |streams| {
                let mut options = ConnectorOptions::new(1024);
                options.ca_file = Some(ca_file.display().to_string());
                options.cert_key_file = identity.map(|pair| {
                    (
                        pair.cert_file.display().to_string(),
                        pair.key_file.display().to_string(),
                    )
                });
                Pool::new(options, streams)
            };
            Lanes {
                short: pool(SHORT_STREAMS),
                long: pool(LONG_STREAMS),
            }
        };
        Self {
            name: name.into(),
            shared: Arc::new(options(ALPN::H2H1)),
            alone: Arc::new(options(ALPN::H1)),
            with_certificate: lanes(Some(identity)),
            without: lanes(None),
        }
    }

    /// A member of the group.
    pub fn at(&self, address: SocketAddr, kind: Kind) -> Destination {
        let options = match kind {
            Kind::Short | Kind::Long => &self.shared,
            Kind::Upgrade => &self.alone,
        };
        Destination {
            address: PingoraAddr::Inet(address),
            hash: hash(address),
            name: self.name.clone(),
            options: options.clone(),
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

fn options(alpn: ALPN) -> PeerOptions {
    let mut options = PeerOptions::new();
    options.connection_timeout = Some(CONNECT_TIMEOUT);
    options.total_connection_timeout = Some(CONNECT_AND_HANDSHAKE_TIMEOUT);
    options.alpn = alpn;
    options.tcp_keepalive = Some(TcpKeepalive {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        count: 3,
        user_timeout: Duration::from_secs(30),
    });
    options
}

fn hash(address: SocketAddr) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault};
    BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(address)
}
