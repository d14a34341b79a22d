//! The proxy's own requests to its apiserver: health, version, index and discovery, nothing else.
//!
//! They assert `apiServer.internalUser` through the requestheader names, over a connection with the proxy client
//! certificate. One connection, made anew when it broke.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::ApiServer;
use crate::config::RequestHeaders;
use crate::tls::store::{self, TlsError};

/// Largest answer read. The biggest discovery documents have some hundred KiB.
const MAX_BODY: usize = 64 << 20;

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

/// Makes clients that share one TLS configuration.
pub struct ClientMaker {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: TlsConnector,
    identity: HeaderMap,
    timeout: Duration,
}

/// A name that is no server name; the configuration is checked for it.
#[derive(Debug, thiserror::Error)]
pub enum MakerError {
    /// Certificate files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// `apiServer.serverName`.
    #[error("apiServer.serverName is no server name")]
    Name,
    /// `apiServer.internalUser`.
    #[error("apiServer.internalUser cannot be a header value")]
    User,
}

impl ClientMaker {
    /// Reads the certificate files.
    pub fn new(
        config: &ApiServer,
        names: &RequestHeaders,
        timeout: Duration,
    ) -> Result<Self, MakerError> {
        let tls: ClientConfig = store::client(&config.ca_file, Some(&config.proxy_client))?;
        let user = HeaderValue::try_from(&config.internal_user).map_err(|_| MakerError::User)?;
        let mut identity = HeaderMap::new();
        identity.extend(names.username.first().map(|name| (name.clone(), user)));
        identity.extend(
            names
                .group
                .first()
                .map(|name| (name.clone(), HeaderValue::from_static("system:masters"))),
        );
        Ok(Self {
            address: config.address,
            name: ServerName::try_from(config.server_name.clone()).map_err(|_| MakerError::Name)?,
            tls: TlsConnector::from(Arc::new(tls)),
            identity,
            timeout,
        })
    }

    /// A client without a connection yet.
    pub fn client(self: &Arc<Self>) -> Client {
        Client {
            maker: self.clone(),
            connection: None,
        }
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>, ClientError> {
        let tcp = TcpStream::connect(self.address)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => ClientError::Refused,
                _ => ClientError::Connect(error),
            })?;
        let tls = self
            .tls
            .connect(self.name.clone(), tcp)
            .await
            .map_err(ClientError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls))
            .await
            .map_err(exchange)?;
        // Ends with the sender, or with the server.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// One keep-alive connection's worth of requests.
pub struct Client {
    maker: Arc<ClientMaker>,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Client {
    /// GET, within the configured time.
    pub async fn get(
        &mut self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, ClientError> {
        let timeout = self.maker.timeout;
        let answer = tokio::time::timeout(timeout, self.exchange(path, headers)).await;
        // A connection with half an exchange on it is of no use.
        let answer = answer.unwrap_or(Err(ClientError::Timeout(timeout)));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// The connection of the exchange before, if it is still good.
    async fn reused(&mut self) -> Option<SendRequest<Empty<Bytes>>> {
        let mut sender = self.connection.take()?;
        sender.ready().await.is_ok().then_some(sender)
    }

    async fn exchange(
        &mut self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, ClientError> {
        let mut sender = match self.reused().await {
            Some(sender) => sender,
            None => self.maker.connect().await?,
        };
        let mut request = Request::get(path)
            .header(HOST, self.maker.name.to_str().as_ref())
            .header(
                USER_AGENT,
                concat!("kube-interop-proxy/", env!("CARGO_PKG_VERSION")),
            )
            .header(ACCEPT, "application/json");
        if let Some(map) = request.headers_mut() {
            map.extend(
                self.maker
                    .identity
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
            for (name, value) in headers {
                map.insert(name.clone(), value.clone());
            }
        }
        let request = request
            .body(Empty::new())
            .map_err(|error| ClientError::Exchange(error.into()))?;
        let (head, body) = sender
            .send_request(request)
            .await
            .map_err(exchange)?
            .into_parts();
        let body = Limited::new(body, MAX_BODY)
            .collect()
            .await
            .map_err(ClientError::Exchange)?
            .to_bytes();
        self.connection = Some(sender);
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
        })
    }
}

fn exchange(error: hyper::Error) -> ClientError {
    ClientError::Exchange(error.into())
}
