//! A small HTTP client for the proxy's TLS port: one identity, one protocol, one connection that is opened on demand.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::one_task;
use super::pki::{Pki, SERVER_NAME};
use super::tls::client_config;

pub use super::streaming::{Response, Streaming};

type Body = Full<Bytes>;

/// Cloning shares the connection; methods that change the client return one with a new connection.
#[derive(Clone)]
pub struct Client {
    settings: Settings,
    config: Arc<OnceLock<Arc<ClientConfig>>>,
    connection: Arc<Mutex<Option<Connection>>>,
}

#[derive(Clone)]
struct Settings {
    addr: SocketAddr,
    pki: PathBuf,
    ca: String,
    server_name: String,
    identity: Option<String>,
    alpn: Vec<&'static str>,
    versions: &'static [&'static SupportedProtocolVersion],
    from: Option<IpAddr>,
    headers: HeaderMap,
    timeout: Duration,
}

enum Connection {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Client {
    /// No certificate, no token, HTTP/2 or HTTP/1.1 as the server likes.
    pub fn new(addr: SocketAddr, pki: &Pki) -> Self {
        Self::with_settings(Settings {
            addr,
            pki: pki.dir().to_owned(),
            ca: "ca".to_owned(),
            server_name: SERVER_NAME.to_owned(),
            identity: None,
            alpn: vec!["h2", "http/1.1"],
            versions: rustls::DEFAULT_VERSIONS,
            from: None,
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(30),
        })
    }

    fn with_settings(settings: Settings) -> Self {
        Self {
            settings,
            config: Arc::default(),
            connection: Arc::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Self::with_settings(settings)
    }

    /// Shows the certificate `NAME.crt` of the PKI.
    pub fn cert(&self, name: &str) -> Self {
        self.change(|settings| settings.identity = Some(name.to_owned()))
    }

    /// Trusts `NAME.crt` instead of `ca.crt`.
    pub fn trusting(&self, ca: &str) -> Self {
        self.change(|settings| settings.ca = ca.to_owned())
    }

    pub fn server_name(&self, name: &str) -> Self {
        self.change(|settings| settings.server_name = name.to_owned())
    }

    pub fn token(&self, token: &str) -> Self {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token");
        self.change(|settings| {
            settings.headers.insert(AUTHORIZATION, value);
        })
    }

    /// Adds a header to every request; an earlier one of that name stays.
    pub fn header(&self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header name");
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
        self.change(|settings| {
            settings.headers.append(name, value);
        })
    }

    pub fn http1(&self) -> Self {
        self.change(|settings| settings.alpn = vec!["http/1.1"])
    }

    pub fn http2(&self) -> Self {
        self.change(|settings| settings.alpn = vec!["h2"])
    }

    /// TLS 1.2 only, or 1.3 only.
    pub fn tls(&self, versions: &'static [&'static SupportedProtocolVersion]) -> Self {
        self.change(|settings| settings.versions = versions)
    }

    /// Connects from this address of the machine.
    pub fn from(&self, address: IpAddr) -> Self {
        self.change(|settings| settings.from = Some(address))
    }

    /// How long a response header, and then the whole body, may take.
    pub fn timeout(&self, timeout: Duration) -> Self {
        self.change(|settings| settings.timeout = timeout)
    }

    /// The same client on a new connection (and without the old TLS session).
    pub fn fresh(&self) -> Self {
        self.change(|_| {})
    }

    /// Forgets the connection; the next request opens another, with the TLS session of this one.
    pub async fn reconnect(&self) {
        *self.connection.lock().await = None;
    }

    /// Opens the connection, unless there is one. After an error nothing was sent.
    pub async fn connect_first(&self) -> anyhow::Result<()> {
        let connection = timeout(self.settings.timeout, self.take())
            .await
            .context("no connection")??;
        if let Connection::Http1(_) = connection {
            *self.connection.lock().await = Some(connection);
        }
        Ok(())
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request("GET", path, "").await
    }

    /// Panics if no complete response arrives.
    pub async fn request(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Response {
        self.try_request(method, path, body)
            .await
            .unwrap_or_else(|error| panic!("{method} {path} at {}: {error:#}", self.settings.addr))
    }

    pub async fn try_get(&self, path: &str) -> anyhow::Result<Response> {
        self.try_request("GET", path, "").await
    }

    pub async fn try_request(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Response> {
        let streaming = self.try_open(method, path, body).await?;
        timeout(self.settings.timeout, streaming.collect())
            .await
            .context("no end of the body")?
    }

    /// Returns as soon as the response header is there; dropping the result abandons the request.
    pub async fn open(&self, path: &str) -> Streaming {
        self.try_open("GET", path, "")
            .await
            .unwrap_or_else(|error| panic!("GET {path} at {}: {error:#}", self.settings.addr))
    }

    pub async fn try_open(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Streaming> {
        let body = body.into();
        let response = timeout(self.settings.timeout, self.send(method, path, body))
            .await
            .context("no response header")??;
        Ok(Streaming::new(response))
    }

    /// A bare TLS connection, for bytes that no HTTP library would send.
    pub async fn connect_raw(&self, alpn: &[&str]) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut config = self.config().as_ref().clone();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        self.connect_with(Arc::new(config)).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let method: Method = method.parse()?;
        match self.take().await? {
            Connection::Http2(mut sender) => {
                let request = self.build(method, path, body, Version::HTTP_2)?;
                Ok(sender.send_request(request).await?)
            }
            Connection::Http1(mut sender) => {
                let request = self.build(method, path, body, Version::HTTP_11)?;
                let response = sender.send_request(request).await?;
                *self.connection.lock().await = Some(Connection::Http1(sender));
                Ok(response)
            }
        }
    }

    /// The kept connection, or a new one. HTTP/2's stays for others to use, HTTP/1.1's is the caller's alone.
    async fn take(&self) -> anyhow::Result<Connection> {
        let mut slot = self.connection.lock().await;
        match slot.take() {
            Some(Connection::Http1(mut sender)) => {
                // Not ready: a body is still arriving on it.
                if let Ok(Ok(())) = timeout(Duration::from_millis(100), sender.ready()).await {
                    return Ok(Connection::Http1(sender));
                }
            }
            Some(Connection::Http2(sender)) if !sender.is_closed() => {
                *slot = Some(Connection::Http2(sender.clone()));
                return Ok(Connection::Http2(sender));
            }
            _ => {}
        }
        let connection = self.connect().await?;
        if let Connection::Http2(sender) = &connection {
            *slot = Some(Connection::Http2(sender.clone()));
        }
        Ok(connection)
    }

    fn build(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        version: Version,
    ) -> anyhow::Result<Request<Body>> {
        let host = self.settings.server_name.as_str();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = self.settings.headers.clone();
        if version == Version::HTTP_2 {
            *request.version_mut() = version;
            *request.uri_mut() = http::Uri::builder()
                .scheme("https")
                .authority(host)
                .path_and_query(path)
                .build()?;
        } else {
            *request.uri_mut() = path.parse()?;
            let host = HeaderValue::from_str(host)?;
            request.headers_mut().entry("host").or_insert(host);
        }
        Ok(request)
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let tls = self.connect_with(self.config()).await?;
        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(tls);
        if http2 {
            Ok(Connection::Http2(one_task::http2(io).await?))
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection.with_upgrades());
            Ok(Connection::Http1(sender))
        }
    }

    async fn connect_with(
        &self,
        config: Arc<ClientConfig>,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let socket = match self.settings.addr {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(address) = self.settings.from {
            socket.bind(SocketAddr::new(address, 0))?;
        }
        let tcp = socket
            .connect(self.settings.addr)
            .await
            .context("connect")?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.settings.server_name.clone())?;
        TlsConnector::from(config)
            .connect(name, tcp)
            .await
            .context("TLS handshake")
    }

    fn config(&self) -> Arc<ClientConfig> {
        let build = || {
            let Settings {
                pki,
                ca,
                identity,
                alpn,
                versions,
                ..
            } = &self.settings;
            let files = identity.as_ref().map(|name| {
                (
                    pki.join(format!("{name}.crt")),
                    pki.join(format!("{name}.key")),
                )
            });
            let files = files
                .as_ref()
                .map(|(cert, key)| (cert.as_path(), key.as_path()));
            let ca = pki.join(format!("{ca}.crt"));
            Arc::new(client_config(&ca, files, alpn, versions))
        };
        Arc::clone(self.config.get_or_init(build))
    }
}
