//! The apiserver beside us: whether it is initialized, and what it serves.

pub mod discovery;
pub mod documents;
pub mod probe;
pub mod reader;
pub mod requestheader;
pub mod state;

use std::time::Duration;

use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;

/// Longest wait for an answer to the proxy's own requests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Clients for the local apiserver, as `apiServer.internalUser`. Reads the certificate files.
pub fn maker(config: &Config) -> Result<ClientMaker, MakerError> {
    let server = &config.api_server;
    let names = &config.serving.request_headers;
    ClientMaker::new(
        &server.server_name,
        &server.ca_file,
        &server.proxy_client,
        client::identity(names, &server.internal_user, &["system:masters"])?,
        TIMEOUT,
    )
}
