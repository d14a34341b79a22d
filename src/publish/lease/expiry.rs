//! Finds expired Leases of dead proxies. Pure.
//!
//! Times in Leases do not count, so that clocks are never compared: a Lease is expired when it has not changed for its
//! duration, by this process's clock.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// An identity Lease, as etcd has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedLease {
    pub namespace: String,
    /// The ID of a server.
    pub name: String,
    /// etcd's revision of its last change, which is its resourceVersion.
    pub revision: i64,
    pub uid: String,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
    /// A proxy published it.
    pub published: bool,
}

/// When each Lease was last changed.
#[derive(Debug, Default)]
pub struct LeaseTracker {
    seen: HashMap<(String, String), LastChange>,
}

#[derive(Debug)]
struct LastChange {
    uid: String,
    revision: i64,
    since: Instant,
}

impl LeaseTracker {
    /// Takes all current Leases; returns the expired ones that proxies published. `own`: namespace and name of this proxy's
    /// own Lease, which is never returned.
    pub fn expired<'a>(
        &mut self,
        leases: &'a [ObservedLease],
        own: Option<(&str, &str)>,
        now: Instant,
    ) -> Vec<&'a ObservedLease> {
        let mut seen = HashMap::with_capacity(leases.len());
        let mut expired = Vec::new();
        for lease in leases.iter().filter(|lease| lease.published) {
            let key = (lease.namespace.clone(), lease.name.clone());
            let since = self
                .seen
                .remove(&key)
                .filter(|seen| seen.revision == lease.revision && seen.uid == lease.uid)
                .map_or(now, |seen| seen.since);
            let is_own = own == Some((&lease.namespace, &lease.name));
            if !is_own && now.saturating_duration_since(since) > lease.duration {
                expired.push(lease);
            }
            let (uid, revision) = (lease.uid.clone(), lease.revision);
            seen.insert(
                key,
                LastChange {
                    uid,
                    revision,
                    since,
                },
            );
        }
        self.seen = seen;
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Option<(&str, &str)> = Some(("kube-system", "own"));

    fn lease(name: &str, revision: i64) -> ObservedLease {
        ObservedLease {
            namespace: "kube-system".into(),
            name: name.into(),
            revision,
            uid: "uid".into(),
            duration: Duration::from_secs(10),
            published: true,
        }
    }

    /// Name, what is seen at which second, names that are expired at the last of them.
    type Row = (
        &'static str,
        Vec<(u64, Vec<ObservedLease>)>,
        Vec<&'static str>,
    );

    fn rows() -> Vec<Row> {
        let a = |revision| vec![lease("a", revision)];
        let foreign = vec![ObservedLease {
            published: false,
            ..lease("a", 1)
        }];
        let again = vec![ObservedLease {
            uid: "other".into(),
            ..lease("a", 1)
        }];
        let elsewhere = vec![ObservedLease {
            namespace: "other".into(),
            ..lease("own", 1)
        }];
        let shorter = vec![ObservedLease {
            duration: Duration::from_secs(3),
            ..lease("a", 2)
        }];
        vec![
            ("first sight", vec![(99, a(1))], vec![]),
            ("within its time", vec![(0, a(1)), (10, a(1))], vec![]),
            ("beyond its time", vec![(0, a(1)), (11, a(1))], vec!["a"]),
            (
                "renewed meanwhile",
                vec![(0, a(1)), (9, a(2)), (15, a(2))],
                vec![],
            ),
            (
                "renewed, then silent",
                vec![(0, a(1)), (9, a(2)), (20, a(2))],
                vec!["a"],
            ),
            (
                "renewed at the last moment",
                vec![(0, a(1)), (11, a(2))],
                vec![],
            ),
            (
                "its newest duration counts",
                vec![(0, a(1)), (1, shorter.clone()), (5, shorter)],
                vec!["a"],
            ),
            (
                "made again under its name",
                vec![(0, a(1)), (11, again)],
                vec![],
            ),
            (
                "gone for a while",
                vec![(0, a(1)), (5, vec![]), (11, a(1))],
                vec![],
            ),
            ("gone", vec![(0, a(1)), (11, vec![])], vec![]),
            (
                "kept by its apiserver",
                vec![(0, foreign.clone()), (99, foreign.clone())],
                vec![],
            ),
            ("published only now", vec![(0, foreign), (99, a(1))], vec![]),
            (
                "our own",
                vec![(0, vec![lease("own", 1)]), (99, vec![lease("own", 1)])],
                vec![],
            ),
            (
                "our name in another namespace",
                vec![(0, elsewhere.clone()), (99, elsewhere)],
                vec!["own"],
            ),
            (
                "each for itself",
                vec![
                    (0, vec![lease("a", 1), lease("b", 2)]),
                    (8, vec![lease("a", 3), lease("b", 2)]),
                    (12, vec![lease("a", 3), lease("b", 2)]),
                ],
                vec!["b"],
            ),
            (
                "still there after a failed deletion",
                vec![(0, a(1)), (11, a(1)), (12, a(1))],
                vec!["a"],
            ),
        ]
    }

    #[test]
    fn only_what_a_proxy_published_and_nobody_renewed_is_expired() {
        let start = Instant::now();
        for (name, sightings, expected) in rows() {
            let mut tracker = LeaseTracker::default();
            let mut last = Vec::new();
            for (second, leases) in &sightings {
                let now = start + Duration::from_secs(*second);
                last = tracker.expired(leases, OWN, now);
            }
            let names: Vec<_> = last.iter().map(|lease| lease.name.as_str()).collect();
            assert_eq!(names, expected, "{name}");
        }
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut tracker = LeaseTracker::default();
        tracker.expired(&[lease("a", 1)], None, Instant::now());
        tracker.expired(&[], None, Instant::now());
        assert!(tracker.seen.is_empty());
    }
}
