//! The document of `/statusz`: the admin port writes it, the `status` command reads it.
//!
//! Fields stand in alphabetical order, in which the JSON has always been written. `None` is written as `null`. A reader
//! may meet another version of this program: it ignores fields that it does not know, and those that are missing get their
//! default.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::discovery::peer_discovery::SourceStatus;
use crate::reload::metrics::ReloadStatus;

/// Declares sections of the document; the names of fields are in camel case.
macro_rules! sections {
    ($( $(#[$about:meta])* pub struct $name:ident { $($fields:tt)* } )*) => { $(
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($fields)* }
    )* };
}

sections! {
    /// Everything that one proxy knows.
    pub struct StatusDocument {
        pub certificates: CertificatesStatus,
        pub config: ReloadStatus,
        pub custom: CustomStatus,
        pub discovery: DiscoveryStatus,
        pub etcd: EtcdStatus,
        /// As [`crate::cluster::report`] writes it; null while nothing can report.
        pub facts: Value,
        pub peers: Vec<PeerStatus>,
        pub resources: Vec<ResourceStatus>,
        pub server: ServerStatus,
        /// RFC 3339.
        pub time: Option<String>,
        pub watches: WatchesStatus,
        /// Set while the versions of live servers differ.
        pub window: Option<WindowStatus>,
    }

    /// Watches, and since the start those that left their server before their time.
    pub struct WatchesStatus {
        /// They went on at another server.
        pub continued: u64,
        /// No server could go on with them.
        pub ended: u64,
        /// They wait for a server now.
        pub held: i64,
        pub open: i64,
    }

    /// Versions that differ.
    pub struct WindowStatus {
        /// Requests that stayed at the local apiserver although others have the preferred version, since the start.
        pub left: u64,
        /// `versionAwareness.default`
        pub policy: String,
        /// RFC 3339.
        pub since: Option<String>,
        /// The oldest first.
        pub versions: Vec<String>,
    }

    /// This proxy and its apiserver.
    pub struct ServerStatus {
        /// The name of the apiserver's identity Lease.
        pub apiserver_id: Option<String>,
        pub checks: Vec<CheckStatus>,
        pub compatibility_version: Option<String>,
        pub discovery_known: bool,
        pub endpoint: String,
        pub history_start: Option<i64>,
        pub id: Option<String>,
        pub identity_lease_kept_by: Option<String>,
        pub initialized: bool,
        pub missing: Vec<String>,
        pub ready: bool,
        pub version: String,
    }

    /// A check of `/readyz`.
    pub struct CheckStatus {
        /// Why it fails; `None`: it passes.
        pub missing: Option<String>,
        pub name: String,
    }

    pub struct EtcdStatus {
        pub age_seconds: f64,
        pub lists: u64,
        pub restores: u64,
        pub revision: i64,
        pub synced: bool,
        pub undecodable: u64,
    }

    pub struct CertificatesStatus {
        /// Groups of files (`serving`, `upstream`, `etcd`) whose new files cannot be used.
        pub broken: Vec<String>,
        /// When files expire (RFC 3339), by configuration key.
        pub expire: BTreeMap<String, Option<String>>,
    }

    /// What peers serve and the local apiserver does not.
    pub struct DiscoveryStatus {
        pub added: Vec<AddedGroupVersion>,
        /// False until it was read again after a restart of the local apiserver.
        pub current: bool,
        pub sources: Vec<SourceStatus>,
    }

    pub struct AddedGroupVersion {
        pub group: String,
        pub resources: Vec<String>,
        pub stale: bool,
        pub version: String,
    }

    pub struct PeerStatus {
        /// Without a proxy and without a native one.
        pub bare: bool,
        pub binary_version: Option<String>,
        pub compatibility_version: Option<String>,
        /// Not live any more, and asked for watches that no target has the history of.
        pub draining: bool,
        pub endpoint: String,
        pub history_start: Option<i64>,
        pub id: String,
        pub initialized: bool,
        /// Whether `resources` is current.
        pub known: bool,
        pub live: bool,
        pub native: bool,
        /// It is a target whose apiserver is ready: others are asked last.
        pub ready: bool,
        /// How many it serves.
        pub resources: Option<u64>,
        pub target: bool,
        pub unhealthy: bool,
    }

    pub struct ResourceStatus {
        /// Servers that serve it and that no request is sent to.
        pub absent: Vec<String>,
        pub group: String,
        pub local: bool,
        /// Servers that serve it and that requests may be sent to.
        pub peers: Vec<String>,
        pub resource: String,
        pub subresource: String,
        pub version: String,
    }

    /// Resources that every apiserver serves, because objects in etcd define them.
    pub struct CustomStatus {
        /// Group versions of aggregated APIs.
        pub aggregated: BTreeSet<String>,
        /// Resources of CRDs, by group.
        pub definitions: BTreeMap<String, BTreeSet<String>>,
    }
}

/// States of another server: the label of `kube_interop_proxy_peers`, and the words of the page and of `status`.
pub const PEER_STATES: [&str; 4] = ["target", "live", "bare", "absent"];

/// Which of [`PEER_STATES`] it is.
pub fn peer_state(live: bool, bare: bool, target: bool) -> &'static str {
    let [is_target, is_live, is_bare, is_absent] = PEER_STATES;
    match (live, bare, target) {
        (false, ..) => is_absent,
        (_, true, _) => is_bare,
        (.., true) => is_target,
        _ => is_live,
    }
}

impl StatusDocument {
    /// What of etcd is not followed because its role does not permit to read it.
    pub fn not_followed(&self) -> String {
        let topics = self.facts["notFollowed"].as_array().into_iter().flatten();
        let names: Vec<_> = topics.filter_map(Value::as_str).collect();
        names.join(", ")
    }

    /// Second proxies that claim a server ID, as `<server ID>/<address>`.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        let claims = self.facts["claims"].as_array().into_iter().flatten();
        claims.map(|claim| claim.as_str().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of everything.
    fn document() -> StatusDocument {
        StatusDocument {
            certificates: CertificatesStatus {
                expire: [("etcd.caFile".to_owned(), None)].into(),
                ..CertificatesStatus::default()
            },
            discovery: DiscoveryStatus {
                added: vec![AddedGroupVersion::default()],
                sources: vec![SourceStatus::default()],
                ..DiscoveryStatus::default()
            },
            etcd: EtcdStatus {
                age_seconds: 0.25,
                ..EtcdStatus::default()
            },
            peers: vec![PeerStatus::default()],
            resources: vec![ResourceStatus::default()],
            server: ServerStatus {
                checks: vec![CheckStatus::default()],
                ..ServerStatus::default()
            },
            ..StatusDocument::default()
        }
    }

    #[test]
    fn every_object_has_its_keys_in_alphabetical_order() {
        let written = serde_json::to_string(&document()).unwrap();
        // A map of serde_json is sorted.
        let sorted: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(written, sorted.to_string());
        assert!(written.contains(r#""ageSeconds":0.25"#), "{written}");
    }

    #[test]
    fn who_is_not_live_is_absent_and_who_has_no_proxy_is_bare() {
        for (live, bare, target, expected) in [
            (true, false, true, "target"),
            (true, false, false, "live"),
            (true, true, true, "bare"),
            (true, true, false, "bare"),
            (false, false, false, "absent"),
            (false, true, false, "absent"),
        ] {
            assert_eq!(peer_state(live, bare, target), expected);
            assert!(PEER_STATES.contains(&expected));
        }
    }

    #[test]
    fn what_is_written_is_read_and_other_versions_are_too() {
        let read = |value| serde_json::from_value::<StatusDocument>(value).unwrap();
        let written = serde_json::to_value(document()).unwrap();
        assert_eq!(read(written), document());
        let other = read(serde_json::json!({"server": {"ready": true, "later": {}}}));
        assert!(other.server.ready && other.server.id.is_none());
    }
}
