//! The proxy's own requests to the local apiserver.

use std::time::Duration;

use http::HeaderMap;

use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::tls::credentials::Current;

/// Timeout of the proxy's own requests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Clients for the local apiserver, as `apiServer.internalUser`.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    let user = &config.api_server.internal_user;
    let identity = client::identity(names, user, &["system:masters"])?;
    maker_as(config, credentials, identity)
}

pub(super) fn maker_as(
    config: &Config,
    credentials: Current,
    identity: HeaderMap,
) -> Result<ClientMaker, MakerError> {
    let name = &config.api_server.server_name;
    ClientMaker::new(name, credentials, |of| &of.local, identity, TIMEOUT)
}
