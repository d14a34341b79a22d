//! Observes the endpoints of etcd, each over its own connection.
//!
//! The TLS handshake is done without etcd's client library first: the library does not report why TLS failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use etcd_client::{Client, ResponseHeader, TlsOptions, WatchOptions};
use http::Uri;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::{EndpointStatus, PROGRESS_TIMEOUT, Progress};
use crate::cli::doctor::connection_failure::ConnectionFailure;
use crate::cli::doctor::http_probe::PATIENCE;
use crate::cluster::connector::{Connector, EtcdTls, within};
use crate::cluster::etcd::WHOLE_STREAM;
use crate::cluster::source::SourceError;
use crate::config::EtcdConfig;

/// Time limit for progress that was requested.
const REQUESTED_PROGRESS_TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP/2 preface with empty settings: a server that rejects the client certificate says so in its first bytes.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// TLS of connections to etcd.
#[derive(Clone, Default)]
pub struct ProbeTls {
    /// For etcd's client library; `None`: plain TCP.
    pub options: Option<TlsOptions>,
    /// For `handshake`; `None`: plain TCP.
    pub config: Option<Arc<ClientConfig>>,
}

/// Reads the status of one endpoint. Returns the connected client too.
pub async fn endpoint(
    config: &EtcdConfig,
    endpoint: &str,
    tls: &ProbeTls,
) -> Result<(EndpointStatus, Client), ConnectionFailure> {
    let probing = timeout(PATIENCE, probe(config, endpoint, tls));
    probing.await.unwrap_or(Err(ConnectionFailure::TimedOut))
}

async fn probe(
    config: &EtcdConfig,
    endpoint: &str,
    tls: &ProbeTls,
) -> Result<(EndpointStatus, Client), ConnectionFailure> {
    let started = Instant::now();
    handshake(endpoint, tls.config.clone()).await?;
    let client = connector(config, endpoint, tls).connect().await;
    let mut client = client.map_err(|error| failure(&error))?;
    let mut observed = match within(client.status()).await {
        Ok(status) => {
            let header = |read: fn(&ResponseHeader) -> u64| status.header().map_or(0, read);
            EndpointStatus {
                version: status.version().to_owned(),
                cluster: header(ResponseHeader::cluster_id),
                member: header(ResponseHeader::member_id),
                revision: status.header().map_or(0, ResponseHeader::revision),
                leader: status.leader() != 0,
                complaints: status.errors().to_vec(),
                ..EndpointStatus::default()
            }
        }
        // Older versions of kine have no status request.
        Err(error) => {
            let read = within(client.get(config.prefix.as_str(), None)).await;
            let answer = read.map_err(|_| failure(&error))?;
            EndpointStatus {
                revision: answer.header().map_or(0, ResponseHeader::revision),
                ..EndpointStatus::default()
            }
        }
    };
    observed.took = started.elapsed();
    Ok((observed, client))
}

/// A connector for this endpoint alone.
pub fn connector(config: &EtcdConfig, endpoint: &str, tls: &ProbeTls) -> Connector {
    let config = EtcdConfig {
        endpoints: vec![endpoint.to_owned()],
        ..config.clone()
    };
    let tls: EtcdTls = Arc::new(ArcSwapOption::from_pointee(tls.options.clone()));
    Connector::new(&config, tls)
}

/// Connects with TCP and TLS, and waits for the first byte.
async fn handshake(
    endpoint: &str,
    tls: Option<Arc<ClientConfig>>,
) -> Result<(), ConnectionFailure> {
    let not_a_url = || ConnectionFailure::Other("it is no URL".to_owned());
    let uri: Uri = endpoint.parse().map_err(|_| not_a_url())?;
    let (host, port) = (
        uri.host().ok_or_else(not_a_url)?,
        uri.port_u16().ok_or_else(not_a_url)?,
    );
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((host, port))
        .await
        .map_err(|error| ConnectionFailure::from_error(&error))?;
    let Some(tls) = tls else {
        return Ok(());
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| not_a_url())?;
    let talk = async {
        let mut stream = TlsConnector::from(tls).connect(name, tcp).await?;
        stream.write_all(HTTP2_PREFACE).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    match talk.await {
        Ok(_) => Ok(()),
        Err(error) => Err(ConnectionFailure::from_error(&error)),
    }
}

pub fn failure(error: &SourceError) -> ConnectionFailure {
    match error {
        SourceError::Timeout => ConnectionFailure::TimedOut,
        error => ConnectionFailure::Other(error.said()),
    }
}

/// Watches `key`, which nothing writes. `can_request`: whether to request progress if none comes.
pub async fn progress(client: Client, key: &str, can_request: bool) -> Progress {
    let watching = timeout(PROGRESS_TIMEOUT + PATIENCE, watch(client, key, can_request));
    watching.await.unwrap_or_default()
}

async fn watch(mut client: Client, key: &str, can_request: bool) -> Progress {
    let options = WatchOptions::new().with_progress_notify();
    let Ok(mut stream) = within(client.watch(key, Some(options))).await else {
        return Progress::Unknown;
    };
    let started = Instant::now();
    let mut end = tokio::time::Instant::now() + PROGRESS_TIMEOUT;
    let mut requested = false;
    loop {
        let message = match timeout_at(end, stream.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(_) => return Progress::Unknown,
            Err(_) if can_request && !requested => {
                requested = true;
                end = tokio::time::Instant::now() + REQUESTED_PROGRESS_TIMEOUT;
                match within(stream.request_progress()).await {
                    Ok(()) => continue,
                    Err(_) => return Progress::Missing,
                }
            }
            Err(_) => return Progress::Missing,
        };
        if message.canceled() {
            return Progress::Unknown;
        }
        if message.created() || !message.events().is_empty() {
            continue;
        }
        return match message.watch_id() {
            WHOLE_STREAM => Progress::OnRequest,
            _ if requested => Progress::OnRequest,
            _ => Progress::Periodic(started.elapsed()),
        };
    }
}
