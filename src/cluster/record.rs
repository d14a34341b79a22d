//! What proxies write to etcd about themselves: small JSON values that new versions can extend. Pure.
//!
//! Liveness and knowledge are two keys: a [`LiveKey`] goes away with its proxy, a [`Record`] stays for
//! `rerouting.absentServerGrace`, so that resources of an absent server do not count as served by no server.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::kube::gvr::{Gvr, ServedSet, api_version};
use crate::kube::version::KubernetesVersion;

/// One spelling for one address: IPv4 may come as IPv6 (`::ffff:10.0.0.1`).
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn canonical_address<'de, D: Deserializer<'de>>(field: D) -> Result<SocketAddr, D::Error> {
    SocketAddr::deserialize(field).map(canonical)
}

/// Describes a server: `/kube-interop-proxy<prefix>/servers/<serverID>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Where its proxy can be reached by peers.
    #[serde(deserialize_with = "canonical_address")]
    pub endpoint: SocketAddr,
    /// `gitVersion` of its apiserver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary_version: Option<String>,
    /// The version that its apiserver emulates, as `major.minor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compatibility_version: Option<String>,
    /// etcd revision since which its apiserver has watch history; not known to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_start: Option<i64>,
    /// etcd was restored or replaced since its apiserver started: it must not be asked for what was before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub history_void: bool,
    /// The apiserver's own ID, as [`LiveKey::api_server_id`]: what its entry below `peerserverleases` is named by.
    #[serde(
        default,
        rename = "apiServerID",
        skip_serializing_if = "Option::is_none"
    )]
    pub api_server_id: Option<String>,
    /// What its apiserver serves itself: group version (`v1`, `apps/v1`) to resources and subresources (`pods`,
    /// `pods/log`). [`LiveKey::record_revision`] tells whether this is current.
    pub resources: BTreeMap<String, Vec<String>>,
}

impl Record {
    /// The version that its apiserver emulates, if it says one.
    pub fn version(&self) -> Option<KubernetesVersion> {
        self.compatibility_version.as_deref()?.parse().ok()
    }
}

/// Proves that a server is alive: `/kube-interop-proxy<prefix>/live/<serverID>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveKey {
    /// Where its proxy can be reached by peers.
    #[serde(deserialize_with = "canonical_address")]
    pub endpoint: SocketAddr,
    /// Whether its apiserver is initialized.
    pub initialized: bool,
    /// Whether its apiserver's `/readyz` is 200, and it is not suspected to be frozen: others are asked first.
    #[serde(default)]
    pub ready: bool,
    /// The apiserver's own ID (KEP-1965), by which StorageVersions name it, if it is known and not the server ID.
    #[serde(rename = "apiServerID", skip_serializing_if = "Option::is_none")]
    pub api_server_id: Option<String>,
    /// The etcd revision since which the record says what its apiserver serves now, because readers get the two keys
    /// through separate watches and must not use an older record. A write without a change does not count. Absent from
    /// the apiserver's restart until discovery is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_revision: Option<i64>,
}

/// Says that a server is stopping, and still serves watches: `/kube-interop-proxy<prefix>/draining/<serverID>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainingKey {
    /// Where its proxy can be reached by peers.
    #[serde(deserialize_with = "canonical_address")]
    pub endpoint: SocketAddr,
    /// etcd revision since which its apiserver has watch history.
    pub history_start: i64,
}

/// Puts a served set into a record's form.
pub fn pack(served: &ServedSet) -> BTreeMap<String, Vec<String>> {
    let mut packed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for gvr in served {
        let group_version = api_version(&gvr.group, &gvr.version);
        let resource = match gvr.subresource.as_str() {
            "" => gvr.resource.clone(),
            subresource => format!("{}/{subresource}", gvr.resource),
        };
        packed.entry(group_version).or_default().push(resource);
    }
    packed
}

/// The inverse of [`pack`].
pub fn unpack(packed: &BTreeMap<String, Vec<String>>) -> ServedSet {
    let mut served = ServedSet::new();
    for (group_version, resources) in packed {
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        for resource in resources {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            served.insert(Gvr::new(group, version, resource, subresource));
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gvr(group: &str, version: &str, resource: &str, subresource: &str) -> Gvr {
        crate::kube::gvr::GvrRef {
            group,
            version,
            resource,
            subresource,
        }
        .owned()
    }

    #[test]
    fn a_served_set_survives_the_way_through_etcd() {
        let served: ServedSet = [
            gvr("", "v1", "pods", ""),
            gvr("", "v1", "pods", "log"),
            gvr("apps", "v1", "deployments", "scale"),
            gvr("autoscaling", "v2beta2", "horizontalpodautoscalers", ""),
        ]
        .into();
        let packed = pack(&served);
        assert_eq!(packed["v1"], ["pods", "pods/log"]);
        assert_eq!(unpack(&packed), served);
    }

    #[test]
    fn what_a_later_version_adds_is_no_error() {
        let record: Record = serde_json::from_str(
            r#"{"endpoint":"10.0.0.1:6443","resources":{},"invented":{"later":1}}"#,
        )
        .unwrap();
        assert_eq!(record.history_start, None);
        assert!(serde_json::from_str::<Record>(r#"{"endpoint":"nowhere"}"#).is_err());
    }
}
