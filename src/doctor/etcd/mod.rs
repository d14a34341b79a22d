//! etcd: each endpoint for itself, then what is stored there and what we may do with it. Pure; [`look`] and [`store`]
//! observe.

pub mod look;
pub mod store;

use std::time::Duration;

use self::store::{Failed, Store};
use super::finding::Finding;
use super::trouble::{Keys, Trouble};
use crate::cluster::etcd::orders_requested_progress;
use crate::config::Etcd;

const KEYS: Keys = Keys {
    server: "etcd",
    address: "etcd.endpoints",
    authority: "etcd.caFile",
    name: "the host in etcd.endpoints",
    certificate: "etcd.certFile",
    serving: "etcd's serving certificate (its --cert-file)",
};

const NO_SPACE: &str =
    "compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm";

/// What an endpoint said of itself.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Empty: kine.
    pub version: String,
    /// 0: it does not say.
    pub cluster: u64,
    /// 0: it does not say.
    pub member: u64,
    /// Of the last change.
    pub revision: i64,
    /// There is one.
    pub leader: bool,
    /// What it complains about itself: alarms.
    pub complaints: Vec<String>,
    /// For all of that.
    pub took: Duration,
    /// How it tells how far it is.
    pub progress: Progress,
}

/// How an etcd tells how far it is while nothing changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Progress {
    /// By itself; the first time after so long.
    Timed(Duration),
    /// When asked.
    Asked,
    /// Not.
    Nothing,
    /// No watch could be opened.
    #[default]
    Unknown,
}

/// What is to be said of the endpoints.
pub fn endpoints(seen: &[(String, Result<Seen, Trouble>)]) -> Vec<Finding> {
    let answers = || {
        seen.iter()
            .filter_map(|(at, seen)| Some((at, seen.as_ref().ok()?)))
    };
    let common = answers()
        .map(|(_, seen)| seen.cluster)
        .filter(|cluster| *cluster != 0)
        .max_by_key(|cluster| {
            answers()
                .filter(|(_, seen)| seen.cluster == *cluster)
                .count()
        });
    let mut findings = Vec::new();
    for (index, (endpoint, seen_here)) in seen.iter().enumerate() {
        let about = format!("etcd {endpoint}");
        let answer = match seen_here {
            Ok(answer) => answer,
            Err(trouble) => {
                findings.push(trouble.finding(&about, &KEYS));
                continue;
            }
        };
        findings.push(itself(&about, answer));
        findings.extend(answer.complaints.iter().map(|text| complaint(&about, text)));
        if answer.cluster != 0 && common.is_some_and(|common| common != answer.cluster) {
            findings.push(Finding::problem(
                &about,
                "it is a member of another cluster than the others",
                "name only members of the etcd that the kube-apiservers use in etcd.endpoints",
            ));
        }
        let mut before = seen.iter().take(index);
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

fn itself(about: &str, seen: &Seen) -> Finding {
    let version = match seen.version.as_str() {
        "" => "no version, as kine says none",
        version => version,
    };
    if !seen.leader && !seen.version.is_empty() {
        return Finding::problem(
            about,
            format!("{version}, without a leader: most members are not there"),
            "start the other members, and see that they reach each other",
        );
    }
    let (revision, took) = (seen.revision, seen.took.as_millis());
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

fn progress(about: &str, seen: &Seen) -> Option<Finding> {
    match seen.progress {
        Progress::Unknown => None,
        Progress::Timed(first) => Some(Finding::ok(
            about,
            format!(
                "tells its progress by itself, after {:.1} s",
                first.as_secs_f64()
            ),
        )),
        Progress::Asked if orders_requested_progress(&seen.version) => Some(Finding::ok(
            about,
            "tells its progress when asked, which this version does in order",
        )),
        Progress::Asked | Progress::Nothing => Some(Finding::warning(
            about,
            format!(
                "did not tell its progress within {} s: last bookmarks will be missing, and watches that broke resume \
                 from further back",
                look::PROGRESS.as_secs()
            ),
            "start it with --experimental-watch-progress-notify-interval=5s (from 3.6 on \
             --watch-progress-notify-interval), as kubeadm does",
        )),
    }
}

/// What is to be said of what is stored, by whoever has the certificate of this name.
pub fn stored(config: &Etcd, user: Option<&str>, store: &Store) -> Vec<Finding> {
    let mut findings = Vec::new();
    let who = match user {
        Some(user) => format!("user {user} (etcd.certFile)"),
        None => "this proxy".to_owned(),
    };
    for (may, denied) in [("read", &store.unreadable), ("write", &store.unwritable)] {
        if !denied.is_empty() {
            findings.push(Finding::problem(
                "etcd permissions",
                format!("{who} may not {may} below {}", denied.join(", ")),
                format!(
                    "grant it a role that may {may} there: etcdctl role grant-permission --prefix"
                ),
            ));
        }
    }
    if store.unreadable.is_empty() && store.unwritable.is_empty() && store.failed.is_empty() {
        findings.push(Finding::ok(
            "etcd permissions",
            format!("{who} may read and write all that it needs"),
        ));
    }
    findings.extend(store.failed.iter().map(failure));
    findings.extend(
        store
            .filled
            .map(|filled| prefix(config, filled, &store.elsewhere)),
    );
    findings.extend(store.undecodable.iter().map(|(key, why)| {
        Finding::warning(
            format!("etcd key {key}"),
            format!("cannot be understood: {why}"),
            "see who wrote it; what was known of it before stays in use",
        )
    }));
    findings
}

fn failure(failed: &Failed) -> Finding {
    let Failed { to, below, why } = failed;
    Finding::problem(
        "etcd requests",
        format!("cannot {to} below {}: {why}", below.join(", ")),
        match why.contains("space exceeded") {
            true => NO_SPACE,
            false => "look again in a while, and read etcd's log",
        },
    )
}

fn prefix(config: &Etcd, filled: bool, elsewhere: &[String]) -> Finding {
    let prefix = &config.prefix;
    if filled {
        return Finding::ok(
            "etcd.prefix",
            format!("kube-apiservers store below {prefix}/"),
        );
    }
    let hint = match elsewhere {
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

    fn seen(cluster: u64, member: u64) -> Seen {
        Seen {
            version: "3.4.23".to_owned(),
            cluster,
            member,
            leader: true,
            progress: Progress::Asked,
            ..Seen::default()
        }
    }

    fn said(seen: Vec<Result<Seen, Trouble>>) -> Vec<String> {
        let named = seen.into_iter().enumerate();
        let named: Vec<_> = named.map(|(n, seen)| (format!("e{n}"), seen)).collect();
        endpoints(&named).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_member_of_another_cluster_is_named_and_a_dead_one_hides_nothing() {
        let lines = said(vec![
            Ok(seen(1, 1)),
            Err(Trouble::Refused),
            Ok(seen(2, 2)),
            Ok(seen(1, 3)),
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
            let seen = Seen {
                version,
                progress,
                ..seen(1, 1)
            };
            said(vec![Ok(seen)]).remove(1)
        };
        let timed = Progress::Timed(Duration::from_millis(5100));
        assert!(with("3.4.23", timed).starts_with("ok      etcd e0: tells its progress by itself"));
        assert!(with("3.5.13", Progress::Asked).starts_with("ok "));
        for (version, progress) in [("3.4.23", Progress::Asked), ("3.5.13", Progress::Nothing)] {
            let line = with(version, progress);
            assert!(
                line.starts_with("warning etcd e0: did not tell its progress within 6 s"),
                "{line}"
            );
        }
    }

    #[test]
    fn an_alarm_and_a_missing_leader_are_problems() {
        let alarmed = Seen {
            complaints: vec!["memberID:1 alarm:NOSPACE ".to_owned()],
            leader: false,
            ..seen(1, 1)
        };
        let lines = said(vec![Ok(alarmed)]);
        assert!(lines[0].contains("without a leader"), "{lines:?}");
        assert!(lines[1].contains("NOSPACE ; do: compact"), "{lines:?}");
    }
}
