//! Connections to apiservers, and what is known of the servers behind them: which have failed, and from which
//! nothing comes ([`health`]). The plan asks which servers to avoid; an exchange takes a session and gives it back.
//!
//! There are two kinds of connection, because kube-apiserver authenticates the connection before the token: with the
//! proxy client certificate it accepts the named user and answers anonymous requests with 401. Without the certificate
//! tokens and anonymous requests work as they do without a proxy. Each thread has its own pools. Long-running requests
//! have their own connections: the unread data of a slow watcher must not use up the window of a shared connection.
//!
//! Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. So callers
//! without our certificate share connections to such a server only after an apiserver has accepted their token
//! ([`Tokens`]). Until then they use the connections of their own client's connection ([`crate::relay::client`]),
//! and cannot end other requests. Who has a certificate and is named as if unauthenticated gets a connection for each
//! request.
//!
//! When certificate files change, new pools are made ([`crate::tls::credentials`]). Running requests end on the old ones;
//! long-running requests end one after the other ([`crate::relay::watch`]).
//!
//! A request takes a stream of an open connection that has room. Otherwise it waits for one that is being opened, and
//! only as many are opened as the waiting requests need. Over HTTP/1.1 each request has a connection for itself.

pub mod health;
mod stream;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hashbrown::HashMap;
use http::Method;
use http::header::{AUTHORIZATION, HeaderMap};
use lru::LruCache;
use pingora_core::protocols::Stream;
use pingora_core::{Error, ErrorType, OkOrErr};
use rustls::ClientConfig;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use self::health::ReadBudget;
use self::stream::Connection;
pub use self::stream::{BodyPrefix, LONG_RUNNING_WINDOW, STREAM_WINDOW, UpstreamSession};
use crate::config::Config;
use crate::net::{dial, lock, rare, unbuffered};
use crate::request::token;
use crate::tls::credentials::{Credentials, Trust};

/// Most streams on one connection. A server may allow fewer.
pub const STREAMS: u32 = 128;
const UNVERIFIED_STREAMS: usize = 64;
/// New connections that a request waits for, before it opens one for itself: others may be faster each time, or the
/// server ends what it has accepted.
const ROUNDS: usize = 4;
/// Idle HTTP/1.1 connections are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

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

/// All upstream connections of one thread with the same credentials.
pub struct Upstreams {
    /// Those that all these connections are made with.
    pub credentials: Arc<Credentials>,
    /// To peers or the local apiserver; without or with our certificate; for short or long-running requests: these never
    /// share one.
    pools: [[[Arc<ConnectionPool>; 2]; 2]; 2],
    /// Reads that may leave a frozen server.
    pub read_budget: ReadBudget,
}

impl Upstreams {
    pub fn new(config: &Config, credentials: Arc<Credentials>) -> Self {
        let peers = (&config.peer.server_name, &credentials.peers);
        let local = (&config.api_server.server_name, &credentials.local);
        let pools = [peers, local].map(|(name, trust)| {
            [false, true].map(|presents_certificate| {
                let to = Upstream::new(name, trust, presents_certificate);
                let pool = |window| ConnectionPool::new(&to, STREAMS as usize, window);
                [STREAM_WINDOW, LONG_RUNNING_WINDOW].map(|window| Arc::new(pool(window)))
            })
        });
        Self {
            pools,
            credentials,
            read_budget: ReadBudget::default(),
        }
    }

    /// Connections to the local apiserver or other servers, with or without our certificate, for requests of a kind.
    pub fn pool(&self, local: bool, certificate: bool, kind: RequestKind) -> &Arc<ConnectionPool> {
        let long = kind != RequestKind::Short;
        &self.pools[usize::from(local)][usize::from(certificate)][usize::from(long)]
    }
}

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
    fn new(name: &str, trust: &Arc<Trust>, presents_certificate: bool) -> Self {
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
    /// Never contended: all users are on one thread, and none waits while it holds the lock.
    servers: Arc<Mutex<HashMap<SocketAddr, Server>>>,
}

/// The connections to one server.
#[derive(Default)]
struct Server {
    open: Vec<Arc<Connection>>,
    opening: Vec<Opening>,
    /// Streams that the server allowed on its last new connection.
    limit: Option<usize>,
    /// The server's last new connection does not have HTTP/2.
    http1: bool,
    idle: Vec<Idle>,
}

/// A connection without a request, and since when.
type Idle = (Stream, Instant);

fn is_fresh((_, since): &Idle) -> bool {
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
        self.open.retain(|connection| !connection.is_closed());
        let mut open = self.open.iter();
        open.find_map(|connection| connection.begin(most))
    }

    /// A connection that was not idle for too long.
    fn take_idle(&mut self) -> Option<Stream> {
        self.idle.retain(is_fresh);
        self.idle.pop().map(|(stream, _)| stream)
    }

    fn is_used(&self) -> bool {
        self.idle.iter().any(is_fresh)
            || self.opening.iter().any(Opening::is_under_way)
            || !self.open.iter().all(|connection| connection.is_closed())
    }

    fn add(&mut self, new: New) {
        self.http1 = matches!(new, New::Http1(_));
        match new {
            New::Http1(stream) => self.idle.push((stream, Instant::now())),
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
    fn new(to: &Upstream, streams: usize, window: u32) -> Self {
        Self {
            to: to.clone(),
            streams,
            window,
            servers: Arc::default(),
        }
    }

    /// A pool to the same servers for unverified callers of one client's connection.
    pub fn unverified(&self) -> Self {
        Self::new(&self.to, UNVERIFIED_STREAMS, LONG_RUNNING_WINDOW)
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
        while let Some(mut stream) = self.with(address, Server::take_idle) {
            if is_quiet(&mut stream) {
                return Ok((UpstreamSession::http1(stream), true));
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
            New::Http2(connection) => {
                let (session, _) = connection
                    .begin(self.streams)
                    .or_err(ErrorType::ConnectError, "closed before its first stream")?;
                Ok(session)
            }
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
                    let idle = (stream, Instant::now());
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

/// Connections to absent servers are not kept for ever.
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
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Ok(New::Http2(Connection::open(stream, window).await?)),
        _ => Ok(New::Http1(Box::new(unbuffered(stream)))),
    }
}

/// Whether an idle connection has received nothing: neither its end nor unexpected data.
fn is_quiet(stream: &mut Stream) -> bool {
    let mut discarded = [0];
    let read = tokio::task::unconstrained(stream.read(&mut discarded));
    read.now_or_never().is_none()
}

/// Most accepted tokens that are remembered. Those that were not used for longest are forgotten.
const MOST_TOKENS: usize = 16384;

/// A token's hash, keyed by a secret of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// Bearer tokens that apiservers have accepted, of one serving thread: their requests may share upstream connections.
///
/// Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. A request
/// with a token that was never accepted must not use a shared connection. A token is remembered by a keyed hash. A
/// false match costs other requests a connection, nothing more.
#[derive(Debug)]
pub struct Tokens {
    key: RandomState,
    /// Never contended: all users are on one thread, and none waits while it holds the lock.
    accepted: Mutex<LruCache<Token, ()>>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            key: RandomState::new(),
            // One with a bound would take all of its memory now.
            accepted: Mutex::new(LruCache::unbounded()),
        }
    }
}

impl Tokens {
    /// The bearer token of a request. Callers with other credentials are anonymous.
    pub fn of(&self, headers: &HeaderMap) -> Option<Token> {
        let token = headers
            .get(AUTHORIZATION)
            .filter(|_| token::is_there(headers, false))?;
        Some(Token(self.key.hash_one(token.as_bytes())))
    }

    pub fn is_known(&self, token: Token) -> bool {
        lock(&self.accepted).get(&token).is_some()
    }

    /// An apiserver answered a request with this token. Returns whether the token became known.
    ///
    /// Before kube-apiserver checks a token, it may answer 204 to OPTIONS (CORS), 400 (a malformed `timeout`), 429 (it
    /// shuts down), 431, 500, 503 (it starts or shuts down) and 504. So such codes prove nothing, nor does any answer to
    /// OPTIONS.
    pub fn answered(&self, token: Token, method: &Method, code: u16) -> bool {
        let mut accepted = lock(&self.accepted);
        match code {
            401 => {
                accepted.pop(&token);
                false
            }
            _ if *method == Method::OPTIONS => false,
            200..300 | 403 | 404 | 409 | 410 | 422 => {
                let new = accepted.put(token, ()).is_none();
                if accepted.len() > MOST_TOKENS {
                    accepted.pop_lru();
                }
                new
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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

    fn token(tokens: &Tokens, number: usize) -> Token {
        let value = HeaderValue::try_from(format!("Bearer {number}")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        tokens.of(&headers).unwrap()
    }

    #[test]
    fn a_token_is_known_from_its_first_acceptance_until_it_is_refused() {
        let tokens = Tokens::default();
        let (good, other) = (token(&tokens, 1), token(&tokens, 2));
        assert!(!tokens.is_known(good));
        for code in [101, 302, 400, 401, 408, 413, 429, 431, 500, 503] {
            tokens.answered(good, &Method::GET, code);
            assert!(!tokens.is_known(good), "{code}");
        }
        tokens.answered(good, &Method::OPTIONS, 204);
        assert!(!tokens.is_known(good), "a preflight");
        tokens.answered(good, &Method::GET, 403);
        assert!(tokens.is_known(good) && !tokens.is_known(other));
        tokens.answered(good, &Method::GET, 503);
        assert!(tokens.is_known(good));
        tokens.answered(good, &Method::GET, 401);
        assert!(!tokens.is_known(good));
    }

    #[test]
    fn only_what_an_apiserver_takes_for_a_token_is_one() {
        let tokens = Tokens::default();
        for (value, expected) in [("Bearer x", true), ("Basic eDp5", false), ("Bearer", false)] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
            assert_eq!(tokens.of(&headers).is_some(), expected, "{value:?}");
        }
    }

    #[test]
    fn tokens_that_are_used_outlive_any_number_of_others() {
        let tokens = Tokens::default();
        let good = token(&tokens, 0);
        tokens.answered(good, &Method::GET, 200);
        for number in 1..5 * MOST_TOKENS {
            tokens.answered(token(&tokens, number), &Method::GET, 200);
            if number % (MOST_TOKENS / 2) == 0 {
                assert!(tokens.is_known(good), "{number}");
            }
        }
        assert_eq!(lock(&tokens.accepted).len(), MOST_TOKENS);
    }
}
