//! A TLS server with scripted answers, and a client for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{Client, ClientMaker};
use crate::config::KeyPair;
use crate::tls::credentials::{Credentials, Current, Trust};
use crate::tls::files::{FileSnapshot, TlsFile};
use crate::tls::store;

/// How the server reacts to a request.
pub(crate) enum Reply {
    ClientResponse(Response<Bytes>),
    /// The connection is closed instead of an answer.
    Break,
    /// No answer; the connection stays open.
    Silence,
}

impl Reply {
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Self {
        let mut answer = Response::new(body.into());
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            answer
                .headers_mut()
                .append(name, HeaderValue::from_str(value).unwrap());
        }
        Self::ClientResponse(answer)
    }
}

type Handler = Arc<dyn Fn(Request<Bytes>) -> Reply + Send + Sync>;

/// The server; stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    files: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Starts it. `handler` gets every request.
    pub(crate) async fn start(
        handler: impl Fn(Request<Bytes>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let made = rcgen::generate_simple_self_signed(["server.test".to_owned()]).unwrap();
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("cert"), made.cert.pem()).unwrap();
        std::fs::write(files.path().join("key"), made.signing_key.serialize_pem()).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let tls = ServerConfig::builder_with_provider(store::PROVIDER.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(tls)),
            Arc::new(handler),
            connections.clone(),
        ));
        Self {
            address,
            connections,
            files,
            _tasks: tasks,
        }
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn client(&self, identity: HeaderMap, timeout: Duration) -> Client {
        self.client_for(self.address, "server.test", identity, timeout)
    }

    pub(crate) fn client_for(
        &self,
        address: SocketAddr,
        name: &str,
        identity: HeaderMap,
        timeout: Duration,
    ) -> Client {
        let credentials = Arc::new(ArcSwap::from_pointee(self.credentials()));
        self.client_with(credentials, address, name, identity, timeout)
    }

    pub(crate) fn client_with(
        &self,
        credentials: Current,
        address: SocketAddr,
        name: &str,
        identity: HeaderMap,
        timeout: Duration,
    ) -> Client {
        let maker = ClientMaker::new(name, credentials, |all| &all.local, identity, timeout);
        Arc::new(maker.unwrap()).client(address)
    }

    /// The CA of the server's certificate.
    pub(crate) fn credentials(&self) -> Credentials {
        let pair = KeyPair {
            cert_file: self.files.path().join("cert"),
            key_file: self.files.path().join("key"),
        };
        let files = [
            TlsFile::new("cert", &pair.cert_file),
            TlsFile::new("key", &pair.key_file),
        ];
        let trust = Trust::read(&pair.cert_file, &pair, &FileSnapshot::read(&files)).unwrap();
        let trust = Arc::new(trust);
        Credentials {
            local: trust.clone(),
            peers: trust,
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    handler: Handler,
    connections: Arc<AtomicUsize>,
) {
    let mut open = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        connections.fetch_add(1, Ordering::SeqCst);
        let (tls, handler) = (tls.clone(), handler.clone());
        open.spawn(async move {
            // A client that does not trust the certificate disconnects here.
            let Ok(stream) = tls.accept(tcp).await else {
                return;
            };
            let service = service_fn(|request| answer(request, handler.clone()));
            // Fails if the test wants it to.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    handler: Handler,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?;
    match handler(Request::from_parts(head, body.to_bytes())) {
        Reply::ClientResponse(answer) => Ok(answer.map(Full::new)),
        Reply::Break => Err(std::io::Error::other("as the test says")),
        Reply::Silence => std::future::pending().await,
    }
}
