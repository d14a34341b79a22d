//! Connections to servers with the same trust, for requests of one kind. Each serving thread has its own pools.
//!
//! A request takes a stream of an open connection that has room. Otherwise it waits for one that is being opened, and
//! only as many are opened as the waiting requests need. Over HTTP/1.1 each request has a connection for itself.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use pingora_core::protocols::http::v1::client::HttpSession as Http1Session;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::{Error, ErrorType};
use rustls::ClientConfig;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use super::connection::{Begun, Connection};
use super::stream::UpstreamSession;
use crate::net::{Destination, dial, rare};

/// New connections that a request waits for, before it opens one for itself: others may be faster each time, or the
/// server ends what it has accepted.
const ROUNDS: usize = 4;
/// Idle HTTP/1.1 connections are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

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

/// Reusable connections to servers.
pub struct ConnectionPool {
    protocols: Protocols,
    /// Most streams on one connection, whatever the server allows.
    streams: usize,
    /// Bytes of an unread answer that may be buffered.
    window: u32,
    servers: Arc<Mutex<HashMap<SocketAddr, Server>>>,
}

/// The connections to one server.
#[derive(Default)]
struct Server {
    open: Vec<Arc<Connection>>,
    /// The connection of `open` that the last stream began on.
    current: usize,
    opening: Vec<Opening>,
    /// Streams that the server allowed on its last new connection.
    limit: Option<usize>,
    /// The server's last new connection does not have HTTP/2.
    http1: bool,
    idle: Vec<IdleConnection>,
}

struct IdleConnection {
    stream: Stream,
    since: Instant,
    /// It had a request before.
    reused: bool,
}

/// A connection that is being opened.
#[derive(Clone)]
struct Opening {
    waiting: Arc<AtomicUsize>,
    result: watch::Receiver<Option<Result<(), Failure>>>,
}

/// Why a connection could not be opened, for all requests that wait for it.
#[derive(Debug, Clone)]
struct Failure {
    error_type: ErrorType,
    what: String,
}

/// A new connection.
enum New {
    Http1(Stream),
    Http2(Arc<Connection>),
}

impl Server {
    /// Begins a stream on a connection that has room.
    fn begin(&mut self, most: usize) -> Option<(UpstreamSession, bool)> {
        for _ in 0..self.open.len() {
            if self.current >= self.open.len() {
                self.current = 0;
            }
            match self.open.get(self.current)?.begin(most) {
                Begun::Stream(stream, reused) => {
                    return Some((UpstreamSession::http2(stream), reused));
                }
                Begun::Full => self.current += 1,
                Begun::Closed => drop(self.open.swap_remove(self.current)),
            }
        }
        None
    }

    fn is_used(&self) -> bool {
        let closed = |connection: &Arc<Connection>| connection.is_closed();
        self.idle.iter().any(IdleConnection::is_usable)
            || self.opening.iter().any(Opening::is_under_way)
            || !self.open.iter().all(closed)
    }

    fn take_idle(&mut self) -> Option<(Stream, bool)> {
        self.idle.retain(IdleConnection::is_usable);
        self.idle.pop().map(|idle| (idle.stream, idle.reused))
    }

    fn keep_idle(&mut self, stream: Stream, reused: bool) {
        self.idle.push(IdleConnection {
            stream,
            since: Instant::now(),
            reused,
        });
    }

    fn add(&mut self, new: New) {
        self.http1 = matches!(new, New::Http1(_));
        match new {
            New::Http1(stream) => self.keep_idle(stream, false),
            New::Http2(connection) => {
                self.limit = Some(connection.limit());
                self.open.push(connection);
            }
        }
    }

    /// Joins the requests that wait for a connection that is being opened, if it can serve them all.
    fn join(&mut self, most: usize) -> Option<Opening> {
        self.opening.retain(Opening::is_under_way);
        let most = self.limit.map_or(most, |limit| limit.min(most));
        let joins = |opening: &&Opening| opening.waiting.load(Ordering::Relaxed) < most;
        let opening = self.opening.iter().find(joins)?.clone();
        opening.waiting.fetch_add(1, Ordering::Relaxed);
        Some(opening)
    }
}

impl ConnectionPool {
    /// `streams`: most streams on one connection; `window`: bytes of an unread answer that may be buffered.
    pub fn new(protocols: &Protocols, streams: usize, window: u32) -> Self {
        Self {
            protocols: protocols.clone(),
            streams,
            window,
            servers: Arc::default(),
        }
    }

    /// Opens a session with `to`. Returns whether its connection was used before.
    pub async fn session(&self, to: &Destination) -> pingora_core::Result<(UpstreamSession, bool)> {
        let begun = self
            .servers()
            .get_mut(&to.address)
            .and_then(|server| server.begin(self.streams));
        match begun {
            Some(session) => Ok(session),
            None => rare(|| self.new_session(to)).await,
        }
    }

    /// No open connection has room.
    async fn new_session(&self, to: &Destination) -> pingora_core::Result<(UpstreamSession, bool)> {
        for _ in 0..ROUNDS {
            let mut opening = {
                let mut servers = self.servers();
                let server = servers.entry(to.address).or_default();
                if let Some(session) = server.begin(self.streams) {
                    return Ok(session);
                }
                if server.http1 {
                    break;
                }
                match server.join(self.streams) {
                    Some(opening) => opening,
                    None => {
                        let opening = self.begin_opening(to);
                        server.opening.push(opening.clone());
                        opening
                    }
                }
            };
            let result = opening.result.wait_for(Option::is_some).await;
            let result = result.ok().and_then(|result| (*result).clone());
            match result {
                Some(Ok(())) => {}
                Some(Err(Failure { error_type, what })) => {
                    return Error::e_explain(error_type, what);
                }
                None => return Error::e_explain(ErrorType::ConnectError, "it was not opened"),
            }
        }
        while let Some((mut stream, reused)) = self.take_idle(to) {
            if is_quiet(&mut stream).await {
                return Ok((UpstreamSession::http1(stream), reused));
            }
        }
        // Boxed: many requests wait here at once for connections that others open.
        let new = rare(|| open(&self.protocols, to, self.window)).await?;
        if let New::Http2(connection) = &new {
            let connection = New::Http2(connection.clone());
            self.server(to, |server| server.add(connection));
        }
        Ok((self.session_on(new)?, false))
    }

    /// Opens a connection for all requests that wait for it. A client that goes away does not end that.
    fn begin_opening(&self, to: &Destination) -> Opening {
        let (told, result) = watch::channel(None);
        let (servers, protocols, to) = (self.servers.clone(), self.protocols.clone(), to.clone());
        let window = self.window;
        tokio::spawn(async move {
            let opened = match open(&protocols, &to, window).await {
                Ok(new) => {
                    let mut servers = lock(&servers);
                    forget_unused(&mut servers);
                    servers.entry(to.address).or_default().add(new);
                    Ok(())
                }
                Err(error) => Err(Failure {
                    error_type: error.etype().clone(),
                    what: error.to_string(),
                }),
            };
            told.send_replace(Some(opened));
        });
        Opening {
            waiting: Arc::new(AtomicUsize::new(1)),
            result,
        }
    }

    fn session_on(&self, new: New) -> pingora_core::Result<UpstreamSession> {
        match new {
            New::Http1(stream) => Ok(UpstreamSession::http1(stream)),
            New::Http2(connection) => match connection.begin(self.streams) {
                Begun::Stream(stream, _) => Ok(UpstreamSession::http2(stream)),
                Begun::Full | Begun::Closed => {
                    Error::e_explain(ErrorType::ConnectError, "closed before its first stream")
                }
            },
        }
    }

    /// Opens a session with `to` on a new connection that is not shared.
    pub async fn session_alone(&self, to: &Destination) -> pingora_core::Result<UpstreamSession> {
        self.session_on(open(&self.protocols, to, self.window).await?)
    }

    /// Opens an HTTP/1.1 session with `to`.
    pub async fn session_of_http1(
        &self,
        to: &Destination,
    ) -> pingora_core::Result<UpstreamSession> {
        let stream = dial(to.address, &to.name, &self.protocols.http1).await?;
        self.session_on(New::Http1(stream))
    }

    /// Returns the connection of a finished session.
    pub async fn release(&self, mut session: Http1Session, to: &Destination) {
        session.respect_keepalive();
        if let Some(stream) = session.reuse().await {
            forget_unused(&mut self.servers());
            self.server(to, |server| server.keep_idle(stream, true));
        }
    }

    fn take_idle(&self, to: &Destination) -> Option<(Stream, bool)> {
        self.server(to, Server::take_idle)
    }

    fn server<T>(&self, to: &Destination, work: impl FnOnce(&mut Server) -> T) -> T {
        work(self.servers().entry(to.address).or_default())
    }

    /// Never contended: all users are on one thread, and none waits while it holds the lock.
    fn servers(&self) -> MutexGuard<'_, HashMap<SocketAddr, Server>> {
        lock(&self.servers)
    }
}

/// Connections to servers that are gone are not kept for ever.
fn forget_unused(servers: &mut HashMap<SocketAddr, Server>) {
    servers.retain(|_, server| {
        server.idle.retain(IdleConnection::is_usable);
        server.is_used()
    });
}

impl Opening {
    /// Whether there will be a result. A task that has panicked is gone and leaves none.
    fn is_under_way(&self) -> bool {
        self.result.has_changed().is_ok() && self.result.borrow().is_none()
    }
}

impl IdleConnection {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < IDLE_TIMEOUT
    }
}

/// Opens a connection.
async fn open(protocols: &Protocols, to: &Destination, window: u32) -> pingora_core::Result<New> {
    let stream = dial(to.address, &to.name, &protocols.any).await?;
    match stream.selected_alpn_proto() {
        Some(ALPN::H2) => Ok(New::Http2(Connection::open(stream, window).await?)),
        _ => Ok(New::Http1(stream)),
    }
}

/// Whether an idle connection has received nothing: neither its end nor unexpected data.
async fn is_quiet(stream: &mut Stream) -> bool {
    let mut discarded = [0];
    let mut read = pin!(tokio::task::unconstrained(stream.read(&mut discarded)));
    poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_joins_a_dial_whose_task_is_gone() {
        let (told, result) = watch::channel(None);
        let mut server = Server::default();
        server.opening.push(Opening {
            waiting: Arc::default(),
            result,
        });
        assert!(server.join(9).is_some() && server.is_used());
        drop(told);
        assert!(server.join(9).is_none() && !server.is_used());
    }
}
