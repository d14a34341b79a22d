//! Accepting connections and shaking hands.
//!
//! As many clients may be connected as [`files`] says; who comes after them is turned away, and nobody else is disturbed.
//! Peers find room even then: with each of their connections come the requests of many.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, ServerApp};
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::l4::ext::TcpKeepalive;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use pingora_core::protocols::tls::TlsRef;
use pingora_core::protocols::tls::server::handshake_with_callback;
use pingora_core::protocols::{GetSocketDigest, SocketDigest, Stream};
use rustls::ServerConfig;
use std::any::Any;
use std::os::fd::AsRawFd;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::admin::metrics::Metrics;
use crate::relay::files;
use crate::relay::front::HEADER_TIMEOUT;
use crate::request::who::Connection;
use crate::routing::table::Snapshot;
use crate::trouble::Pace;

/// A handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this long without resources (file descriptors), accepting is tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Of as many connections as all clients may have, this part is for peers besides.
const PEERS_SHARE: usize = 8;

/// What accepting a connection needs; held by every connection while it lives.
pub struct Accepting<A> {
    /// The HTTP application.
    pub app: Arc<A>,
    /// The TLS configuration of the moment.
    pub tls: Arc<ArcSwap<ServerConfig>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Most clients that may be connected at once, of all threads.
    pub most: usize,
    /// What etcd says: where peers are.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Becomes true when connections are to end after their running requests.
    pub closing: watch::Receiver<bool>,
    /// Tells by its end that no connection is left.
    pub alive: mpsc::Sender<()>,
}

impl<A: HttpServerApp + Send + Sync + 'static> Accepting<A> {
    /// Accepts until closing.
    pub async fn run(self: Arc<Self>, listener: TcpListener) {
        let mut closing = self.closing.clone();
        loop {
            tokio::select! {
                biased;
                () = becomes_true(&mut closing) => return,
                accepted = listener.accept() => match accepted {
                    Ok((tcp, from)) if self.has_room_for(&tcp, from.ip()) => {
                        let open = Open::new(self.metrics.clone());
                        tokio::spawn(self.clone().serve(tcp, from, open));
                    }
                    Ok(_) => {
                        self.metrics.refused_connections.inc();
                        not_let_in(&"as many are connected as may be");
                    }
                    Err(error) => {
                        // Of one connection (reset while waiting) or of the process (too many open files).
                        not_let_in(&error);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn has_room_for(&self, tcp: &tokio::net::TcpStream, from: IpAddr) -> bool {
        let open = usize::try_from(self.metrics.connections.get()).unwrap_or_default();
        let room = open < self.most
            || (open < self.most + self.most / PEERS_SHARE && self.is_a_peers(from));
        room && files::is_for_requests(tcp)
    }

    /// What else is at a peer's address may come in with it: it is one of the cluster's own hosts.
    fn is_a_peers(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let snapshot = self.snapshot.load();
        let mut servers = snapshot.servers.iter();
        servers.any(|server| server.live && server.endpoint.ip().to_canonical() == address)
    }

    /// `_open`: counts this connection.
    async fn serve(self: Arc<Self>, tcp: tokio::net::TcpStream, from: SocketAddr, _open: Open) {
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.shake_hands(tcp, from)).await;
        match handshake {
            Ok(Ok(stream)) => self.serve_requests(stream).await,
            Ok(Err(error)) => {
                self.metrics.failed_handshakes.inc();
                tracing::debug!(client = %from, %error, "TLS handshake failed");
            }
            Err(_) => {
                self.metrics.failed_handshakes.inc();
                tracing::debug!(client = %from, "TLS handshake took too long");
            }
        }
    }

    /// Gives up on a client that asks for nothing. pingora waits for the first bytes of HTTP/2 for as long as it takes.
    async fn serve_requests(&self, stream: Stream) {
        let tls = stream.get_ssl_digest();
        let connection = tls.and_then(|tls| tls.extension.get::<Arc<Connection>>().cloned());
        let mut serving = pin!(self.app.process_new(stream, &self.closing));
        let first = tokio::time::timeout(HEADER_TIMEOUT, &mut serving).await;
        if first.is_err() && connection.is_some_and(|connection| connection.has_asked()) {
            serving.await;
        }
    }

    async fn shake_hands(
        &self,
        tcp: tokio::net::TcpStream,
        from: SocketAddr,
    ) -> pingora_core::Result<pingora_core::protocols::Stream> {
        let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
        let mut tcp = TcpStream::from(tcp);
        // An address is set once; a failure means that it is set.
        let _ = digest.peer_addr.set(Some(from.into()));
        tcp.set_socket_digest(digest);
        tcp.set_nodelay()?;
        tcp.set_keepalive(&keepalive())?;
        let acceptor = Acceptor::from_server_config(self.tls.load_full());
        let handshake = Handshake { from };
        Ok(Box::new(
            handshake_with_callback(&acceptor, tcp, &handshake).await?,
        ))
    }
}

fn not_let_in(problem: &dyn fmt::Display) {
    static PACE: Pace = Pace::new();
    if let Some(left_out) = PACE.admit() {
        tracing::warn!(%problem, left_out, "clients are not let in");
    }
}

/// Counts a connection while it lives.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Resolves when the value is true, or nobody is left to change it.
pub async fn becomes_true(watched: &mut watch::Receiver<bool>) {
    // The guard inside the result must not be held.
    let _ = watched.wait_for(|value| *value).await.is_ok();
}

/// Finds half-open connections; watches are silent for long, so nothing else does.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive {
        idle: Duration::from_secs(15),
        interval: Duration::from_secs(15),
        count: 3,
        user_timeout: Duration::ZERO,
    }
}

/// Leaves what is known of the client with its connection.
struct Handshake {
    from: SocketAddr,
}

#[async_trait]
impl TlsAccept for Handshake {
    async fn handshake_complete_callback(
        &self,
        tls: &TlsRef,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let chain = tls
            .peer_cert_chain_der()
            .map(<[_]>::to_vec)
            .unwrap_or_default();
        let connection = Connection::new(self.from.ip().to_canonical(), rand::random(), chain);
        // An Arc in the Arc: requests take it along while they use the session that it hangs on.
        Some(Arc::new(Arc::new(connection)))
    }
}
