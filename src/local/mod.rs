//! The apiserver beside us: whether it is initialized, and what it serves.

pub mod discovery;
pub mod documents;
pub mod probe;
pub mod reader;
pub mod requestheader;
pub mod state;

use std::time::Duration;

use http::HeaderMap;

use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;

/// Longest wait for an answer to the proxy's own requests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Clients for the local apiserver, as `apiServer.internalUser`. Reads the certificate files.
pub fn maker(config: &Config) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    let user = &config.api_server.internal_user;
    maker_as(config, client::identity(names, user, &["system:masters"])?)
}

/// The same, as nobody. Who asks goes with each request.
pub fn maker_as_nobody(config: &Config) -> Result<ClientMaker, MakerError> {
    maker_as(config, HeaderMap::new())
}

fn maker_as(config: &Config, identity: HeaderMap) -> Result<ClientMaker, MakerError> {
    let server = &config.api_server;
    ClientMaker::new(
        &server.server_name,
        &server.ca_file,
        &server.proxy_client,
        identity,
        TIMEOUT,
    )
}
