//! Accepts connections and performs TLS handshakes.
//!
//! [`files`] limits the number of clients; further clients are refused, and others are not affected. Peers are accepted
//! even then, because each of their connections carries requests of many users.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::l4::ext::TcpKeepalive;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use pingora_core::protocols::tls::server::handshake_with_callback;
use pingora_core::protocols::tls::{TlsRef, TlsStream};
use pingora_core::protocols::{ALPN, Ssl};
use pingora_core::{Error, ErrorType, OrErr};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use super::http2;
use super::listener::ignore_newcomers;
use super::metrics::ConnectionMetrics;
use super::socket::ClientSocket;
use crate::log_throttle::LogRateLimit;
use crate::net::files;
use crate::relay::client::Downstream;
use crate::relay::service::{HEADER_TIMEOUT, RelayService};
use crate::relay::shared::Shared;
use crate::relay::shutdown::ShutdownPhase;
use crate::request::caller::ClientConnection;
use crate::tls::serving::ServingTls;

/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an error such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long connections that have begun are accepted after listening has stopped: a handshake of TCP on a slow network.
pub const LAST_HANDSHAKES: Duration = Duration::from_millis(200);

/// Detects half-open connections. Watches may be silent for a long time.
const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(15),
    count: 3,
    user_timeout: Duration::ZERO,
};

/// This part of the limit for clients is added for peers.
const PEERS_SHARE: usize = 8;

/// Accepts the connections of one thread. Every connection holds it.
pub(super) struct ConnectionAcceptor {
    pub shared: Arc<Shared>,
    pub service: Arc<RelayService>,
    /// The current TLS configuration.
    pub tls: Arc<ArcSwap<ServingTls>>,
    pub metrics: Arc<ConnectionMetrics>,
    /// Most clients at the same time, of all threads.
    pub max_clients: usize,
    /// Held during the expensive part of a handshake.
    pub handshake_lock: Mutex<()>,
}

impl ConnectionAcceptor {
    /// Accepts until listening stops, and then those that have begun to connect.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener) {
        tokio::select! {
            biased;
            () = self.shared.shutdown.reaches(ShutdownPhase::Ending) => {}
            () = self.accept_all(&listener) => {}
        }
        if let Err(error) = ignore_newcomers(&listener) {
            tracing::debug!(%error, "the listener cannot ignore newcomers");
        }
        // The end of this time is the expected one.
        let _ = tokio::time::timeout(LAST_HANDSHAKES, self.accept_all(&listener)).await;
    }

    async fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((tcp, from)) if self.has_room_for(&tcp, from.ip()) => {
                    let open = Open::new(self.metrics.clone());
                    tokio::spawn(self.clone().serve(tcp, from, open));
                }
                Ok(_) => {
                    self.metrics.refused.inc();
                    warn_refused(&"as many are connected as may be");
                }
                Err(error) => {
                    // Caused by the connection (reset while it waited) or by the process (too many open files).
                    warn_refused(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn has_room_for(&self, tcp: &tokio::net::TcpStream, from: IpAddr) -> bool {
        let open = usize::try_from(self.metrics.open.get()).unwrap_or_default();
        let most = self.max_clients;
        let room = open < most || (open < most + most / PEERS_SHARE && self.is_peers_address(from));
        room && files::is_for_requests(tcp)
    }

    /// Other clients at a peer's address are accepted, too: it is a host of the cluster.
    fn is_peers_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let snapshot = self.shared.published.snapshot.load();
        let mut servers = snapshot.servers.iter();
        servers.any(|server| server.live && server.endpoint.ip().to_canonical() == address)
    }

    /// `_open`: counts this connection.
    async fn serve(self: Arc<Self>, tcp: tokio::net::TcpStream, from: SocketAddr, _open: Open) {
        let handshake = Box::pin(async {
            tcp.readable()
                .await
                .or_err(ErrorType::TLSHandshakeFailure, "waiting for its beginning")?;
            in_turn(&self.handshake_lock, self.handshake(tcp, from)).await
        });
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
        let timed_out = || Error::e_explain(ErrorType::TLSHandshakeTimedout, "it took too long");
        match handshake.unwrap_or_else(|_| timed_out()) {
            Ok(stream) => self.serve_requests(stream).await,
            Err(error) => {
                self.metrics.failed_handshakes.inc();
                tracing::debug!(client = %from, %error, "TLS handshake failed");
            }
        }
    }

    /// Closes a connection that sends no request. pingora waits for the first bytes of HTTP/2 without a limit.
    async fn serve_requests(&self, stream: TlsStream<TcpStream>) {
        let tls = stream.get_ssl_digest();
        let downstream = tls.as_ref().and_then(|tls| tls.extension.get());
        let Some(downstream) = downstream.map(Arc::<Downstream>::clone) else {
            return;
        };
        let is_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
        let unread = self.shared.limits.unread.clone();
        let socket = ClientSocket::new(stream, downstream.clone(), unread);
        let mut serving = pin!(async {
            match is_http2 {
                true => http2::serve(&self.service, socket, &downstream).await,
                false => self.service.serve_http1(socket, tls).await,
            }
        });
        let first = tokio::time::timeout(HEADER_TIMEOUT, &mut serving).await;
        if first.is_err() && downstream.client.has_asked() {
            serving.await;
        }
    }

    async fn handshake(
        &self,
        tcp: tokio::net::TcpStream,
        from: SocketAddr,
    ) -> pingora_core::Result<TlsStream<TcpStream>> {
        let local = tcp.local_addr().ok().map(|address| address.ip());
        let mut tcp = TcpStream::from(tcp);
        tcp.set_nodelay()?;
        tcp.set_keepalive(&KEEPALIVE)?;
        let acceptor = Acceptor::from_server_config(self.tls.load().at(local).clone());
        handshake_with_callback(&acceptor, tcp, &Handshake { from }).await
    }
}

/// Signing a handshake takes as long as many requests. Ready tasks run between two handshakes.
pub async fn in_turn<T>(lock: &Mutex<()>, handshake: impl Future<Output = T>) -> T {
    let mut handshake = pin!(handshake);
    let guard = lock.lock().await;
    let begun = poll_fn(|context| Poll::Ready(handshake.as_mut().poll(context))).await;
    tokio::task::yield_now().await;
    drop(guard);
    match begun {
        Poll::Ready(done) => done,
        Poll::Pending => handshake.await,
    }
}

fn warn_refused(problem: &dyn fmt::Display) {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    if let Some(left_out) = LOG_RATE.admit() {
        tracing::warn!(%problem, left_out, "clients are not let in");
    }
}

struct Open(Arc<ConnectionMetrics>);

impl Open {
    fn new(metrics: Arc<ConnectionMetrics>) -> Self {
        metrics.open.inc();
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.dec();
    }
}

/// Attaches a [`Downstream`] to each connection.
struct Handshake {
    from: SocketAddr,
}

#[async_trait]
impl TlsAccept for Handshake {
    async fn handshake_complete_callback(
        &self,
        tls: &TlsRef,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let chain = tls.peer_cert_chain_der().unwrap_or_default().to_vec();
        let address = self.from.ip().to_canonical();
        let connection = ClientConnection::new(address, rand::random(), chain);
        // An `Arc` in the `Arc`: requests clone it while they use the session.
        Some(Arc::new(Arc::new(Downstream::new(connection))))
    }
}
