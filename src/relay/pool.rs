//! Connections to servers that are trusted alike, for requests of one kind; each serving thread has its own.
//!
//! pingora makes the connections and runs HTTP/2 on them; which of them takes the next stream is decided here. A server
//! says how many streams it allows only after a connection is there, and pingora's own pool fills it before: the server
//! refuses what is too much, and a request whose body was read already cannot be sent again. Here a new connection is
//! its opener's alone until its server has said.

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

use super::dial::dial;
use super::upstream::{Destination, STREAM_WINDOW};

const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A server that is frozen or cut off answers no ping: after this and pingora's 5 s for the answer, all that is under
/// way on the connection fails. client-go waits 30 s and 15 s, for servers at the other end of the world.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Stands for a limit of streams that the server has not named yet.
const UNKNOWN: usize = 1 << 20;
/// A server that has named none by then never will.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connections that can be used again, by the hash of their destination.
pub struct Pool {
    /// HTTP/2, or HTTP/1.1 where the server has no other.
    tls: Arc<ClientConfig>,
    /// HTTP/1.1, for upgrades.
    tls_alone: Arc<ClientConfig>,
    /// Most streams on one connection, whatever the server allows.
    streams: usize,
    open: Mutex<HashMap<u64, Vec<Open>>>,
    /// Connections of HTTP/1.1 that nobody uses.
    idle: Mutex<HashMap<u64, Vec<Idle>>>,
}

struct Idle {
    stream: Stream,
    since: Instant,
}

/// An HTTP/2 connection.
struct Open {
    connection: ConnectionRef,
    since: Instant,
    used: Instant,
    limit: Option<usize>,
}

impl Open {
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

    /// Whether another stream would begin at once; `most`: our own limit.
    fn has_room(&mut self, most: usize) -> bool {
        let (free, idle) = (
            self.connection.free_stream_slots(),
            self.connection.is_idle(),
        );
        let named = free < UNKNOWN / 2;
        let limit = match self.limit {
            Some(limit) => limit,
            // Until now there has been no stream but the opener's.
            None if named => free + usize::from(!idle),
            // The opener was answered, and settings come before answers: there is no limit.
            None if idle || self.since.elapsed() > PATIENCE => UNKNOWN,
            None => return false,
        };
        self.limit = Some(limit);
        free > 0 && limit.saturating_sub(free) < most
    }
}

impl Pool {
    /// Of connections with at most so many streams.
    pub fn new(tls: &ClientConfig, streams: usize) -> Self {
        let speaking = |protocols: &[&[u8]]| {
            let mut tls = tls.clone();
            tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(tls)
        };
        Self {
            tls: speaking(&[b"h2", b"http/1.1"]),
            tls_alone: speaking(&[b"http/1.1"]),
            streams,
            open: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// A session with `to`, and whether its connection was used before.
    pub async fn session(&self, to: &Destination) -> pingora_core::Result<(HttpSession, bool)> {
        while let Some(connection) = self.with_room(to) {
            if let Ok(Some(stream)) = connection.spawn_stream().await {
                return Ok((HttpSession::H2(stream), true));
            }
            // It is going away; what is under way on it may come to its end.
            connection.mark_shutdown();
        }
        while let Some(mut stream) = self.take_idle(to) {
            if !is_quiet(&mut stream).await {
                continue;
            }
            let session = Http1Session::new_with_options(stream, to);
            return Ok((HttpSession::H1(session), true));
        }
        Ok((self.open(to).await?, false))
    }

    /// A session with `to` on a connection that was and will be nobody else's.
    pub async fn session_alone(&self, to: &Destination) -> pingora_core::Result<HttpSession> {
        let stream = dial(to.address(), to.name(), &self.tls_alone).await?;
        Ok(HttpSession::H1(Http1Session::new_with_options(stream, to)))
    }

    /// Gives the connection of a finished session back.
    pub async fn release(&self, session: HttpSession, to: &Destination) {
        // A stream of HTTP/2 has ended with its session.
        if let HttpSession::H1(mut session) = session {
            session.respect_keepalive();
            if let Some(stream) = session.reuse().await {
                let since = Instant::now();
                let mut idle = lock(&self.idle);
                idle.retain(|_, streams| {
                    streams.retain(Idle::is_usable);
                    !streams.is_empty()
                });
                let streams = idle.entry(to.reuse_hash()).or_default();
                streams.push(Idle { stream, since });
            }
        }
    }

    async fn open(&self, to: &Destination) -> pingora_core::Result<HttpSession> {
        let stream = dial(to.address(), to.name(), &self.tls).await?;
        if !matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            return Ok(HttpSession::H1(Http1Session::new_with_options(stream, to)));
        }
        let mut settings = H2HandshakeSettings::new();
        settings.max_streams = UNKNOWN;
        settings.ping_interval = Some(PING_INTERVAL);
        settings.stream_window_size = Some(STREAM_WINDOW);
        // Room for the windows of all of its streams: what one leaves unread takes nothing from the others.
        settings.connection_window_size = u32::try_from(self.streams)
            .ok()
            .map(|streams| streams * STREAM_WINDOW);
        let connection = handshake(stream, settings).await?;
        let Some(session) = connection.spawn_stream().await? else {
            return Error::e_explain(ErrorType::ConnectError, "closed before its first stream");
        };
        let mut open = lock(&self.open);
        open.retain(|_, connections| {
            connections.retain(Open::is_usable);
            !connections.is_empty()
        });
        open.entry(to.reuse_hash())
            .or_default()
            .push(Open::new(connection));
        Ok(HttpSession::H2(session))
    }

    fn with_room(&self, to: &Destination) -> Option<ConnectionRef> {
        let mut open = lock(&self.open);
        let connections = open.get_mut(&to.reuse_hash())?;
        connections.retain(Open::is_usable);
        let found = connections
            .iter_mut()
            .find_map(|open| open.has_room(self.streams).then_some(open))?;
        found.used = Instant::now();
        Some(found.connection.clone())
    }

    fn take_idle(&self, to: &Destination) -> Option<Stream> {
        let mut idle = lock(&self.idle);
        let streams = idle.get_mut(&to.reuse_hash())?;
        streams.retain(Idle::is_usable);
        streams.pop().map(|idle| idle.stream)
    }
}

impl Idle {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < IDLE_TIMEOUT
    }
}

/// Whether nothing came on a connection that nobody uses: neither its end nor what belongs to no request.
async fn is_quiet(stream: &mut Stream) -> bool {
    let mut scrap = [0];
    let mut read = pin!(tokio::task::unconstrained(stream.read(&mut scrap)));
    poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await
}

/// Never contended: all who ask are on one thread, and nobody waits while holding it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
