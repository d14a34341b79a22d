//! The proxy's own requests to the servers of watches: to the local apiserver, and to peers, which are asked
//! for what their own apiservers say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use tokio::time::Instant;

use crate::client::{self, Client, ClientError, ClientMaker, MakerError};
use crate::config::Config;
use crate::request::headers::{PEER_PROXIED, REROUTED};
use crate::tls::credentials::Current;

/// Longest wait for the answer of a server.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Asks a server.
pub trait AskServer: Send + Sync + 'static {
    /// The body of a 200.
    fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> impl Future<Output = Result<Bytes, NoAnswer>> + Send;
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nothing listens there.
    Gone,
    /// The server refuses.
    Refused,
    /// It may answer later. It may have lost its etcd for a moment.
    NotNow,
}

/// Clients of the local apiserver and of its peers; each is used by one request at a time.
pub struct ApiServers {
    local: SocketAddr,
    local_maker: Arc<ClientMaker>,
    peers: Arc<ClientMaker>,
    idle: Mutex<HashMap<SocketAddr, Vec<Client>>>,
}

impl ApiServers {
    /// `local_maker`: makes clients of the local apiserver.
    pub fn new(
        config: &Config,
        credentials: &Current,
        local_maker: Arc<ClientMaker>,
    ) -> Result<Self, MakerError> {
        let names = &config.serving.request_headers;
        let user = &config.api_server.internal_user;
        let mut identity: HeaderMap = client::identity(names, user, &["system:masters"])?;
        // A peer's proxy then asks its own apiserver.
        for mark in [REROUTED, PEER_PROXIED] {
            identity.insert(mark, HeaderValue::from_static("true"));
        }
        let peers = ClientMaker::new(
            &config.peer.server_name,
            credentials.clone(),
            |credentials| &credentials.peers,
            identity,
            TIMEOUT,
        )?;
        Ok(Self {
            local: config.api_server.address,
            local_maker,
            peers: Arc::new(peers),
            idle: Mutex::default(),
        })
    }

    fn client(&self, server: SocketAddr) -> Client {
        let idle = self.idle().get_mut(&server).and_then(Vec::pop);
        let maker = match server == self.local {
            true => &self.local_maker,
            false => &self.peers,
        };
        idle.unwrap_or_else(|| maker.client(server))
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<SocketAddr, Vec<Client>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AskServer for ApiServers {
    async fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> Result<Bytes, NoAnswer> {
        let accept = (ACCEPT, HeaderValue::from_static(accept));
        let mut client = self.client(server);
        let deadline = Instant::now() + TIMEOUT;
        match client
            .call(Method::GET, path, &[accept], None, deadline)
            .await
        {
            Ok(answer) if answer.status == StatusCode::OK => {
                self.idle().entry(server).or_default().push(client);
                Ok(answer.body)
            }
            Ok(answer) => {
                tracing::debug!(%server, path, status = %answer.status, "no metadata for final bookmarks");
                match answer.status.is_server_error()
                    || answer.status == StatusCode::TOO_MANY_REQUESTS
                {
                    true => Err(NoAnswer::NotNow),
                    false => Err(NoAnswer::Refused),
                }
            }
            Err(error) => {
                let no_answer = match &error {
                    ClientError::Refused => NoAnswer::Gone,
                    _ => NoAnswer::NotNow,
                };
                let error = &error as &dyn std::error::Error;
                tracing::debug!(%server, path, error, "no metadata for final bookmarks");
                Err(no_answer)
            }
        }
    }
}
