//! Serves connections of the secure admin port: their handshakes, and their requests over HTTP/1.1.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode, request};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::gate::Gate;
use super::review::{PATH, Verdict};
use crate::admin::accept::{AdminPort, serve_http};
use crate::admin::pages::{AdminResponse, Pages, Reasons, TEXT, not_found};
use crate::admin::predecessor::AdminListener;
use crate::client::ClientMaker;
use crate::net::files;
use crate::relay::shared::Shared;
use crate::request::caller::ClientConnection;
use crate::server::accept::handshake;
use crate::tls::serving::ServingTls;

const PORT: AdminPort = AdminPort {
    name: "secure admin port",
    most: 64,
    // Enough for a request, unless the apiserver is slow or many ask at once.
    grace: Duration::from_secs(1),
    may_use: |tcp| files::is_for_requests(tcp),
};

/// What serves the connections of the port.
pub struct SecurePort {
    pages: Arc<Pages>,
    gate: Gate,
    /// The TLS port's configuration: the same certificates, and the same CAs of clients.
    tls: Arc<ArcSwap<ServingTls>>,
    /// Held during the expensive part of a handshake: anyone can begin one, and control work shares the threads.
    handshake_lock: Mutex<()>,
}

impl SecurePort {
    /// `maker`: of clients for the local apiserver.
    pub fn new(
        pages: Arc<Pages>,
        shared: Arc<Shared>,
        tls: Arc<ArcSwap<ServingTls>>,
        maker: Arc<ClientMaker>,
    ) -> Self {
        Self {
            pages,
            gate: Gate::new(shared, maker),
            tls,
            handshake_lock: Mutex::default(),
        }
    }

    /// Serves until dropped.
    pub async fn run(self, listener: AdminListener) {
        let port = Arc::new(self);
        let serve = |tcp, from| {
            let port = port.clone();
            async move { port.serve(tcp, from).await }
        };
        PORT.accept(listener.bound().await, serve).await;
    }

    async fn serve(&self, tcp: TcpStream, from: SocketAddr) {
        let config = |local| {
            let mut config = ServerConfig::clone(self.tls.load().at(local));
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        };
        let Ok(stream) = handshake(tcp, &self.handshake_lock, config).await else {
            return tracing::debug!(client = %from, "TLS handshake on the secure admin port failed");
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let connection = ClientConnection::new(from.ip().to_canonical(), 0, chain.to_vec());
        serve_http(stream, |request| self.answer(request, &connection)).await;
    }

    async fn answer(
        &self,
        request: request::Parts,
        connection: &ClientConnection,
    ) -> AdminResponse {
        match request.uri.path() {
            "/livez" => self.pages.livez(),
            "/readyz" => self.pages.readyz(request.uri.query(), Reasons::Withheld),
            PATH => self.metrics(connection, &request.headers).await,
            _ => not_found(),
        }
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
