//! Connections to servers with the same trust, for requests of one kind. Each serving thread has its own pools.
//!
//! pingora opens the connections and runs HTTP/2; this pool chooses the connection for the next stream. A server
//! announces its stream limit only after the connection is open. pingora's own pool fills the connection before that,
//! the server refuses the excess, and a request whose body was read already cannot be sent again. Here a new connection
//! belongs to the request that opened it until the server has announced its limit.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use pingora_core::connectors::http::v2::{ConnectionRef, H2HandshakeSettings, handshake};
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::protocols::http::v1::client::HttpSession as Http1Session;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::upstreams::peer::Peer;
use pingora_core::{Error, ErrorType};
use rustls::ClientConfig;
use tokio::io::AsyncReadExt;

use super::destination::Destination;
use super::dial::dial;

const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A server that hangs or is cut off answers no ping. After this interval and pingora's 5 s for the answer all requests
/// on the connection fail. client-go waits 30 s and 15 s, also for distant servers.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// No limit for the connection: each stream has its own limit, so that unread data of one stream does not block others.
/// HTTP/2 closes a connection when the overhead of small unread pieces exceeds half of this window.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an unread response that may be buffered here.
pub const STREAM_WINDOW: u32 = 64 << 10;
/// Stands for a stream limit that the server has not announced yet.
const UNKNOWN: usize = 1 << 20;
/// A server that has not announced a limit after this time will not do so.
const PATIENCE: Duration = Duration::from_secs(1);

/// TLS configurations by protocol.
#[derive(Clone)]
pub struct Protocols {
    /// HTTP/2, or HTTP/1.1 if the server does not support HTTP/2.
    any: Arc<ClientConfig>,
    /// HTTP/1.1, for upgrades.
    http1: Arc<ClientConfig>,
}

impl Protocols {
    /// Both with the same trust and certificate.
    pub fn new(tls: &ClientConfig) -> Self {
        let speaking = |protocols: &[&[u8]]| {
            let mut tls = tls.clone();
            tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(tls)
        };
        Self {
            any: speaking(&[b"h2", b"http/1.1"]),
            http1: speaking(&[b"http/1.1"]),
        }
    }
}

/// Reusable connections, by the hash of their destination.
pub struct ConnectionPool {
    protocols: Protocols,
    /// Most streams on one connection, whatever the server allows.
    streams: usize,
    open: Mutex<HashMap<u64, Vec<OpenConnection>>>,
    /// IdleConnection HTTP/1.1 connections.
    idle: Mutex<HashMap<u64, Vec<IdleConnection>>>,
}

struct IdleConnection {
    stream: Stream,
    since: Instant,
}

/// An HTTP/2 connection.
struct OpenConnection {
    connection: ConnectionRef,
    since: Instant,
    used: Instant,
    limit: Option<usize>,
}

impl OpenConnection {
    fn new(connection: ConnectionRef) -> Self {
        let now = Instant::now();
        Self {
            connection,
            since: now,
            used: now,
            limit: None,
        }
    }

    fn is_usable(&self) -> bool {
        let idle = self.connection.is_idle() && self.used.elapsed() > IDLE_TIMEOUT;
        !(idle || self.connection.is_closed() || self.connection.is_shutting_down())
    }

    /// Whether another stream would start at once; `most`: the proxy's own limit.
    fn has_room(&mut self, most: usize) -> bool {
        let (free, idle) = (
            self.connection.free_stream_slots(),
            self.connection.is_idle(),
        );
        let named = free < UNKNOWN / 2;
        let limit = match self.limit {
            Some(limit) => limit,
            // Only the first request has used the connection so far.
            None if named => free + usize::from(!idle),
            // The first request was answered, and settings come before answers: the server has no limit.
            None if idle || self.since.elapsed() > PATIENCE => UNKNOWN,
            None => return false,
        };
        self.limit = Some(limit);
        free > 0 && limit.saturating_sub(free) < most
    }
}

impl ConnectionPool {
    /// `streams`: most streams on one connection.
    pub fn new(protocols: &Protocols, streams: usize) -> Self {
        Self {
            protocols: protocols.clone(),
            streams,
            open: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// Opens a session with `to`. Returns whether its connection was used before.
    pub async fn session(&self, to: &Destination) -> pingora_core::Result<(HttpSession, bool)> {
        while let Some(connection) = self.with_room(to) {
            if let Ok(Some(stream)) = connection.spawn_stream().await {
                return Ok((HttpSession::H2(stream), true));
            }
            // The connection is closing. Its running requests may finish.
            connection.mark_shutdown();
        }
        while let Some(mut stream) = self.take_idle(to) {
            if !is_quiet(&mut stream).await {
                continue;
            }
            let session = Http1Session::new_with_options(stream, to);
            return Ok((HttpSession::H1(session), true));
        }
        let (session, connection) = self.open(to).await?;
        if let Some(connection) = connection {
            self.share(connection, to);
        }
        Ok((session, false))
    }

    /// Opens a session with `to` on a new connection that is not shared.
    pub async fn session_alone(&self, to: &Destination) -> pingora_core::Result<HttpSession> {
        Ok(self.open(to).await?.0)
    }

    /// The same over HTTP/1.1.
    pub async fn session_of_http1(&self, to: &Destination) -> pingora_core::Result<HttpSession> {
        let stream = dial(to.address(), to.name(), &self.protocols.http1).await?;
        Ok(HttpSession::H1(Http1Session::new_with_options(stream, to)))
    }

    /// Returns the connection of a finished session.
    pub async fn release(&self, session: HttpSession, to: &Destination) {
        // An HTTP/2 stream ends with its session.
        if let HttpSession::H1(mut session) = session {
            session.respect_keepalive();
            if let Some(stream) = session.reuse().await {
                let since = Instant::now();
                let mut idle = lock(&self.idle);
                idle.retain(|_, streams| {
                    streams.retain(IdleConnection::is_usable);
                    !streams.is_empty()
                });
                let streams = idle.entry(to.reuse_hash()).or_default();
                streams.push(IdleConnection { stream, since });
            }
        }
    }

    /// Opens a connection and its first session. Returns the connection if it can have more sessions.
    async fn open(
        &self,
        to: &Destination,
    ) -> pingora_core::Result<(HttpSession, Option<ConnectionRef>)> {
        let stream = dial(to.address(), to.name(), &self.protocols.any).await?;
        if !matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let session = Http1Session::new_with_options(stream, to);
            return Ok((HttpSession::H1(session), None));
        }
        let mut settings = H2HandshakeSettings::new();
        settings.max_streams = UNKNOWN;
        settings.ping_interval = Some(PING_INTERVAL);
        settings.stream_window_size = Some(STREAM_WINDOW);
        settings.connection_window_size = Some(CONNECTION_WINDOW);
        let connection = handshake(stream, settings).await?;
        let Some(session) = connection.spawn_stream().await? else {
            return Error::e_explain(ErrorType::ConnectError, "closed before its first stream");
        };
        Ok((HttpSession::H2(session), Some(connection)))
    }

    /// Adds a connection for other requests.
    fn share(&self, connection: ConnectionRef, to: &Destination) {
        let mut open = lock(&self.open);
        open.retain(|_, connections| {
            connections.retain(OpenConnection::is_usable);
            !connections.is_empty()
        });
        open.entry(to.reuse_hash())
            .or_default()
            .push(OpenConnection::new(connection));
    }

    fn with_room(&self, to: &Destination) -> Option<ConnectionRef> {
        let mut open = lock(&self.open);
        let connections = open.get_mut(&to.reuse_hash())?;
        connections.retain(OpenConnection::is_usable);
        let found = connections
            .iter_mut()
            .find_map(|open| open.has_room(self.streams).then_some(open))?;
        found.used = Instant::now();
        Some(found.connection.clone())
    }

    fn take_idle(&self, to: &Destination) -> Option<Stream> {
        let mut idle = lock(&self.idle);
        let streams = idle.get_mut(&to.reuse_hash())?;
        streams.retain(IdleConnection::is_usable);
        streams.pop().map(|idle| idle.stream)
    }
}

impl IdleConnection {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < IDLE_TIMEOUT
    }
}

/// Whether an idle connection has received nothing: neither its end nor unexpected data.
async fn is_quiet(stream: &mut Stream) -> bool {
    let mut discarded = [0];
    let mut read = pin!(tokio::task::unconstrained(stream.read(&mut discarded)));
    poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await
}

/// Never contended: all users are on one thread, and none waits while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
