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
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::{Error, ErrorType};
use rustls::ClientConfig;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use super::connection::{Begun, Connection};
use super::stream::UpstreamSession;
use crate::net::{dial, rare};
use crate::tls::credentials::Trust;

/// New connections that a request waits for, before it opens one for itself: others may be faster each time, or the
/// server ends what it has accepted.
const ROUNDS: usize = 4;
/// Idle HTTP/1.1 connections are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Which connection of a pool a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionChoice {
    /// Any connection with room.
    Any,
    /// A new connection that no other request uses.
    New,
    /// A new HTTP/1.1 connection: for upgrades, and for headers that may be too large for HTTP/2.
    NewHttp1,
}

/// Servers with the same CA and expected name, and whether our certificate is presented there.
#[derive(Clone)]
pub struct Upstream {
    /// What the certificate of each server must have, and the host of requests that name none.
    pub name: Arc<str>,
    pub trust: Arc<Trust>,
    pub presents_certificate: bool,
    /// TLS with HTTP/2, or HTTP/1.1 if the server does not support HTTP/2.
    any: Arc<ClientConfig>,
    /// TLS with HTTP/1.1.
    http1: Arc<ClientConfig>,
}

impl Upstream {
    pub(super) fn new(name: &str, trust: &Arc<Trust>, presents_certificate: bool) -> Self {
        let tls = match presents_certificate {
            true => &trust.with_certificate,
            false => &trust.without,
        };
        let speaking = |protocols: &[&[u8]]| {
            let mut tls = ClientConfig::clone(tls);
            tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(tls)
        };
        Self {
            name: name.into(),
            trust: trust.clone(),
            presents_certificate,
            any: speaking(&[b"h2", b"http/1.1"]),
            http1: speaking(&[b"http/1.1"]),
        }
    }
}

/// Reusable connections to servers.
pub struct ConnectionPool {
    pub to: Upstream,
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
    idle: Vec<Idle>,
}

/// A connection without a request, since when, and whether it had one before.
type Idle = (Stream, Instant, bool);

fn is_fresh((_, since, _): &Idle) -> bool {
    since.elapsed() < IDLE_TIMEOUT
}

/// A connection that is being opened, and why it could not be.
#[derive(Clone)]
struct Opening {
    waiting: Arc<AtomicUsize>,
    result: watch::Receiver<Option<Result<(), (ErrorType, String)>>>,
}

/// A new connection.
enum New {
    Http1(Stream),
    Http2(Arc<Connection>),
}

impl Server {
    /// Begins a stream on a connection that has room. Returns whether the connection was used before.
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

    /// A connection that was not idle for too long.
    fn take_idle(&mut self) -> Option<(Stream, bool)> {
        self.idle.retain(is_fresh);
        self.idle.pop().map(|(stream, _, reused)| (stream, reused))
    }

    fn is_used(&self) -> bool {
        self.idle.iter().any(is_fresh)
            || self.opening.iter().any(Opening::is_under_way)
            || !self.open.iter().all(|connection| connection.is_closed())
    }

    fn add(&mut self, new: New) {
        self.http1 = matches!(new, New::Http1(_));
        match new {
            New::Http1(stream) => self.idle.push((stream, Instant::now(), false)),
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
    pub(super) fn new(to: &Upstream, streams: usize, window: u32) -> Self {
        Self {
            to: to.clone(),
            streams,
            window,
            servers: Arc::default(),
        }
    }

    /// Opens a session with a server. Returns whether its connection was used before.
    pub async fn session(
        &self,
        address: SocketAddr,
        choice: ConnectionChoice,
    ) -> pingora_core::Result<(UpstreamSession, bool)> {
        // Boxed, because opening a connection takes more memory than all the rest of a request.
        let tls = match choice {
            ConnectionChoice::Any => {
                let begun = lock(&self.servers)
                    .get_mut(&address)
                    .and_then(|server| server.begin(self.streams));
                return match begun {
                    Some(session) => Ok(session),
                    None => rare(|| self.new_session(address)).await,
                };
            }
            ConnectionChoice::New => &self.to.any,
            ConnectionChoice::NewHttp1 => &self.to.http1,
        };
        let new = rare(|| open(tls, &self.to.name, address, self.window)).await?;
        Ok((self.session_on(new)?, false))
    }

    /// No open connection has room.
    async fn new_session(
        &self,
        address: SocketAddr,
    ) -> pingora_core::Result<(UpstreamSession, bool)> {
        for _ in 0..ROUNDS {
            let mut opening = {
                let mut servers = lock(&self.servers);
                let server = servers.entry(address).or_default();
                if let Some(session) = server.begin(self.streams) {
                    return Ok(session);
                }
                if server.http1 {
                    break;
                }
                match server.join(self.streams) {
                    Some(opening) => opening,
                    None => {
                        let opening = self.begin_opening(address);
                        server.opening.push(opening.clone());
                        opening
                    }
                }
            };
            let result = opening.result.wait_for(Option::is_some).await;
            let result = result.ok().and_then(|result| (*result).clone());
            match result {
                Some(Ok(())) => {}
                Some(Err((error_type, what))) => return Error::e_explain(error_type, what),
                None => return Error::e_explain(ErrorType::ConnectError, "it was not opened"),
            }
        }
        while let Some((mut stream, reused)) = self.with(address, Server::take_idle) {
            if is_quiet(&mut stream).await {
                return Ok((UpstreamSession::http1(stream), reused));
            }
        }
        // Boxed: many requests wait here at once for connections that others open.
        let new = rare(|| open(&self.to.any, &self.to.name, address, self.window)).await?;
        if let New::Http2(connection) = &new {
            let connection = New::Http2(connection.clone());
            self.with(address, |server| server.add(connection));
        }
        Ok((self.session_on(new)?, false))
    }

    /// Opens a connection for all requests that wait for it. A client that goes away does not end that.
    fn begin_opening(&self, address: SocketAddr) -> Opening {
        let (told, result) = watch::channel(None);
        let (servers, to, window) = (self.servers.clone(), self.to.clone(), self.window);
        tokio::spawn(async move {
            let opened = match open(&to.any, &to.name, address, window).await {
                Ok(new) => {
                    let mut servers = lock(&servers);
                    forget_unused(&mut servers);
                    servers.entry(address).or_default().add(new);
                    Ok(())
                }
                Err(error) => Err((error.etype().clone(), error.to_string())),
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

    /// Returns the connection of a finished session.
    pub async fn release(&self, session: UpstreamSession, address: SocketAddr) {
        // An HTTP/2 stream ends with its session.
        if let UpstreamSession::H1(mut session) = session {
            rare(|| async move {
                session.respect_keepalive();
                if let Some(stream) = session.reuse().await {
                    forget_unused(&mut lock(&self.servers));
                    let idle = (stream, Instant::now(), true);
                    self.with(address, |server| server.idle.push(idle));
                }
            })
            .await;
        }
    }

    fn with<T>(&self, address: SocketAddr, work: impl FnOnce(&mut Server) -> T) -> T {
        work(lock(&self.servers).entry(address).or_default())
    }
}

/// Connections to servers that are gone are not kept for ever.
fn forget_unused(servers: &mut HashMap<SocketAddr, Server>) {
    servers.retain(|_, server| {
        server.idle.retain(is_fresh);
        server.is_used()
    });
}

impl Opening {
    /// Whether there will be a result. A task that has panicked is gone and leaves none.
    fn is_under_way(&self) -> bool {
        self.result.has_changed().is_ok() && self.result.borrow().is_none()
    }
}

/// Opens a connection.
async fn open(
    tls: &Arc<ClientConfig>,
    name: &str,
    address: SocketAddr,
    window: u32,
) -> pingora_core::Result<New> {
    let stream = dial(address, name, tls).await?;
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

/// Never contended: all users are on one thread, and none waits while it holds the lock.
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
