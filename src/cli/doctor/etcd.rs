//! etcd: its endpoints, each over its own connection. What is stored there is checked by [`super::stored`].
//!
//! The TLS handshake is done without etcd's client library first: the library does not report why TLS failed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, WatchOptions, WatchStream};
use futures_util::future::join_all;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::finding::Finding;
use super::probe::{self, ConfigKeys, ConnectionFailure, PATIENCE};
use super::stored::{self, Inventory, UNUSED_NAME};
use super::told;
use crate::cluster::connector::{self, Connector, EtcdTls, within};
use crate::cluster::etcd::orders_requested_progress;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::config::{Config, EtcdConfig};
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;
use crate::tls::store;

const KEYS: ConfigKeys = ConfigKeys {
    server: "etcd",
    address: "etcd.endpoints",
    authority: "etcd.caFile",
    name: "the host in etcd.endpoints",
    certificate: "etcd.certFile",
    serving: "etcd's serving certificate (its --cert-file)",
};

/// Time limit for a progress notification: a little more than kubeadm's interval.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit for progress that was requested.
const REQUESTED_PROGRESS_TIMEOUT: Duration = Duration::from_secs(2);
/// HTTP/2 preface with empty settings: a server that rejects the client certificate says so in its first bytes.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What is known of etcd.
#[derive(Default)]
pub struct EtcdReport {
    pub findings: Vec<Finding>,
    /// Of the first endpoint that answers.
    pub client: Option<Client>,
    pub stored: Option<Inventory>,
}

/// What one endpoint says of itself. kine says less, and old versions of it nothing.
#[derive(Debug, Default)]
struct EndpointStatus {
    version: String,
    /// Cluster ID; 0: unknown.
    cluster: u64,
    has_leader: bool,
    /// Alarms and other errors.
    complaints: Vec<String>,
}

type Answer = Result<(EndpointStatus, Client), ConnectionFailure>;

pub async fn check(config: &Config, reading: &FileSnapshot<'_>) -> EtcdReport {
    let etcd = &config.etcd;
    let mut report = EtcdReport::default();
    let (library, tls) = match probe_tls(etcd, reading) {
        Ok(tls) => tls,
        Err(error) => {
            report.findings.push(told::skipped("etcd", error));
            return report;
        }
    };
    let connector = Connector::new(etcd, library);
    let key = EtcdKeys::new(&etcd.prefix, &[]).of(Topic::Live) + UNUSED_NAME;
    let asking = etcd.endpoints.iter().enumerate().map(|(number, at)| {
        let asking = ask(connector.starting_at(number), at, tls.clone(), &key);
        probe::within(PATIENCE, asking)
    });
    let answers = join_all(asking).await;
    report.client = answers.iter().flatten().next().map(|it| it.1.clone());
    let reading_stored = async {
        let reading = stored::check(config, report.client.as_ref()?);
        timeout(super::PATIENCE, reading).await.ok()
    };
    let endpoints = etcd.endpoints.iter().zip(&answers);
    let told = endpoints.map(async |(at, answer)| {
        let about = format!("etcd {at}");
        match answer {
            Ok((status, client)) => {
                let quiet = is_quiet(client.clone(), &key, &status.version).await;
                let quiet = quiet.then(|| told::no_progress(&about, PROGRESS_TIMEOUT.as_secs()));
                of_status(&about, status).into_iter().chain(quiet).collect()
            }
            Err(failure) => vec![failure.finding(&about, &KEYS)],
        }
    });
    let (told, stored) = tokio::join!(join_all(told), reading_stored);
    report.findings = told.concat();
    report.findings.extend(clusters(etcd, &answers));
    report.stored = stored.map(|(findings, inventory)| {
        report.findings.extend(findings);
        inventory
    });
    report
}

/// Whether endpoints are of several clusters.
fn clusters(etcd: &EtcdConfig, answers: &[Answer]) -> Option<Finding> {
    let endpoints = etcd.endpoints.iter().zip(answers);
    let members = endpoints.filter_map(|(at, it)| Some((it.as_ref().ok()?.0.cluster, at)));
    let members: Vec<_> = members.filter(|(cluster, _)| *cluster != 0).collect();
    let several = members.iter().any(|(cluster, _)| *cluster != members[0].0);
    let members = members
        .iter()
        .map(|(cluster, at)| format!("{at} of {cluster:x}"));
    let members = members.collect::<Vec<_>>().join(", ");
    several.then(|| told::clusters("etcd.endpoints", members))
}

fn of_status(about: &str, status: &EndpointStatus) -> Vec<Finding> {
    let version = status.version.as_str();
    let state = match version {
        "" => told::answers(about, "no version, as kine says none"),
        _ if status.has_leader => told::answers(about, version),
        _ => told::no_leader(about, version),
    };
    let complaints = status.complaints.iter();
    let complaints = complaints.map(|text| told::alarm(about, text));
    [state].into_iter().chain(complaints).collect()
}

/// TLS of connections to etcd, for its client library and for [`handshake`]; none: plain TCP.
fn probe_tls(
    etcd: &EtcdConfig,
    reading: &FileSnapshot<'_>,
) -> Result<(EtcdTls, Option<Arc<ClientConfig>>), TlsError> {
    let library = connector::tls_options(etcd, reading)?;
    let library = Arc::new(ArcSwapOption::from_pointee(library));
    let Some(ca_file) = &etcd.ca_file else {
        return Ok((library, None));
    };
    let pair = etcd.client.as_ref().map(|pair| reading.pair(pair));
    let mut config = store::client(&reading.authorities(ca_file)?, pair.transpose()?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((library, Some(Arc::new(config))))
}

/// Connects to one endpoint, and reads its status.
async fn ask(
    mut connector: Connector,
    at: &str,
    tls: Option<Arc<ClientConfig>>,
    key: &str,
) -> Answer {
    handshake(at, tls).await?;
    let mut client = connector.connect().await?;
    let status = match within(client.status()).await {
        Ok(status) => EndpointStatus {
            version: status.version().to_owned(),
            cluster: status.header().map_or(0, |header| header.cluster_id()),
            has_leader: status.leader() != 0,
            complaints: status.errors().to_vec(),
        },
        // Older versions of kine have no status request.
        Err(error) => {
            within(client.get(key, None)).await.map_err(|_| error)?;
            EndpointStatus::default()
        }
    };
    Ok((status, client))
}

/// Connects with TCP and TLS, and waits for the first byte. `endpoint`: `scheme://host:port`.
async fn handshake(endpoint: &str, tls: Option<Arc<ClientConfig>>) -> io::Result<()> {
    let (_, address) = endpoint.split_once("://").unwrap_or_default();
    let tcp = TcpStream::connect(address).await?;
    let Some(tls) = tls else {
        return Ok(());
    };
    let (host, _) = address.rsplit_once(':').unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut stream = TlsConnector::from(tls).connect(name, tcp).await?;
    stream.write_all(HTTP2_PREFACE).await?;
    stream.flush().await?;
    stream.read_u8().await.map(drop)
}

/// Whether a watch of `key`, which nothing writes, is not told its progress, or not in an order that can be believed.
async fn is_quiet(mut client: Client, key: &str, version: &str) -> bool {
    let options = WatchOptions::new().with_progress_notify();
    let Ok(mut stream) = within(client.watch(key, Some(options))).await else {
        return false;
    };
    if timeout(PROGRESS_TIMEOUT, notified(&mut stream))
        .await
        .is_ok()
    {
        return false;
    }
    if !orders_requested_progress(version) || within(stream.request_progress()).await.is_err() {
        return true;
    }
    let told = timeout(REQUESTED_PROGRESS_TIMEOUT, notified(&mut stream));
    told.await.is_err()
}

/// Waits for a progress notification, or the end of the watch.
async fn notified(stream: &mut WatchStream) {
    while let Ok(Some(message)) = stream.message().await {
        if message.canceled() || (!message.created() && message.events().is_empty()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_and_a_missing_leader_are_problems() {
        let alarmed = EndpointStatus {
            version: "3.4.23".to_owned(),
            complaints: vec!["memberID:1 alarm:NOSPACE ".to_owned()],
            ..EndpointStatus::default()
        };
        let lines = of_status("etcd e0", &alarmed);
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert!(lines[0].contains("without a leader"), "{lines:?}");
        assert!(lines[1].contains("NOSPACE ; do: "), "{lines:?}");
    }
}
