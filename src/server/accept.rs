//! Accepts connections and performs TLS handshakes.
//!
//! [`files`] limits the number of clients; further clients are refused, and others are not affected. Peers are accepted
//! even then, because each of their connections carries requests of many users.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::http2;
use super::listener::ignore_newcomers;
use super::metrics::ConnectionMetrics;
use super::socket::ClientSocket;
use crate::log_throttle::log_rarely;
use crate::metrics::Open;
use crate::net::{files, set_options};
use crate::relay::client::Downstream;
use crate::relay::service::{HEADER_TIMEOUT, RelayService};
use crate::relay::shared::Shared;
use crate::request::caller::ClientConnection;
use crate::shutdown::ShutdownPhase;
use crate::tls::serving::ServingTls;

/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an error such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long connections that have begun are accepted after listening has stopped: a handshake of TCP on a slow network.
pub const LAST_HANDSHAKES: Duration = Duration::from_millis(200);

/// Between questions whether a client is still there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

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
                    let open = Open::new(self.metrics.open.clone());
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

    fn has_room_for(&self, tcp: &TcpStream, from: IpAddr) -> bool {
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
    async fn serve(self: Arc<Self>, tcp: TcpStream, from: SocketAddr, _open: Open<IntGauge>) {
        let config = |local| self.tls.load().at(local).clone();
        match Box::pin(handshake(tcp, &self.handshake_lock, config)).await {
            Ok(stream) => self.serve_requests(stream, from.ip()).await,
            Err(error) => {
                self.metrics.failed_handshakes.inc();
                tracing::debug!(client = %from, %error, "TLS handshake failed");
            }
        }
    }

    /// Closes a connection that sends no request. pingora waits for the first bytes of HTTP/2 without a limit.
    async fn serve_requests(&self, stream: TlsStream<TcpStream>, from: IpAddr) {
        let (_, tls) = stream.get_ref();
        let is_http2 = tls.alpn_protocol() == Some(b"h2");
        let chain = tls.peer_certificates().unwrap_or_default().to_vec();
        let client = ClientConnection::new(from.to_canonical(), rand::random(), chain);
        let downstream = Arc::new(Downstream::new(client));
        let unread = self.shared.limits.unread.clone();
        let socket = ClientSocket::new(stream, downstream.clone(), unread);
        let mut serving = pin!(async {
            match is_http2 {
                true => http2::serve(&self.service, socket, &downstream).await,
                false => self.service.serve_http1(socket, &downstream).await,
            }
        });
        let first = tokio::time::timeout(HEADER_TIMEOUT, &mut serving).await;
        if first.is_err() && downstream.client.has_asked() {
            serving.await;
        }
    }
}

/// Sets the options of a new connection, and makes its TLS handshake. `config`: for connections to this address of the proxy.
pub async fn handshake(
    tcp: TcpStream,
    lock: &Mutex<()>,
    config: impl FnOnce(Option<IpAddr>) -> Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    set_options(&tcp, KEEPALIVE_INTERVAL, None)?;
    let handshake = async {
        // It waits for the lock only when it has begun.
        tcp.readable().await?;
        let handshake = async {
            let local = tcp.local_addr().ok().map(|address| address.ip());
            TlsAcceptor::from(config(local)).accept(tcp).await
        };
        in_turn(lock, handshake).await
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await?
}

/// Signing a handshake takes as long as many requests. Ready tasks run between two handshakes.
async fn in_turn<T>(lock: &Mutex<()>, handshake: impl Future<Output = T>) -> T {
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
    log_rarely!(warn, %problem, "new clients are refused");
}
