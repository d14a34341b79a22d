//! Clients of etcd, for those who follow and for those who write.
//!
//! One endpoint a client: the client library balances over several, and a watch must know whom it talks to. After a
//! failure the next endpoint is tried.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};

use super::source::SourceError;
use crate::config::Etcd;

/// Time for one request, the opening of a watch included.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2 pings: connections are not trusted to report their own death.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Certificate files cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}")]
pub struct FileError {
    path: String,
    source: std::io::Error,
}

/// Makes clients, one endpoint after the other.
#[derive(Clone)]
pub struct Connector {
    endpoints: Vec<String>,
    next: usize,
    options: ConnectOptions,
    limit: Duration,
}

impl Connector {
    /// Reads the certificate files.
    pub fn new(config: &Etcd) -> Result<Self, FileError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if let Some(tls) = tls_options(config)? {
            options = options.with_tls(tls);
        }
        Ok(Self {
            endpoints: config.endpoints.clone(),
            next: 0,
            options,
            limit: REQUEST_TIMEOUT,
        })
    }

    /// Another one, that begins with the `start`th endpoint, so that connections spread.
    pub fn starting_at(&self, start: usize) -> Self {
        Self {
            next: start,
            ..self.clone()
        }
    }

    /// Tries each endpoint no longer than this.
    pub fn limited(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// A client for the next endpoint.
    pub async fn connect(&mut self) -> Result<Client, SourceError> {
        let endpoint = &self.endpoints[self.next % self.endpoints.len()];
        self.next = self.next.wrapping_add(1);
        let connecting = Client::connect([endpoint], Some(self.options.clone()));
        bounded(self.limit, connecting).await
    }
}

fn tls_options(config: &Etcd) -> Result<Option<TlsOptions>, FileError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| FileError {
            path: path.display().to_string(),
            source,
        })
    };
    let Some(ca_file) = &config.ca_file else {
        return Ok(None);
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
    if let Some(pair) = &config.client {
        tls = tls.identity(Identity::from_pem(
            read(&pair.cert_file)?,
            read(&pair.key_file)?,
        ));
    }
    Ok(Some(tls))
}

/// Bounds a request in [`REQUEST_TIMEOUT`].
pub async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, SourceError> {
    bounded(REQUEST_TIMEOUT, request).await
}

/// Bounds a request in time.
pub async fn bounded<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, SourceError> {
    match tokio::time::timeout(limit, request).await {
        Ok(result) => result.map_err(failed),
        Err(_) => Err(SourceError::Timeout),
    }
}

/// What the client library says went wrong.
pub fn failed(error: Error) -> SourceError {
    SourceError::Failed(Box::new(error))
}
