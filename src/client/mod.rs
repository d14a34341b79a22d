//! The one HTTP client for requests that the proxy makes itself.
//!
//! A [`ClientMaker`] knows what servers are trusted, the proxy client certificate and the identity that is asserted with
//! it; a [`Client`] has one connection to one of them, made anew when it broke. [`Client::get`] tries once,
//! [`Client::call`] as often as client-go would ([`retry`]); [`Client::ended`] tells of the connection's end while nothing
//! is asked. A request after new certificates is made with them, over a new connection.

pub mod retry;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rand::Rng;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::config::RequestHeaders;
use crate::tls::credentials::{Credentials, Current, Trust};

/// Largest answer read. The biggest discovery documents have some hundred KiB.
const MAX_BODY: usize = 64 << 20;
const JSON: &str = "application/json";

/// A connection to the server.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Ends with the sender, or with the server.
    task: JoinHandle<hyper::Result<()>>,
    /// What it was made with.
    tls: Arc<ClientConfig>,
}

/// How a connection ended that we did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server said farewell (TLS close_notify), as Go's does when it closes a connection for whatever reason.
    Closed,
    /// It did not: the process died, or the network cut in.
    Broken,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens: the process is gone.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// TCP or TLS failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The exchange broke off.
    #[error("broken exchange")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An answer, read completely.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// Makes clients for servers that are trusted alike.
pub struct ClientMaker {
    name: ServerName<'static>,
    credentials: Current,
    trust: fn(&Credentials) -> &Trust,
    identity: HeaderMap,
    timeout: Duration,
}

/// Why there can be no client. The configuration is checked for all of it.
#[derive(Debug, thiserror::Error)]
pub enum MakerError {
    /// Not a name that a certificate could have.
    #[error("{0:?} is no server name")]
    Name(String),
    /// Not a header value.
    #[error("{0:?} cannot be asserted in a header")]
    Identity(String),
}

/// Headers that say who asks, by the first of the requestheader names of each kind.
pub fn identity(
    names: &RequestHeaders,
    user: &str,
    groups: &[&str],
) -> Result<HeaderMap, MakerError> {
    let value =
        |text: &str| HeaderValue::try_from(text).map_err(|_| MakerError::Identity(text.to_owned()));
    let mut identity = HeaderMap::new();
    if let Some(name) = names.username.first() {
        identity.append(name, value(user)?);
    }
    if let Some(name) = names.group.first() {
        for group in groups {
            identity.append(name, value(group)?);
        }
    }
    Ok(identity)
}

impl ClientMaker {
    /// `trust`: what of the credentials is for these servers; `identity`: headers of every request; `timeout`: of one try.
    pub fn new(
        server_name: &str,
        credentials: Current,
        trust: fn(&Credentials) -> &Trust,
        identity: HeaderMap,
        timeout: Duration,
    ) -> Result<Self, MakerError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| MakerError::Name(server_name.to_owned()))?;
        Ok(Self {
            name,
            credentials,
            trust,
            identity,
            timeout,
        })
    }

    /// A client of the server at `address`, without a connection yet.
    pub fn client(self: &Arc<Self>, address: SocketAddr) -> Client {
        Client {
            maker: self.clone(),
            address,
            connection: None,
            end: None,
        }
    }

    /// What connections are made with now.
    fn tls(&self) -> Arc<ClientConfig> {
        (self.trust)(&self.credentials.load())
            .with_certificate
            .clone()
    }

    async fn connect(&self, address: SocketAddr) -> Result<Connection, ClientError> {
        let config = self.tls();
        let tcp = TcpStream::connect(address)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => ClientError::Refused,
                _ => ClientError::Connect(error),
            })?;
        let tls = TlsConnector::from(config.clone())
            .connect(self.name.clone(), tcp)
            .await
            .map_err(ClientError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls))
            .await
            .map_err(exchange)?;
        let task = tokio::spawn(connection);
        Ok(Connection {
            sender,
            task,
            tls: config,
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.name.to_str().as_ref())
            .header(
                USER_AGENT,
                concat!("kube-interop-proxy/", env!("CARGO_PKG_VERSION")),
            )
            .header(ACCEPT, JSON);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, JSON);
        }
        if let Some(map) = request.headers_mut() {
            for (name, value) in headers {
                map.insert(name, value.clone());
            }
            map.extend(self.identity.clone());
        }
        request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| ClientError::Exchange(error.into()))
    }
}

/// One keep-alive connection's worth of requests.
pub struct Client {
    maker: Arc<ClientMaker>,
    address: SocketAddr,
    connection: Option<Connection>,
    /// How a connection ended that was found dead, or died under a request.
    end: Option<End>,
}

impl Client {
    /// GET, tried once, within the configured time.
    pub async fn get(
        &mut self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, ClientError> {
        let request = self.maker.request(Method::GET, path, headers, None)?;
        self.once(request, self.maker.timeout).await
    }

    /// Any request, tried until there is an answer that stands, but not beyond `deadline`; then the last answer or error
    /// counts. What is tried again, and when, says [`retry::pause`]. A body is JSON unless `headers` say otherwise.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Option<Bytes>,
        deadline: Instant,
    ) -> Result<Answer, ClientError> {
        let request = self.maker.request(method, path, headers, body)?;
        let mut tries = 0;
        loop {
            let time = left(deadline).min(self.maker.timeout);
            let outcome = self.once(request.clone(), time).await;
            tries += 1;
            let random = rand::thread_rng().r#gen();
            match retry::pause(request.method(), tries, &outcome, left(deadline), random) {
                None => return outcome,
                Some(pause) => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Drops the connection: the next request opens a new one.
    pub fn reset(&mut self) {
        self.connection = None;
        self.end = None;
    }

    /// Resolves when the server has ended the connection, once for each end; also when that was found out by a request.
    /// Does not resolve while there is no connection. May be given up and called again.
    pub async fn ended(&mut self) -> End {
        if let Some(end) = self.end.take() {
            return end;
        }
        let Some(connection) = &mut self.connection else {
            return std::future::pending().await;
        };
        let end = End::of((&mut connection.task).await);
        self.connection = None;
        end
    }

    async fn once(
        &mut self,
        request: Request<Full<Bytes>>,
        time: Duration,
    ) -> Result<Answer, ClientError> {
        // A connection with half an exchange on it is of no use: `exchange` puts it back only at its end.
        let outcome = tokio::time::timeout(time, self.exchange(request))
            .await
            .unwrap_or(Err(ClientError::Timeout(time)));
        if let Err(error) = &outcome
            && is_cut(error)
        {
            self.end = Some(End::Broken);
        }
        outcome
    }

    /// The connection of the exchange before, if it is still good.
    async fn reused(&mut self) -> Option<Connection> {
        let mut connection = self.connection.take()?;
        if !Arc::ptr_eq(&connection.tls, &self.maker.tls()) {
            return None;
        }
        if connection.sender.ready().await.is_ok() {
            return Some(connection);
        }
        self.end = Some(End::of(connection.task.await));
        None
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, ClientError> {
        let mut connection = match self.reused().await {
            Some(connection) => connection,
            None => self.maker.connect(self.address).await?,
        };
        let (head, body) = connection
            .sender
            .send_request(request)
            .await
            .map_err(exchange)?
            .into_parts();
        let body = Limited::new(body, MAX_BODY)
            .collect()
            .await
            .map_err(ClientError::Exchange)?
            .to_bytes();
        self.connection = Some(connection);
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
        })
    }
}

impl End {
    fn of(task: Result<hyper::Result<()>, tokio::task::JoinError>) -> Self {
        match task {
            Ok(Err(error)) if is_cut(&error) => End::Broken,
            _ => End::Closed,
        }
    }
}

/// Whether an error comes from a connection that was cut, and not closed.
fn is_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let kinds = sources.filter_map(|error| error.downcast_ref().map(io::Error::kind));
    let mut cuts = kinds.filter(|kind| {
        matches!(
            kind,
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        )
    });
    cuts.next().is_some()
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn exchange(error: hyper::Error) -> ClientError {
    ClientError::Exchange(error.into())
}
