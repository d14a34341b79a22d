//! Clients of peers' proxies, and the identity they use.
//!
//! A peer's proxy trusts the identity that this proxy sends. Because of the reroute headers it answers with the documents of
//! its own apiserver only, so that merged documents are never merged again.

use std::time::Duration;

use http::HeaderValue;

use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::request::headers::{PEER_PROXIED, REROUTED};
use crate::tls::credentials::Current;

/// Timeout for one document: an apiserver takes seconds to build its first OpenAPI document.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes them; `timeout`: of one answer.
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
