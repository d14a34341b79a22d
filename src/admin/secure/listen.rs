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
use crate::admin::pages::{AdminResponse, Pages, not_found, text};
use crate::admin::predecessor::AdminListener;
use crate::net::files;
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
pub(in crate::admin) struct SecurePort {
    pub(in crate::admin) pages: Arc<Pages>,
    pub(in crate::admin) gate: Gate,
    /// The TLS port's configuration: the same certificates, and the same CAs of clients.
    pub(in crate::admin) tls: Arc<ArcSwap<ServingTls>>,
    /// Held during the expensive part of a handshake: anyone can begin one, and control work shares the threads.
    pub(in crate::admin) handshake_lock: Mutex<()>,
}

impl SecurePort {
    /// Serves until dropped.
    pub(in crate::admin) async fn run(self, listener: AdminListener) {
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
        let query = request.uri.query();
        match request.uri.path() {
            "/livez" => self.pages.livez(),
            // As kube-apiserver does it: anyone may ask.
            "/readyz" => self.pages.readyz(query, Some("reason withheld")),
            PATH => self.metrics(connection, &request.headers).await,
            _ => not_found(),
        }
    }

    async fn metrics(&self, connection: &ClientConnection, headers: &HeaderMap) -> AdminResponse {
        match self.gate.verdict(connection, headers).await {
            Some(Verdict::Allowed) => self.pages.metrics(),
            None => text(
                StatusCode::UNAUTHORIZED,
                "a bearer token or a client certificate of serving.clientCAFile is needed",
            ),
            Some(Verdict::Unknown) => text(
                StatusCode::UNAUTHORIZED,
                "the apiserver does not know this token",
            ),
            Some(Verdict::Forbidden(user)) => text(
                StatusCode::FORBIDDEN,
                format_args!("user {user:?} may not get {PATH}"),
            ),
            Some(Verdict::Unavailable(why)) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format_args!("the apiserver does not say who may get {PATH}: {why}"),
            ),
        }
    }
}
