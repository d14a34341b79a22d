//! etcd: its endpoints, each over its own connection. What is stored there is checked by [`super::stored`].
//!
//! The TLS handshake is done without etcd's client library first: the library does not report why TLS failed.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use etcd_client::{Client, ResponseHeader, WatchOptions, WatchStream};
use futures_util::future::join_all;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connection_failure::{self, ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use super::http_probe::PATIENCE;
use super::inventory::Inventory;
use super::stored::{self, UNUSED_NAME};
use super::told;
use crate::cluster::connector::{self, Connector, EtcdTls, within};
use crate::cluster::etcd::orders_requested_progress;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::config::{Config, EtcdConfig};
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;
use crate::tls::store;
use crate::x509::pem;

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

/// Status of one endpoint.
#[derive(Debug, Clone, Default)]
pub struct EndpointStatus {
    /// Empty for kine, which reports none.
    pub version: String,
    /// Cluster ID; 0: unknown.
    pub cluster: u64,
    pub revision: i64,
    /// Whether the cluster has one.
    pub leader: bool,
    /// Alarms and other errors that it reports.
    pub complaints: Vec<String>,
    /// Time for connecting and reading the status.
    pub took: Duration,
    pub progress: Progress,
}

/// How an endpoint notifies watches of its progress while nothing changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Progress {
    /// Periodically; the first notification came after this time.
    Periodic(Duration),
    /// Only on request.
    OnRequest,
    /// Not within the time limit.
    Missing,
    /// The watch could not be opened, or broke.
    #[default]
    Unknown,
}

type Answer<T> = Result<T, ConnectionFailure>;

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
    let probes = etcd.endpoints.iter().enumerate().map(|(number, at)| {
        let probe = probe(connector.starting_at(number), at, tls.clone(), &key);
        connection_failure::within(PATIENCE, probe)
    });
    let answers = join_all(probes).await;
    let client = answers.iter().flatten().next();
    report.client = client.map(|(_, client)| client.clone());
    let reading_stored = async {
        let reading = stored::read(config, report.client.as_ref()?);
        timeout(super::PATIENCE, reading).await.ok()
    };
    let watched = answers.into_iter().map(async |answer| {
        let (mut status, client) = answer?;
        status.progress = progress(client, &key, !status.version.is_empty()).await;
        Ok(status)
    });
    let (statuses, stored) = tokio::join!(join_all(watched), reading_stored);
    let statuses: Vec<_> = etcd.endpoints.iter().cloned().zip(statuses).collect();
    report.findings = endpoints(&statuses);
    report.stored = stored.map(|stored| {
        let user = user(etcd, reading);
        let findings = stored::findings(etcd, user.as_deref(), &stored);
        report.findings.extend(findings);
        stored.values
    });
    report
}

pub fn endpoints(statuses: &[(String, Answer<EndpointStatus>)]) -> Vec<Finding> {
    let clusters = statuses.iter().filter_map(|(_, status)| {
        let cluster = status.as_ref().ok()?.cluster;
        (cluster != 0).then_some(cluster)
    });
    let members = |cluster: &u64| clusters.clone().filter(|other| other == cluster).count();
    let common = clusters.clone().max_by_key(members);
    let of_endpoint = |(endpoint, status): &(String, Answer<EndpointStatus>)| {
        let about = format!("etcd {endpoint}");
        match status {
            Ok(status) => of_status(&about, status, common),
            Err(failure) => vec![failure.finding(&about, &KEYS)],
        }
    };
    statuses.iter().flat_map(of_endpoint).collect()
}

/// `common`: the cluster of most endpoints.
fn of_status(about: &str, status: &EndpointStatus, common: Option<u64>) -> Vec<Finding> {
    let mut findings = vec![match status.version.as_str() {
        version if !version.is_empty() && !status.leader => told::no_leader(about, version),
        version => {
            let none = "no version, as kine says none";
            let version = if version.is_empty() { none } else { version };
            told::answers(about, version, status.revision, status.took.as_millis())
        }
    }];
    findings.extend(status.complaints.iter().map(|text| {
        let no_space = text.contains("NOSPACE").then_some(stored::NO_SPACE);
        let advice = no_space.unwrap_or("read etcd's log, and its documentation of alarms");
        told::alarm(about, text, advice)
    }));
    if status.cluster != 0 && common.is_some_and(|common| common != status.cluster) {
        findings.push(told::other_cluster(about));
    }
    findings.extend(match status.progress {
        Progress::Unknown => None,
        Progress::Periodic(first) => Some(told::periodic_progress(about, first.as_secs_f64())),
        Progress::OnRequest if orders_requested_progress(&status.version) => {
            Some(told::requested_progress(about))
        }
        Progress::OnRequest | Progress::Missing => {
            Some(told::no_progress(about, PROGRESS_TIMEOUT.as_secs()))
        }
    });
    findings
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

/// The user that etcd takes the proxy for, if it has authentication enabled.
fn user(etcd: &EtcdConfig, reading: &FileSnapshot<'_>) -> Option<String> {
    let chain = reading.certificates(&etcd.client.as_ref()?.cert_file);
    let chain = chain.ok()?;
    let leaf = pem::parsed(chain.first()?)?;
    let name = leaf.subject().iter_common_name().last()?.as_str().ok()?;
    Some(name.to_owned())
}

/// Reads the status of one endpoint. Returns the connected client too.
async fn probe(
    mut connector: Connector,
    at: &str,
    tls: Option<Arc<ClientConfig>>,
    key: &str,
) -> Answer<(EndpointStatus, Client)> {
    let started = Instant::now();
    handshake(at, tls).await?;
    let mut client = connector.connect().await?;
    let revision = |header: Option<&ResponseHeader>| header.map_or(0, ResponseHeader::revision);
    let mut observed = match within(client.status()).await {
        Ok(status) => EndpointStatus {
            version: status.version().to_owned(),
            cluster: status.header().map_or(0, ResponseHeader::cluster_id),
            revision: revision(status.header()),
            leader: status.leader() != 0,
            complaints: status.errors().to_vec(),
            ..EndpointStatus::default()
        },
        // Older versions of kine have no status request.
        Err(error) => {
            let answer = within(client.get(key, None)).await.map_err(|_| error)?;
            EndpointStatus {
                revision: revision(answer.header()),
                ..EndpointStatus::default()
            }
        }
    };
    observed.took = started.elapsed();
    Ok((observed, client))
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

/// Watches `key`, which nothing writes. `can_request`: whether to request progress if none comes.
async fn progress(mut client: Client, key: &str, can_request: bool) -> Progress {
    let options = WatchOptions::new().with_progress_notify();
    let Ok(mut stream) = within(client.watch(key, Some(options))).await else {
        return Progress::Unknown;
    };
    let started = Instant::now();
    match timeout(PROGRESS_TIMEOUT, is_notified(&mut stream)).await {
        Ok(true) => return Progress::Periodic(started.elapsed()),
        Ok(false) => return Progress::Unknown,
        Err(_) => {}
    }
    if !can_request || within(stream.request_progress()).await.is_err() {
        return Progress::Missing;
    }
    match timeout(REQUESTED_PROGRESS_TIMEOUT, is_notified(&mut stream)).await {
        Ok(true) => Progress::OnRequest,
        Ok(false) => Progress::Unknown,
        Err(_) => Progress::Missing,
    }
}

/// Waits for a progress notification; false: the watch broke.
async fn is_notified(stream: &mut WatchStream) -> bool {
    while let Ok(Some(message)) = stream.message().await {
        if message.canceled() {
            return false;
        }
        if !message.created() && message.events().is_empty() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cluster: u64) -> EndpointStatus {
        EndpointStatus {
            version: "3.4.23".to_owned(),
            cluster,
            leader: true,
            progress: Progress::OnRequest,
            ..EndpointStatus::default()
        }
    }

    fn said(status: Vec<Result<EndpointStatus, ConnectionFailure>>) -> Vec<String> {
        let named = status.into_iter().enumerate();
        let named: Vec<_> = named.map(|(n, status)| (format!("e{n}"), status)).collect();
        endpoints(&named).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_member_of_another_cluster_is_named_and_a_dead_one_hides_nothing() {
        let lines = said(vec![
            Ok(status(1)),
            Err(ConnectionFailure::Refused),
            Ok(status(2)),
            Ok(status(1)),
        ]);
        let problems: Vec<_> = lines
            .iter()
            .filter(|it| it.starts_with("problem"))
            .collect();
        assert_eq!(problems.len(), 2, "{lines:#?}");
        assert!(problems[0].starts_with("problem etcd e1: connection refused; do: start etcd"));
        assert!(problems[1].starts_with("problem etcd e2: it is a member of another cluster"));
    }

    #[test]
    fn progress_that_cannot_be_believed_is_worth_a_warning() {
        let with = |version: &str, progress| {
            let version = version.to_owned();
            let status = EndpointStatus {
                version,
                progress,
                ..status(1)
            };
            said(vec![Ok(status)]).remove(1)
        };
        let timed = Progress::Periodic(Duration::from_millis(5100));
        assert!(with("3.4.23", timed).starts_with("ok      etcd e0: tells its progress by itself"));
        assert!(with("3.5.13", Progress::OnRequest).starts_with("ok "));
        for (version, progress) in [
            ("3.4.23", Progress::OnRequest),
            ("3.5.13", Progress::Missing),
        ] {
            let line = with(version, progress);
            assert!(
                line.starts_with("warning etcd e0: did not tell its progress within 6 s"),
                "{line}"
            );
        }
    }

    #[test]
    fn an_alarm_and_a_missing_leader_are_problems() {
        let alarmed = EndpointStatus {
            complaints: vec!["memberID:1 alarm:NOSPACE ".to_owned()],
            leader: false,
            ..status(1)
        };
        let lines = said(vec![Ok(alarmed)]);
        assert!(lines[0].contains("without a leader"), "{lines:?}");
        assert!(lines[1].contains("NOSPACE ; do: compact"), "{lines:?}");
    }
}
