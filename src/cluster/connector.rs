//! Clients of etcd, for those who follow and for those who write.
//!
//! One endpoint a client: the client library balances over several, and a watch must know whom it talks to. After a
//! failure the next endpoint is tried.
//!
//! The library's clients keep the certificates that they were made with, so each new one takes those of the moment. What
//! works is left alone, as kube-apiserver leaves its connections to etcd.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use tokio::sync::Mutex;

use super::source::SourceError;
use crate::config::EtcdConfig;
use crate::tls::error::TlsError;
use crate::tls::files::{FileSnapshot, TlsFile};

/// Time for one request, for the opening of a watch and for a connection. Then another member is asked.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP/2 pings: connections are not trusted to report their own death.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What new connections to etcd are made with; none: they are plain. Written by `server::rotate`.
pub type EtcdTls = Arc<ArcSwapOption<TlsOptions>>;

/// Makes clients, one endpoint after the other.
#[derive(Clone)]
pub struct Connector {
    endpoints: Vec<String>,
    next: usize,
    options: ConnectOptions,
    tls: EtcdTls,
    /// What the last client was made with.
    used: Option<Arc<TlsOptions>>,
    limit: Duration,
}

impl Connector {
    /// For the endpoints of `config`.
    pub fn new(config: &EtcdConfig, tls: EtcdTls) -> Self {
        let options = ConnectOptions::new()
            .with_connect_timeout(REQUEST_TIMEOUT)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        Self {
            endpoints: config.endpoints.clone(),
            next: 0,
            options,
            tls,
            used: None,
            limit: REQUEST_TIMEOUT,
        }
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
        self.used = self.tls.load_full();
        let options = match &self.used {
            Some(tls) => self.options.clone().with_tls((**tls).clone()),
            None => self.options.clone(),
        };
        let connecting = Client::connect([endpoint], Some(options));
        bounded(self.limit, connecting).await
    }

    /// Whether the last client has the certificates of the moment.
    pub fn is_current(&self) -> bool {
        let now = self.tls.load();
        now.as_ref().map(Arc::as_ptr) == self.used.as_ref().map(Arc::as_ptr)
    }
}

/// A client for many requests, until one of them fails. It is made when it is needed.
pub struct Session {
    connector: Connector,
    client: Option<Client>,
}

impl Session {
    pub fn new(connector: Connector) -> Self {
        Self {
            connector,
            client: None,
        }
    }

    /// The client, which is kept only if it is given back. With new certificates there is a new one.
    pub async fn take(&mut self) -> Result<Client, SourceError> {
        match self.client.take() {
            Some(kept) if self.connector.is_current() => Ok(kept),
            _ => self.connector.connect().await,
        }
    }

    pub fn keep(&mut self, client: Client) {
        self.client = Some(client);
    }

    pub async fn client(&mut self) -> Result<Client, SourceError> {
        let client = self.take().await?;
        Ok(self.client.insert(client).clone())
    }

    /// A request has failed: the next client is for another endpoint.
    pub fn close(&mut self) {
        self.client = None;
    }

    /// How long a request may take.
    pub fn limit(&self) -> Duration {
        self.connector.limit
    }
}

/// A session of several tasks.
pub struct SharedClient(Mutex<Session>);

impl SharedClient {
    pub fn new(connector: Connector) -> Self {
        Self(Mutex::new(Session::new(connector)))
    }

    /// The client, and its number.
    pub async fn get(&self) -> Result<(Client, usize), SourceError> {
        let mut session = self.0.lock().await;
        Ok((session.client().await?, session.connector.next))
    }

    /// The client of this number has failed.
    pub async fn failed(&self, number: usize) {
        let mut session = self.0.lock().await;
        if session.connector.next == number {
            session.close();
        }
    }
}

/// The certificate files; none without https.
pub fn files(config: &EtcdConfig) -> Vec<TlsFile> {
    let ca = config.ca_file.iter();
    let mut files: Vec<_> = ca.map(|path| TlsFile::new("etcd.caFile", path)).collect();
    if let Some(pair) = &config.client {
        files.push(TlsFile::new("etcd.certFile", &pair.cert_file));
        files.push(TlsFile::new("etcd.keyFile", &pair.key_file));
    }
    files
}

/// What the files are good for; none without https.
pub fn tls_options(
    config: &EtcdConfig,
    reading: &FileSnapshot<'_>,
) -> Result<Option<TlsOptions>, TlsError> {
    let Some(ca_file) = &config.ca_file else {
        return Ok(None);
    };
    reading.roots(ca_file)?;
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(reading.bytes(ca_file)?));
    if let Some(pair) = &config.client {
        reading.certified_key(pair)?;
        let cert = reading.bytes(&pair.cert_file)?;
        let key = reading.bytes(&pair.key_file)?;
        tls = tls.identity(Identity::from_pem(cert, key));
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

/// What the client library says went wrong: what happened, and the first cause of it. The library's own text of a status
/// has its insides in it.
pub fn failed(error: Error) -> SourceError {
    let (mut reason, source) = match &error {
        Error::GRpcStatus(status) if status.message().is_empty() => {
            (status.code().to_string(), status.source())
        }
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        other => (other.to_string(), None),
    };
    let causes = std::iter::successors(source, |cause| (*cause).source());
    if let Some(first) = causes.last().map(ToString::to_string)
        && !reason.contains(&first)
    {
        reason = format!("{reason}: {first}");
    }
    SourceError::Failed(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_is_told_with_its_first_cause_and_nothing_of_the_insides() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let connected = Client::connect([nobody], None).await;
        let asked = async { connected?.get("x", None).await };
        let text = crate::log_throttle::chain(&failed(asked.await.unwrap_err()));
        assert!(text.starts_with("etcd request failed: "), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
        assert!(text.len() < 120 && !text.contains('{'), "{text}");
    }
}
