//! etcd: its endpoints, each over its own connection. What is stored there is checked by [`super::stored`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, StatusResponse, WatchOptions, WatchStream};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::finding::Finding;
use super::probe::{self, ConfigKeys, ConnectionFailure, PATIENCE};
use super::stored::{self, Inventory, UNUSED_NAME};
use super::told;
use crate::cluster::connector::{self, Connector, within};
use crate::cluster::etcd::orders_requested_progress;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::config::{Config, EtcdConfig};
use crate::tls::files::FileSnapshot;

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

/// What is known of etcd: with a client of the first endpoint that answers.
type EtcdReport = (Vec<Finding>, Option<Client>, Option<Inventory>);

/// What one endpoint says of itself, if anything: old versions of kine have no status request.
type Answer = Result<(Option<StatusResponse>, Client), ConnectionFailure>;

pub async fn check(config: &Config, reading: &FileSnapshot<'_>) -> EtcdReport {
    let etcd = &config.etcd;
    let tls = match connector::tls_options(etcd, reading) {
        Ok(tls) => Arc::new(ArcSwapOption::from_pointee(tls)),
        Err(error) => return (vec![told::skipped("etcd", error)], None, None),
    };
    let connector = Connector::new(etcd, tls);
    let key = EtcdKeys::new(&etcd.prefix, &[]).of(Topic::Live) + UNUSED_NAME;
    let asking = (0..etcd.endpoints.len())
        .map(|number| probe::within(PATIENCE, ask(connector.starting_at(number), &key)));
    let answers = join_all(asking).await;
    let client = answers.iter().flatten().next().map(|it| it.1.clone());
    let reading_stored = async {
        let reading = stored::check(config, client.as_ref()?);
        timeout(super::PATIENCE, reading).await.ok()
    };
    let endpoints = etcd.endpoints.iter().zip(&answers);
    let told = endpoints.map(async |(at, answer)| {
        let about = format!("etcd {at}");
        match answer {
            Ok((status, client)) => {
                let version = status.as_ref().map_or("", StatusResponse::version);
                let mut findings = match status {
                    Some(it) => of_status(&about, version, it.leader(), it.errors()),
                    None => of_status(&about, version, 0, &[]),
                };
                if is_quiet(client.clone(), &key, version).await {
                    findings.push(told::no_progress(&about, PROGRESS_TIMEOUT.as_secs()));
                }
                findings
            }
            // Without TLS nothing is said of certificates.
            Err(ConnectionFailure::CertificateRefused(why)) if etcd.ca_file.is_none() => {
                vec![ConnectionFailure::Other(why.clone()).finding(&about, &KEYS)]
            }
            Err(failure) => vec![failure.finding(&about, &KEYS)],
        }
    });
    let (told, stored) = tokio::join!(join_all(told), reading_stored);
    let (of_stored, stored) = stored.unzip();
    let mut findings = told.concat();
    findings.extend(clusters(etcd, &answers));
    findings.extend(of_stored.into_iter().flatten());
    (findings, client, stored)
}

/// Whether endpoints are of several clusters.
fn clusters(etcd: &EtcdConfig, answers: &[Answer]) -> Option<Finding> {
    let endpoints = etcd.endpoints.iter().zip(answers);
    let members = endpoints.filter_map(|(at, answer)| {
        let (status, _) = answer.as_ref().ok()?;
        let cluster = status.as_ref()?.header()?.cluster_id();
        (cluster != 0).then(|| (cluster, format!("{at} of {cluster:x}")))
    });
    let (clusters, named): (BTreeSet<_>, Vec<_>) = members.unzip();
    (clusters.len() > 1).then(|| told::clusters("etcd.endpoints", named.join(", ")))
}

/// `leader`: 0 if there is none; `errors`: alarms and others.
fn of_status(about: &str, version: &str, leader: u64, errors: &[String]) -> Vec<Finding> {
    let state = match version {
        "" => told::answers(about, "no version, as kine says none"),
        _ if leader != 0 => told::answers(about, version),
        _ => told::no_leader(about, version),
    };
    let errors = errors.iter().map(|text| told::alarm(about, text));
    [state].into_iter().chain(errors).collect()
}

/// Connects to one endpoint, and reads its status.
async fn ask(mut connector: Connector, key: &str) -> Answer {
    let mut client = connector.connect().await?;
    let status = match within(client.status()).await {
        Ok(status) => Some(status),
        // Older versions of kine have no status request.
        Err(error) => {
            within(client.get(key, None)).await.map_err(|_| error)?;
            None
        }
    };
    Ok((status, client))
}

/// Whether a watch of `key`, which nothing writes, is not told its progress, or not in an order that can be relied on.
async fn is_quiet(mut client: Client, key: &str, version: &str) -> bool {
    let options = WatchOptions::new().with_progress_notify();
    let Ok(mut stream) = within(client.watch(key, Some(options))).await else {
        return false;
    };
    let told = timeout(PROGRESS_TIMEOUT, notified(&mut stream)).await;
    if told.is_ok() || !orders_requested_progress(version) {
        return told.is_err();
    }
    let requested = within(stream.request_progress()).await;
    let told = timeout(REQUESTED_PROGRESS_TIMEOUT, notified(&mut stream));
    requested.is_err() || told.await.is_err()
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
        let alarm = "memberID:1 alarm:NOSPACE ".to_owned();
        let lines = of_status("etcd e0", "3.4.23", 0, &[alarm]);
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert!(lines[0].contains("without a leader"), "{lines:?}");
        assert!(lines[1].contains("NOSPACE ; do: "), "{lines:?}");
    }
}
