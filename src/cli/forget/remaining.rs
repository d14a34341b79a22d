//! References to a server that kube-apiserver keeps, and that `forget` does not delete. Pure.

use std::time::{Duration, SystemTime};

use super::super::text::{plain, span};
use crate::cluster::codec::{self, Lease};

/// A Lease that was renewed less than this ago is in use: apiservers and proxies renew theirs every 10 s.
const FRESH: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
pub(super) struct RemainingReferences {
    /// Identity Leases with their namespaces.
    pub(super) leases: Vec<(String, Lease)>,
    /// Number of StorageVersions that name the server.
    pub(super) storage_versions: usize,
}

/// The Lease in `value`, if it is an identity Lease.
pub(super) fn identity(value: &[u8]) -> Option<Lease> {
    let lease = codec::lease(value).ok()?;
    (lease.identity || lease.published).then_some(lease)
}

/// Whether a StorageVersion names `id`.
pub(super) fn names(value: &[u8], id: &str) -> bool {
    let versions = codec::storage_version(value).unwrap_or_default();
    versions.iter().any(|versions| versions.server == id)
}

/// One line for each; empty without any.
pub(super) fn text(id: &str, remains: &RemainingReferences, now: SystemTime) -> String {
    let id = plain(id);
    let mut text = String::new();
    for (namespace, lease) in &remains.leases {
        let namespace = plain(namespace);
        text.push_str(&format!(
            "Stays: Lease {namespace}/{id}, {}",
            renewed(lease, now)
        ));
        text.push_str(match lease.published {
            true => "other proxies delete it when it has expired",
            false => "kube-apiservers delete it when it has expired",
        });
        text.push_str(&format!(", or: kubectl -n {namespace} delete lease {id}\n"));
    }
    if remains.storage_versions > 0 {
        text.push_str(&format!(
            "Stays: {} StorageVersions that name {id}; kube-controller-manager removes it from them once its Lease is gone\n",
            remains.storage_versions
        ));
    }
    text
}

fn renewed(lease: &Lease, now: SystemTime) -> String {
    let Some(age) = lease.renewed.and_then(|at| now.duration_since(at).ok()) else {
        return String::new();
    };
    let ago = span(age.as_secs_f64());
    match age <= FRESH {
        true => format!("renewed {ago} ago (whose it is seems to live!); "),
        false => format!("renewed {ago} ago; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(published: bool, age: Option<u64>) -> (RemainingReferences, SystemTime) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let lease = Lease {
            identity: true,
            published,
            hostname: None,
            holder: None,
            duration: None,
            renewed: age.map(|age| now - Duration::from_secs(age)),
            uid: String::new(),
        };
        let leases = vec![("kube-system".to_owned(), lease)];
        (
            RemainingReferences {
                leases,
                storage_versions: 0,
            },
            now,
        )
    }

    #[test]
    fn nothing_remains_without_a_word() {
        assert_eq!(
            text("cp-3", &RemainingReferences::default(), SystemTime::now()),
            ""
        );
    }

    #[test]
    fn a_lease_is_named_with_what_removes_it() {
        let (remains, now) = lease(false, Some(1800));
        let said = text("cp-3", &remains, now);
        assert_eq!(
            said,
            "Stays: Lease kube-system/cp-3, renewed 30 min ago; kube-apiservers delete it when it has expired, or: \
             kubectl -n kube-system delete lease cp-3\n"
        );
        let (remains, now) = lease(true, None);
        assert!(text("cp-3", &remains, now).contains("cp-3, other proxies delete"));
    }

    #[test]
    fn a_lease_that_is_being_renewed_is_pointed_at() {
        let (remains, now) = lease(false, Some(5));
        assert!(text("cp-3", &remains, now).contains("seems to live"));
    }

    #[test]
    fn storage_versions_are_counted() {
        let value = br#"{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion",
            "status":{"storageVersions":[{"apiServerID":"cp-3"},{"apiServerID":"cp-4"}]}}"#;
        assert!(names(value, "cp-3") && !names(value, "cp") && !names(b"k8s:enc:", "cp-3"));
        let remains = RemainingReferences {
            storage_versions: 7,
            ..RemainingReferences::default()
        };
        let said = text("cp-3", &remains, SystemTime::now());
        assert!(
            said.starts_with("Stays: 7 StorageVersions that name cp-3;"),
            "{said}"
        );
    }

    #[test]
    fn leases_of_others_are_none_of_it() {
        let lease = |labels: &str| {
            let text = format!(
                r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"labels":{labels}}},"spec":{{}}}}"#
            );
            identity(text.as_bytes())
        };
        assert!(lease(r#"{"apiserver.kubernetes.io/identity":"kube-apiserver"}"#).is_some());
        assert!(lease("{}").is_none());
        assert!(identity(b"\0").is_none());
    }
}
