//! Serves connections of the secure admin port: their handshakes, and their requests over HTTP/1.1.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::{HeaderMap, Response, StatusCode};
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use pingora_core::protocols::tls::TlsRef;
use pingora_core::protocols::tls::server::handshake_with_callback;
use pingora_core::{ErrorType, OrErr};
use pingora_http::ResponseHeader;
use rustls::ServerConfig;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::gate::Gate;
use super::review::{PATH, Reviewer, Verdict};
use crate::admin::accept::AdminPort;
use crate::admin::pages::{AdminResponse, Pages, Reasons, TEXT, not_found, respond};
use crate::admin::predecessor::AdminListener;
use crate::client::ClientMaker;
use crate::net::files;
use crate::relay::shared::Shared;
use crate::request::caller::ClientConnection;
use crate::server::accept::in_turn;
use crate::tls::serving::ServingTls;

const PORT: AdminPort = AdminPort {
    name: "secure admin port",
    most: 64,
    // Enough for a request, unless the apiserver is slow or many ask at once.
    grace: Duration::from_secs(1),
    may_use: |tcp| files::is_for_requests(tcp),
};
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the whole header of the first request.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// For that of a further one: Prometheus comes back on the same connection after its scrape interval.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// For an answer, which waits for the apiserver.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What the port answers with.
pub struct SecureInputs {
    pub pages: Arc<Pages>,
    pub shared: Arc<Shared>,
    /// The TLS port's configuration: the same certificates, and the same CAs of clients.
    pub tls: Arc<ArcSwap<ServingTls>>,
    /// Of clients for the local apiserver.
    pub maker: Arc<ClientMaker>,
}

struct Port {
    pages: Arc<Pages>,
    gate: Gate,
    tls: Arc<ArcSwap<ServingTls>>,
    /// Held during the expensive part of a handshake: anyone can begin one, and control work shares the threads.
    handshake_lock: Mutex<()>,
}

/// Serves until dropped.
pub async fn run(listener: AdminListener, inputs: SecureInputs) {
    let shared = inputs.shared;
    let address = shared.config.api_server.address;
    let reviewer = Reviewer::new(inputs.maker, address, shared.local.clone());
    let port = Arc::new(Port {
        pages: inputs.pages,
        gate: Gate::new(shared, reviewer),
        tls: inputs.tls,
        handshake_lock: Mutex::default(),
    });
    let serve = |tcp, from| {
        let port = port.clone();
        async move { port.serve(tcp, from).await }
    };
    PORT.accept(listener.bound().await, serve).await;
}

impl Port {
    async fn serve(&self, tcp: tokio::net::TcpStream, from: SocketAddr) {
        let handshake = timeout(HANDSHAKE_TIMEOUT, self.handshake(tcp, from));
        let Ok(Ok(stream)) = handshake.await else {
            return tracing::debug!(client = %from, "TLS handshake on the secure admin port failed");
        };
        let Some(digest) = stream.get_ssl_digest() else {
            return;
        };
        let Some(connection) = digest.extension.get::<ClientConnection>() else {
            return;
        };
        let (mut next, mut time) = (Some(stream), FIRST_TIMEOUT);
        while let Some(stream) = next {
            let mut session = ServerSession::new_http1(stream);
            session.set_keepalive(Some(IDLE_TIMEOUT.as_secs()));
            // Errors of pingora's can have the header in them, with the token: they are not logged.
            let read = timeout(time, session.read_request()).await;
            if !matches!(read, Ok(Ok(true))) {
                return;
            }
            let answered = timeout(ANSWER_TIMEOUT, self.answer(session, connection)).await;
            (next, time) = (answered.ok().flatten(), IDLE_TIMEOUT);
        }
    }

    async fn handshake(
        &self,
        tcp: tokio::net::TcpStream,
        from: SocketAddr,
    ) -> pingora_core::Result<Stream> {
        const WHAT: &str = "waiting for its beginning";
        tcp.readable()
            .await
            .or_err(ErrorType::TLSHandshakeFailure, WHAT)?;
        let local = tcp.local_addr().ok().map(|address| address.ip());
        let mut config = ServerConfig::clone(self.tls.load().at(local));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = Acceptor::from_server_config(Arc::new(config));
        let mut tcp = TcpStream::from(tcp);
        tcp.set_nodelay()?;
        let callback = Handshake { from };
        let handshake = handshake_with_callback(&acceptor, tcp, &callback);
        Ok(Box::new(in_turn(&self.handshake_lock, handshake).await?))
    }

    /// Answers a request. Returns the stream if another one may follow.
    async fn answer(
        &self,
        mut session: ServerSession,
        connection: &ClientConnection,
    ) -> Option<Stream> {
        let has_body = !session.is_body_empty();
        session.set_keepalive((!has_body).then_some(IDLE_TIMEOUT.as_secs()));
        let response = self.response(&session, connection).await;
        let (parts, body) = response.into_parts();
        let header = Box::new(ResponseHeader::from(parts));
        session.write_response_header(header).await.ok()?;
        if !body.is_empty() {
            session.write_response_body(body.into(), true).await.ok()?;
        }
        if has_body {
            return None;
        }
        let (stream, begun) = session.finish().await.ok()??.into_parts();
        // Nobody who reads metrics sends requests ahead.
        begun.is_none_or(|begun| begun.is_empty()).then_some(stream)
    }

    async fn response(
        &self,
        session: &ServerSession,
        connection: &ClientConnection,
    ) -> Response<Vec<u8>> {
        let request = session.req_header();
        respond(&request.method, async || match request.uri.path() {
            "/livez" => self.pages.livez(),
            "/readyz" => self.pages.readyz(request.uri.query(), Reasons::Withheld),
            PATH => self.metrics(connection, &request.headers).await,
            _ => not_found(),
        })
        .await
    }

    async fn metrics(&self, connection: &ClientConnection, headers: &HeaderMap) -> AdminResponse {
        let (code, text) = match self.gate.verdict(connection, headers).await {
            Some(Verdict::Allowed) => return self.pages.metrics(),
            None => {
                let text =
                    "a bearer token or a client certificate of serving.clientCAFile is needed";
                (StatusCode::UNAUTHORIZED, text.to_owned())
            }
            Some(Verdict::Unknown) => {
                let text = "the apiserver does not know this token";
                (StatusCode::UNAUTHORIZED, text.to_owned())
            }
            Some(Verdict::Forbidden(user)) => {
                let text = format!("user {user:?} may not get {PATH}");
                (StatusCode::FORBIDDEN, text)
            }
            Some(Verdict::Unavailable(why)) => {
                let text = format!("the apiserver does not say who may get {PATH}: {why}");
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        };
        (code, TEXT, text + "\n")
    }
}

/// Attaches a [`ClientConnection`] to each connection.
struct Handshake {
    from: SocketAddr,
}

#[async_trait]
impl TlsAccept for Handshake {
    async fn handshake_complete_callback(
        &self,
        tls: &TlsRef,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let chain = tls.peer_cert_chain_der();
        let chain = chain.map(<[_]>::to_vec).unwrap_or_default();
        let address = self.from.ip().to_canonical();
        Some(Arc::new(ClientConnection::new(address, 0, chain)))
    }
}
