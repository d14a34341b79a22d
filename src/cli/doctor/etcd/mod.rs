//! Findings about etcd: its endpoints, what is stored there, and the proxy's permissions. Pure; [`probe`] and
//! [`inventory`] observe.

pub mod inventory;
pub mod probe;

use std::time::Duration;

use self::inventory::{EtcdInventory, FailedRequests};
use super::connection_failure::{ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use crate::cluster::etcd::orders_requested_progress;
use crate::config::EtcdConfig;

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

const NO_SPACE: &str =
    "compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm";

/// Status of one endpoint.
#[derive(Debug, Clone, Default)]
pub struct EndpointStatus {
    /// Empty for kine, which reports none.
    pub version: String,
    /// Cluster ID; 0: unknown.
    pub cluster: u64,
    /// Member ID; 0: unknown.
    pub member: u64,
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

pub fn endpoints(statuses: &[(String, Result<EndpointStatus, ConnectionFailure>)]) -> Vec<Finding> {
    let answers = || {
        statuses
            .iter()
            .filter_map(|(at, status)| Some((at, status.as_ref().ok()?)))
    };
    let common = answers()
        .map(|(_, status)| status.cluster)
        .filter(|cluster| *cluster != 0)
        .max_by_key(|cluster| {
            answers()
                .filter(|(_, status)| status.cluster == *cluster)
                .count()
        });
    let mut findings = Vec::new();
    for (index, (endpoint, status)) in statuses.iter().enumerate() {
        let about = format!("etcd {endpoint}");
        let answer = match status {
            Ok(answer) => answer,
            Err(failure) => {
                findings.push(failure.finding(&about, &KEYS));
                continue;
            }
        };
        findings.push(health(&about, answer));
        findings.extend(answer.complaints.iter().map(|text| complaint(&about, text)));
        if answer.cluster != 0 && common.is_some_and(|common| common != answer.cluster) {
            findings.push(Finding::problem(
                &about,
                "it is a member of another cluster than the others",
                "name only members of the etcd that the kube-apiservers use in etcd.endpoints",
            ));
        }
        let mut before = statuses.iter().take(index);
        let same = before.find(|(_, other)| {
            other
                .as_ref()
                .is_ok_and(|other| other.member == answer.member)
        });
        if let Some((other, _)) = same.filter(|_| answer.member != 0) {
            findings.push(Finding::info(&about, format!("the same member as {other}")));
        }
        findings.extend(progress(&about, answer));
    }
    findings
}

fn health(about: &str, status: &EndpointStatus) -> Finding {
    let version = match status.version.as_str() {
        "" => "no version, as kine says none",
        version => version,
    };
    if !status.leader && !status.version.is_empty() {
        return Finding::problem(
            about,
            format!("{version}, without a leader: most members are not there"),
            "start the other members, and see that they reach each other",
        );
    }
    let (revision, took) = (status.revision, status.took.as_millis());
    Finding::ok(about, format!("{version}, revision {revision}, {took} ms"))
}

fn complaint(about: &str, text: &str) -> Finding {
    let advice = match text.contains("NOSPACE") {
        true => {
            "compact and defragment it, or raise --quota-backend-bytes, then etcdctl alarm disarm"
        }
        false => "read etcd's log, and its documentation of alarms",
    };
    Finding::problem(about, format!("it says of itself: {text}"), advice)
}

fn progress(about: &str, status: &EndpointStatus) -> Option<Finding> {
    match status.progress {
        Progress::Unknown => None,
        Progress::Periodic(first) => Some(Finding::ok(
            about,
            format!(
                "tells its progress by itself, after {:.1} s",
                first.as_secs_f64()
            ),
        )),
        Progress::OnRequest if orders_requested_progress(&status.version) => Some(Finding::ok(
            about,
            "tells its progress when asked, which this version does in order",
        )),
        Progress::OnRequest | Progress::Missing => Some(Finding::warning(
            about,
            format!(
                "did not tell its progress within {} s: last bookmarks will be missing, and watches that broke resume \
                 from further back",
                PROGRESS_TIMEOUT.as_secs()
            ),
            "start it with --experimental-watch-progress-notify-interval=5s (from 3.6 on \
             --watch-progress-notify-interval), as kubeadm does from 1.25 on",
        )),
    }
}

/// `user`: common name of the client certificate.
pub fn stored(config: &EtcdConfig, user: Option<&str>, inventory: &EtcdInventory) -> Vec<Finding> {
    let mut findings = Vec::new();
    let subject = match user {
        Some(user) => format!("user {user} (etcd.certFile)"),
        None => "this proxy".to_owned(),
    };
    for (may, denied) in [
        ("read", &inventory.unreadable),
        ("write", &inventory.unwritable),
    ] {
        if !denied.is_empty() {
            findings.push(Finding::problem(
                "etcd permissions",
                format!("{subject} may not {may} below {}", denied.join(", ")),
                format!(
                    "grant it a role that may {may} there: etcdctl role grant-permission --prefix"
                ),
            ));
        }
    }
    for (denied, so, or) in [
        (
            &inventory.unreadable_of_bare_servers,
            "apiservers without a proxy are not seen",
            ", or set rerouting.bareServers: Ignore",
        ),
        (
            &inventory.unreadable_header_names,
            "the header names of other apiservers are known later",
            "",
        ),
    ] {
        if !denied.is_empty() {
            findings.push(Finding::warning(
                "etcd permissions",
                format!("{subject} may not read below {}: {so}", denied.join(", ")),
                format!("grant it a role that may read there (deploy/etcd-role.sh){or}"),
            ));
        }
    }
    if inventory.unreadable.is_empty()
        && inventory.unwritable.is_empty()
        && inventory.failed.is_empty()
    {
        findings.push(Finding::ok(
            "etcd permissions",
            format!("{subject} may read and write all that it needs"),
        ));
    }
    findings.extend(inventory.failed.iter().map(failure));
    findings.extend(
        inventory
            .stored
            .has_apiserver_keys
            .map(|has_apiserver_keys| {
                prefix(config, has_apiserver_keys, &inventory.other_prefixes)
            }),
    );
    findings.extend(inventory.stored.undecodable.iter().map(|(key, why)| {
        Finding::warning(
            format!("etcd key {key}"),
            format!("cannot be understood: {why}"),
            "see who wrote it; what was known of it before stays in use",
        )
    }));
    findings
}

fn failure(failed: &FailedRequests) -> Finding {
    let FailedRequests { to, below, why } = failed;
    Finding::problem(
        "etcd requests",
        format!("cannot {to} below {}: {why}", below.join(", ")),
        match why.contains("space exceeded") {
            true => NO_SPACE,
            false => "look again in a while, and read etcd's log",
        },
    )
}

fn prefix(config: &EtcdConfig, has_apiserver_keys: bool, other_prefixes: &[String]) -> Finding {
    let prefix = &config.prefix;
    if has_apiserver_keys {
        return Finding::ok(
            "etcd.prefix",
            format!("kube-apiservers store below {prefix}/"),
        );
    }
    let hint = match other_prefixes {
        [] => "there is nothing else in this etcd either".to_owned(),
        places => format!("there are keys below {}", places.join(", ")),
    };
    Finding::problem(
        "etcd.prefix",
        format!("no kube-apiserver stores anything below {prefix}/; {hint}"),
        "make it what the kube-apiserver's --etcd-prefix says, and see that these endpoints are its --etcd-servers",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cluster: u64, member: u64) -> EndpointStatus {
        EndpointStatus {
            version: "3.4.23".to_owned(),
            cluster,
            member,
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
            Ok(status(1, 1)),
            Err(ConnectionFailure::Refused),
            Ok(status(2, 2)),
            Ok(status(1, 3)),
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
                ..status(1, 1)
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
            ..status(1, 1)
        };
        let lines = said(vec![Ok(alarmed)]);
        assert!(lines[0].contains("without a leader"), "{lines:?}");
        assert!(lines[1].contains("NOSPACE ; do: compact"), "{lines:?}");
    }
}
