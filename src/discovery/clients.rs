//! Clients that read peers' documents, and the identity they use.
//!
//! A peer's proxy trusts the identity that this proxy sends. Because of the reroute headers it answers with the documents of
//! its own apiserver only, so that merged documents are never merged again. An apiserver without a proxy is read as native
//! peers read each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::client::{self, Client, ClientMaker, MakerError};
use crate::cluster::unproxied;
use crate::config::Config;
use crate::request::headers::{PEER_PROXIED, REROUTED};
use crate::tls::credentials::Current;

/// Timeout for one document: an apiserver takes seconds to build its first OpenAPI document.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes clients for peers.
pub(super) struct Clients {
    proxied: Arc<ClientMaker>,
    native: Arc<ClientMaker>,
}

impl Clients {
    /// With the current credentials.
    pub(super) fn new(config: &Config, credentials: &Current) -> Result<Self, MakerError> {
        let names = &config.serving.request_headers;
        let user = &config.api_server.internal_user;
        let proxied = client::identity(names, user, &["system:masters"])?;
        let native = client::identity(names, unproxied::USER, &[unproxied::GROUP])?;
        Ok(Self {
            proxied: Arc::new(maker(config, credentials, marked(proxied))?),
            native: Arc::new(maker(config, credentials, native)?),
        })
    }

    /// For the server at `address`; `native`: it has no proxy.
    pub(super) fn client(&self, address: SocketAddr, native: bool) -> Client {
        let maker = if native { &self.native } else { &self.proxied };
        maker.client(address)
    }
}

fn maker(
    config: &Config,
    credentials: &Current,
    identity: HeaderMap,
) -> Result<ClientMaker, MakerError> {
    ClientMaker::new(
        &config.peer.server_name,
        credentials.clone(),
        |credentials| &credentials.peers,
        identity,
        TIMEOUT,
    )
}

fn marked(mut identity: HeaderMap) -> HeaderMap {
    for mark in [REROUTED, PEER_PROXIED] {
        identity.insert(mark, HeaderValue::from_static("true"));
    }
    identity
}
