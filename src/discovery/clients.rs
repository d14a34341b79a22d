//! Clients that read peers' documents, and the identity they use.
//!
//! A peer's proxy trusts the identity that this proxy sends. Because of the reroute headers it answers with the documents of
//! its own apiserver only, so that merged documents are never merged again. An apiserver without a proxy is read as native
//! peers read each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

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
        let native = client::identity(names, unproxied::USER, &[unproxied::GROUP])?;
        let native = ClientMaker::of_peers(config, credentials.clone(), native, TIMEOUT)?;
        Ok(Self {
            proxied: Arc::new(of_proxies(config, credentials, TIMEOUT)?),
            native: Arc::new(native),
        })
    }

    /// For the server at `address`; `native`: it has no proxy.
    pub(super) fn client(&self, address: SocketAddr, native: bool) -> Client {
        let maker = if native { &self.native } else { &self.proxied };
        maker.client(address)
    }
}

/// Makes clients of peers' proxies, which answer for their own apiservers alone. `timeout`: of one answer.
pub fn of_proxies(
    config: &Config,
    credentials: &Current,
    timeout: Duration,
) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    let user = &config.api_server.internal_user;
    let mut identity = client::identity(names, user, &["system:masters"])?;
    for mark in [REROUTED, PEER_PROXIED] {
        identity.insert(mark, HeaderValue::from_static("true"));
    }
    ClientMaker::of_peers(config, credentials.clone(), identity, timeout)
}
