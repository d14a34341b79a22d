//! Observes the endpoints of etcd, each over a connection of its own.
//!
//! TLS is tried by hand first: etcd's client library tells neither whose certificate it did not like, nor why.

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

use super::{Progress, Seen};
use crate::cluster::connector::{Connector, EtcdTls, within};
use crate::cluster::etcd::WHOLE_STREAM;
use crate::cluster::source::SourceError;
use crate::config::Etcd;
use crate::doctor::ask::PATIENCE;
use crate::doctor::trouble::Trouble;

/// What is waited for progress: a little more than kubeadm's cadence.
pub const PROGRESS: Duration = Duration::from_secs(6);
/// Then it is asked for it, and waited for so long.
const ANSWER: Duration = Duration::from_secs(2);
/// The beginning of HTTP/2, with empty settings: a server that refuses our certificate says so at the first reading.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What connections to etcd are made with.
#[derive(Clone, Default)]
pub struct Tls {
    /// For etcd's client; none: they are plain.
    pub options: Option<TlsOptions>,
    /// The same, for a handshake by hand.
    pub config: Option<Arc<ClientConfig>>,
}

/// Looks at one endpoint; the client is for what comes after.
pub async fn endpoint(config: &Etcd, endpoint: &str, tls: &Tls) -> Result<(Seen, Client), Trouble> {
    let looking = timeout(PATIENCE, look(config, endpoint, tls));
    looking.await.unwrap_or(Err(Trouble::Silent))
}

async fn look(config: &Etcd, endpoint: &str, tls: &Tls) -> Result<(Seen, Client), Trouble> {
    let started = Instant::now();
    shake_hands(endpoint, tls.config.clone()).await?;
    let client = connector(config, endpoint, tls).connect().await;
    let mut client = client.map_err(|error| trouble(&error))?;
    let mut seen = match within(client.status()).await {
        Ok(status) => {
            let header = |read: fn(&ResponseHeader) -> u64| status.header().map_or(0, read);
            Seen {
                version: status.version().to_owned(),
                cluster: header(ResponseHeader::cluster_id),
                member: header(ResponseHeader::member_id),
                revision: status.header().map_or(0, ResponseHeader::revision),
                leader: status.leader() != 0,
                complaints: status.errors().to_vec(),
                ..Seen::default()
            }
        }
        // Older ones of kine have no status.
        Err(error) => {
            let read = within(client.get(config.prefix.as_str(), None)).await;
            let answer = read.map_err(|_| trouble(&error))?;
            Seen {
                revision: answer.header().map_or(0, ResponseHeader::revision),
                ..Seen::default()
            }
        }
    };
    seen.took = started.elapsed();
    Ok((seen, client))
}

/// For this endpoint alone.
pub fn connector(config: &Etcd, endpoint: &str, tls: &Tls) -> Connector {
    let config = Etcd {
        endpoints: vec![endpoint.to_owned()],
        ..config.clone()
    };
    let tls: EtcdTls = Arc::new(ArcSwapOption::from_pointee(tls.options.clone()));
    Connector::new(&config, tls)
}

/// TCP, TLS, and the first byte of an answer.
async fn shake_hands(endpoint: &str, tls: Option<Arc<ClientConfig>>) -> Result<(), Trouble> {
    let odd = || Trouble::Other("it is no URL".to_owned());
    let uri: Uri = endpoint.parse().map_err(|_| odd())?;
    let (host, port) = (uri.host().ok_or_else(odd)?, uri.port_u16().ok_or_else(odd)?);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((host, port))
        .await
        .map_err(|error| Trouble::of(&error))?;
    let Some(tls) = tls else {
        return Ok(());
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| odd())?;
    let talk = async {
        let mut stream = TlsConnector::from(tls).connect(name, tcp).await?;
        stream.write_all(HTTP2).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    match talk.await {
        Ok(_) => Ok(()),
        Err(error) => Err(Trouble::of(&error)),
    }
}

/// What an error of etcd's client comes down to.
pub fn trouble(error: &SourceError) -> Trouble {
    match error {
        SourceError::Timeout => Trouble::Silent,
        error => Trouble::Other(error.said()),
    }
}

/// How etcd tells how far it is, to a watch of `key`, which nobody writes.
pub async fn progress(client: Client, key: &str, asks: bool) -> Progress {
    let watching = timeout(PROGRESS + PATIENCE, watch(client, key, asks));
    watching.await.unwrap_or_default()
}

async fn watch(mut client: Client, key: &str, asks: bool) -> Progress {
    let options = WatchOptions::new().with_progress_notify();
    let Ok(mut stream) = within(client.watch(key, Some(options))).await else {
        return Progress::Unknown;
    };
    let started = Instant::now();
    let mut end = tokio::time::Instant::now() + PROGRESS;
    let mut asked = false;
    loop {
        let message = match timeout_at(end, stream.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(_) => return Progress::Unknown,
            Err(_) if asks && !asked => {
                asked = true;
                end = tokio::time::Instant::now() + ANSWER;
                match within(stream.request_progress()).await {
                    Ok(()) => continue,
                    Err(_) => return Progress::Nothing,
                }
            }
            Err(_) => return Progress::Nothing,
        };
        if message.canceled() {
            return Progress::Unknown;
        }
        if message.created() || !message.events().is_empty() {
            continue;
        }
        return match message.watch_id() {
            WHOLE_STREAM => Progress::Asked,
            _ if asked => Progress::Asked,
            _ => Progress::Timed(started.elapsed()),
        };
    }
}
