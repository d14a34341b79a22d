//! Builds our Lease object (KEP-1965). Pure.
//!
//! Objects stay JSON values, so that fields written by others are kept.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cluster::codec::{self, MANAGED_BY, MANAGER, RENEWAL, micro_time, renewal};
use crate::kube::version::Versions;

const PEER_ADDRESS: &str = "kubernetes.io/peer-advertise-address";
const BINARY: &str = "kube-interop-proxy/binary-version";
const COMPATIBILITY: &str = "kube-interop-proxy/compatibility-version";
const LONGEST_LABEL: usize = 63;

/// The contents of our Lease.
#[derive(Debug, Clone)]
pub struct Contents<'a> {
    /// The Lease's name.
    pub id: &'a str,
    /// Our ID and a suffix that identifies this process.
    pub holder: &'a str,
    /// This host's name; left out where it cannot be a label.
    pub hostname: &'a str,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
    /// Versions of our apiserver, if known.
    pub versions: Option<&'a Versions>,
    /// How long the Lease is valid without a renewal.
    pub duration: Duration,
}

impl Contents<'_> {
    /// `found` with our fields renewed, and `acquireTime` set if another process held it; or a new Lease.
    pub fn renew(&self, found: Option<Value>, now: OffsetDateTime) -> Value {
        let new = || {
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.id},
            })
        };
        let mut lease = found.unwrap_or_else(new);
        let now = micro_time(now);
        let mut ours = json!({
            "metadata": {
                "labels": {
                    "apiserver.kubernetes.io/identity": "kube-apiserver",
                    "k8s.io/component": "kube-apiserver",
                    MANAGED_BY: MANAGER,
                },
                "annotations": {
                    PEER_ADDRESS: self.endpoint.to_string(),
                    RENEWAL: renewal(self.holder, &now),
                },
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": self.duration.as_secs().clamp(1, i32::MAX as u64),
                "renewTime": now,
            },
        });
        if can_be_label(self.hostname) {
            ours["metadata"]["labels"]["kubernetes.io/hostname"] = json!(self.hostname);
        }
        if let Some(versions) = self.versions {
            let annotations = &mut ours["metadata"]["annotations"];
            annotations[BINARY] = json!(versions.binary);
            if let Some(version) = versions.compatibility {
                annotations[COMPATIBILITY] = json!(version.to_string());
            }
        }
        if holder(&lease) != Some(self.holder) {
            ours["spec"]["acquireTime"] = json!(now);
        }
        merge(&mut lease, ours);
        lease
    }
}

/// Puts all fields of `from` into an object, and keeps the others.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Whether a proxy keeps it, as in etcd.
pub fn is_published(lease: &Value) -> bool {
    codec::lease(lease.to_string().as_bytes()).is_ok_and(|lease| lease.published)
}

/// Whether it names this endpoint.
pub fn is_of(lease: &Value, endpoint: SocketAddr) -> bool {
    lease["metadata"]["annotations"][PEER_ADDRESS] == endpoint.to_string()
}

/// Who holds it.
pub fn holder(lease: &Value) -> Option<&str> {
    lease["spec"]["holderIdentity"].as_str()
}

/// A deletion of exactly this state of exactly this object.
pub fn deletion(uid: &str, revision: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid, "resourceVersion": revision},
    })
}

fn can_be_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST_LABEL
        && text.bytes().all(inner)
        && text.starts_with(end)
        && text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> Versions {
        Versions {
            binary: "v1.20.2".into(),
            compatibility: "1.20".parse().ok(),
        }
    }

    fn contents(versions: Option<&Versions>) -> Contents<'_> {
        Contents {
            id: "cp-a",
            holder: "cp-a_1",
            hostname: "host-a",
            endpoint: "10.0.0.11:6443".parse().unwrap(),
            versions,
            duration: Duration::from_secs(3600),
        }
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    #[test]
    fn a_new_lease_says_who_we_are() {
        let versions = versions();
        let lease = contents(Some(&versions)).renew(None, at(1_000_000_000));
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": "cp-a",
                "labels": {
                    "apiserver.kubernetes.io/identity": "kube-apiserver",
                    "k8s.io/component": "kube-apiserver",
                    "kubernetes.io/hostname": "host-a",
                    "app.kubernetes.io/managed-by": "kube-interop-proxy",
                },
                "annotations": {
                    "kubernetes.io/peer-advertise-address": "10.0.0.11:6443",
                    "kube-interop-proxy/renewal": "cp-a_1 2001-09-09T01:46:40.000000Z",
                    "kube-interop-proxy/binary-version": "v1.20.2",
                    "kube-interop-proxy/compatibility-version": "1.20",
                },
            },
            "spec": {
                "holderIdentity": "cp-a_1",
                "leaseDurationSeconds": 3600,
                "acquireTime": "2001-09-09T01:46:40.000000Z",
                "renewTime": "2001-09-09T01:46:40.000000Z",
            },
        });
        assert_eq!(lease, expected);
        assert!(is_published(&lease));
    }

    #[test]
    fn a_renewal_changes_the_time_and_keeps_what_others_added() {
        let mut lease = contents(None).renew(None, at(0));
        lease["metadata"]["labels"]["team"] = json!("a");
        lease["metadata"]["annotations"]["note"] = json!("b");
        lease["metadata"]["resourceVersion"] = json!("7");
        lease["spec"]["leaseTransitions"] = json!(3);
        let renewed = contents(None).renew(Some(lease.clone()), at(10));
        let mut expected = lease;
        let now = "1970-01-01T00:00:10.000000Z";
        expected["spec"]["renewTime"] = json!(now);
        expected["metadata"]["annotations"][RENEWAL] = json!(format!("cp-a_1 {now}"));
        assert_eq!(renewed, expected);
    }

    #[test]
    fn a_lease_of_the_process_before_is_acquired_anew() {
        let mut lease = contents(None).renew(None, at(0));
        lease["spec"]["holderIdentity"] = json!("cp-a_0");
        let renewed = contents(None).renew(Some(lease), at(10));
        assert_eq!(holder(&renewed), Some("cp-a_1"));
        assert_eq!(renewed["spec"]["acquireTime"], renewed["spec"]["renewTime"]);
    }

    #[test]
    fn unknown_versions_leave_known_annotations_alone() {
        let versions = versions();
        let lease = contents(Some(&versions)).renew(None, at(0));
        let renewed = contents(None).renew(Some(lease.clone()), at(0));
        assert_eq!(renewed, lease);
    }

    #[test]
    fn a_host_name_that_is_no_label_is_left_out() {
        for hostname in ["", "-a", "a.", "hö", &"x".repeat(64)] {
            let lease = Contents {
                hostname,
                ..contents(None)
            }
            .renew(None, at(0));
            let labels = lease["metadata"]["labels"].as_object().unwrap();
            assert!(!labels.contains_key("kubernetes.io/hostname"), "{hostname}");
        }
    }

    #[test]
    fn a_lease_is_published_while_a_proxy_is_who_renewed_it() {
        let ours = contents(None).renew(None, at(0));
        assert!(is_published(&ours));
        let changed = |change: fn(&mut Value)| {
            let mut lease = ours.clone();
            change(&mut lease);
            lease
        };
        for lease in [
            json!({}),
            json!({"metadata": {"labels": {MANAGED_BY: MANAGER}}}),
            changed(|lease| lease["metadata"]["labels"] = json!(null)),
            changed(|lease| lease["metadata"]["labels"][MANAGED_BY] = json!("Helm")),
            changed(|lease| lease["metadata"]["annotations"] = json!(null)),
            changed(|lease| lease["spec"]["holderIdentity"] = json!("cp-a_2")),
            changed(|lease| lease["spec"]["renewTime"] = json!("1970-01-01T00:00:01.000000Z")),
            changed(|lease| lease["spec"] = json!(null)),
        ] {
            assert!(!is_published(&lease), "{lease:#}");
        }
    }
}
