//! The one HTTP client for requests that the proxy makes itself.
//!
//! A [`ClientMaker`] has the trusted CAs, the proxy client certificate and the identity that it asserts. A [`Client`]
//! has one connection to one server and reconnects when it breaks. [`Client::get`] tries once; [`Client::call`] retries
//! like client-go ([`retry`]); [`Client::ended`] reports the end of an idle connection. After a rotation of
//! certificates the next request uses the new ones, over a new connection.

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
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
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

use crate::config::{Config, RequestHeaders};
use crate::kube::media_type;
use crate::tls::credentials::{Credentials, Current, Trust};

/// Largest body that is read, in bytes. The largest discovery documents have some hundred KiB.
const MAX_BODY: usize = 64 << 20;

/// How the proxy calls itself.
const NAME: &str = concat!("kube-interop-proxy/", env!("CARGO_PKG_VERSION"));

/// A connection to the server.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Ends with the sender, or with the server.
    task: JoinHandle<hyper::Result<()>>,
    /// The credentials that it was made with.
    tls: Arc<ClientConfig>,
}

/// How the server ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The server closed it with TLS close_notify, as Go's server always does.
    Closed,
    /// Without close_notify: the process died, or the network failed.
    Broken,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Connection refused: the process is gone.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// TCP or TLS failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection broke during the exchange.
    #[error("broken exchange")]
    Exchange(#[source] Broken),
}

/// Why an exchange has ended too early.
pub type Broken = Box<dyn std::error::Error + Send + Sync>;

/// An answer, read completely.
#[derive(Debug)]
pub struct ClientResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Makes clients for servers with the same trusted CAs.
pub struct ClientMaker {
    name: ServerName<'static>,
    pub credentials: Current,
    trust: fn(&Credentials) -> &Trust,
    identity: HeaderMap,
    timeout: Duration,
}

/// No client can be made: this is no server's name, or no user's in a header. Validation of the configuration excludes
/// that.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} cannot be the name of a server or of a user")]
pub struct MakerError(String);

/// Headers that assert the identity, with the first requestheader name of each kind.
pub fn identity(
    names: &RequestHeaders,
    user: &str,
    groups: &[&str],
) -> Result<HeaderMap, MakerError> {
    let value = |text: &str| HeaderValue::try_from(text).map_err(|_| MakerError(text.to_owned()));
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
    /// `trust`: selects the credentials for these servers. `identity`: headers of every request. `timeout`: of one
    /// attempt.
    pub fn new(
        server_name: &str,
        credentials: Current,
        trust: fn(&Credentials) -> &Trust,
        identity: HeaderMap,
        timeout: Duration,
    ) -> Result<Self, MakerError> {
        let name = ServerName::try_from(server_name.to_owned());
        Ok(Self {
            name: name.map_err(|_| MakerError(server_name.to_owned()))?,
            credentials,
            trust,
            identity,
            timeout,
        })
    }

    /// Of clients for peers.
    pub fn of_peers(
        config: &Config,
        credentials: Current,
        identity: HeaderMap,
        timeout: Duration,
    ) -> Result<Self, MakerError> {
        let name = &config.peer.server_name;
        Self::new(name, credentials, |of| &of.peers, identity, timeout)
    }

    /// A client of the server at `address`, without a connection yet.
    pub fn client(self: &Arc<Self>, address: SocketAddr) -> Client {
        Client {
            maker: self.clone(),
            address,
            connection: None,
            connections: 0,
            end: None,
        }
    }

    /// The current credentials.
    fn tls(&self) -> Arc<ClientConfig> {
        let credentials = self.credentials.load();
        (self.trust)(&credentials).with_certificate.clone()
    }

    async fn connect(&self, address: SocketAddr) -> Result<Connection, ClientError> {
        let tls = self.tls();
        let connecting = async {
            let tcp = TcpStream::connect(address).await?;
            let connector = TlsConnector::from(tls.clone());
            connector.connect(self.name.clone(), tcp).await
        };
        let stream = connecting.await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => ClientError::Refused,
            _ => ClientError::Connect(error),
        })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ClientError::Exchange(error.into()))?;
        let task = tokio::spawn(connection);
        Ok(Connection { sender, task, tls })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.name.to_str().as_ref())
            .header(USER_AGENT, NAME)
            .header(ACCEPT, media_type::JSON);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, media_type::JSON);
        }
        if let Some(map) = request.headers_mut() {
            map.extend(headers);
            map.extend(self.identity.clone());
        }
        request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| ClientError::Exchange(error.into()))
    }
}

/// Sends requests over one keep-alive connection at a time.
pub struct Client {
    maker: Arc<ClientMaker>,
    address: SocketAddr,
    connection: Option<Connection>,
    connections: u64,
    /// How the last connection ended, if it was found dead or died during a request.
    end: Option<ConnectionEnd>,
}

impl Client {
    /// Sends a GET once, with the configured timeout.
    pub async fn get(&mut self, path: &str) -> Result<ClientResponse, ClientError> {
        self.get_with(path, HeaderMap::new()).await
    }

    /// Sends a GET with these headers once, with the configured timeout.
    pub async fn get_with(
        &mut self,
        path: &str,
        headers: HeaderMap,
    ) -> Result<ClientResponse, ClientError> {
        let request = self.maker.request(Method::GET, path, headers, None)?;
        self.once(request, self.maker.timeout).await
    }

    /// Sends a request and retries it ([`retry::pause`]) until the result is final or `deadline` is reached. Returns
    /// the last answer or error. The body is JSON unless `headers` say otherwise.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
        deadline: Instant,
    ) -> Result<ClientResponse, ClientError> {
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

    /// How often it has connected. As long as that stays the same, so does the process that answers.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Drops the connection: the next request opens a new one.
    pub fn reset(&mut self) {
        self.connection = None;
        self.end = None;
    }

    /// Resolves when the server has ended the connection, once for each end, also if a request found out. Does not
    /// resolve while there is no connection. Cancel safe.
    pub async fn ended(&mut self) -> ConnectionEnd {
        if let Some(end) = self.end.take() {
            return end;
        }
        let Some(connection) = &mut self.connection else {
            return std::future::pending().await;
        };
        let end = end_of((&mut connection.task).await);
        self.connection = None;
        end
    }

    async fn once(
        &mut self,
        request: Request<Full<Bytes>>,
        time: Duration,
    ) -> Result<ClientResponse, ClientError> {
        // A connection with an unfinished exchange cannot be reused: `exchange` puts it back only at its end.
        let outcome = tokio::time::timeout(time, self.exchange(request)).await;
        let outcome = outcome.unwrap_or(Err(ClientError::Timeout(time)));
        if outcome.as_ref().is_err_and(|error| is_cut(error)) {
            self.end = Some(ConnectionEnd::Broken);
        }
        outcome
    }

    /// The previous connection, if it is still usable.
    async fn reused(&mut self) -> Option<Connection> {
        let mut connection = self.connection.take()?;
        if !Arc::ptr_eq(&connection.tls, &self.maker.tls()) {
            return None;
        }
        if connection.sender.ready().await.is_ok() {
            return Some(connection);
        }
        self.end = Some(end_of(connection.task.await));
        None
    }

    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<ClientResponse, ClientError> {
        let mut connection = match self.reused().await {
            Some(connection) => connection,
            None => {
                self.connections += 1;
                self.maker.connect(self.address).await?
            }
        };
        let answer = answer(&mut connection.sender, request).await;
        let answer = answer.map_err(ClientError::Exchange)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// Sends a request, and reads its answer completely.
pub async fn answer(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<ClientResponse, Broken> {
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(ClientResponse {
        status: head.status,
        headers: head.headers,
        body: Limited::new(body, MAX_BODY).collect().await?.to_bytes(),
    })
}

fn end_of(task: Result<hyper::Result<()>, tokio::task::JoinError>) -> ConnectionEnd {
    match task {
        Ok(Err(error)) if is_cut(&error) => ConnectionEnd::Broken,
        _ => ConnectionEnd::Closed,
    }
}

/// Whether the connection was cut without close_notify.
fn is_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        matches!(
            error.downcast_ref().map(io::Error::kind),
            Some(UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
        )
    })
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
