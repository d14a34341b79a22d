//! Where things are kept in etcd.

use std::net::SocketAddr;
use std::time::Duration;

/// Keys of one cluster: `prefix` is kube-apiserver's `--etcd-prefix`.
#[derive(Debug, Clone)]
pub struct EtcdKeys {
    prefix: String,
    namespaces: Vec<String>,
}

/// What is followed in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// What proxies tell of their apiservers; outlives them.
    Servers,
    /// Which proxies are alive; bound to an etcd lease.
    Live,
    /// Which apiservers with the native feature are alive; bound to an etcd lease.
    PeerEndpoints,
    /// StorageVersions.
    StorageVersions,
    /// CustomResourceDefinitions.
    Definitions,
    /// APIServices.
    ApiServices,
    /// Which proxies may not use their server ID, because another one does; bound to an etcd lease.
    Claims,
    /// Advertised addresses of living apiservers, as their keys name them; bound to an etcd lease of 15 s.
    MasterLeases,
    /// The header names by which apiservers recognise users: one key.
    HeaderNames,
    /// Which proxies are stopping, and have watches from a revision sent to them; bound to an etcd lease.
    Draining,
    /// Leases of one namespace, by its index in `identity.leaseNamespaces`.
    Leases(u8),
}

/// Before the cluster's prefix in our keys, so that two clusters in one etcd stay apart.
const OURS: &str = "/kube-interop-proxy";
const DEFINITIONS: &str = "/apiextensions.k8s.io/customresourcedefinitions/";
const API_SERVICES: &str = "/apiregistration.k8s.io/apiservices/";
const HEADER_NAMES: &str = "/configmaps/kube-system/extension-apiserver-authentication";

/// Lifetime of a key below `masterleases/`, which its apiserver writes every 10 s.
pub const MASTER_LEASE_TTL: Duration = Duration::from_secs(15);

/// In place of the server ID in the claim of a proxy that has none yet. No server has this ID.
const UNNAMED: &str = "-";

/// Topics without those of lease namespaces: what comes before the cluster's prefix in their keys, and what after it.
const FIXED: [(Topic, &str, &str); 10] = [
    (Topic::Servers, OURS, "/servers/"),
    (Topic::Live, OURS, "/live/"),
    (Topic::PeerEndpoints, "", "/peerserverleases/"),
    (Topic::StorageVersions, "", "/storageversions/"),
    (Topic::Definitions, "", DEFINITIONS),
    (Topic::ApiServices, "", API_SERVICES),
    (Topic::Claims, OURS, "/claims/"),
    (Topic::MasterLeases, "", "/masterleases/"),
    (Topic::HeaderNames, "", HEADER_NAMES),
    (Topic::Draining, OURS, "/draining/"),
];

impl Topic {
    /// All topics, with so many lease namespaces.
    pub fn all(namespaces: usize) -> impl Iterator<Item = Topic> {
        let namespaces = u8::try_from(namespaces).unwrap_or(u8::MAX);
        let fixed = FIXED.into_iter().map(|(topic, ..)| topic);
        fixed.chain((0..namespaces).map(Topic::Leases))
    }

    /// What comes before the cluster's prefix in its keys, and what after it.
    fn around_prefix(self) -> (&'static str, &'static str) {
        let fixed = FIXED.iter().find(|(topic, ..)| *topic == self);
        fixed.map_or(("", "/leases/"), |(_, before, after)| (before, after))
    }

    /// Name for logs and metrics: the end of its prefix.
    pub fn name(self) -> &'static str {
        let (_, path) = self.around_prefix();
        path.rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or(path)
    }

    /// Whether it is not followed if etcd's role does not permit to read it: a role from before may not include it.
    pub fn is_optional(self) -> bool {
        matches!(self, Topic::MasterLeases | Topic::HeaderNames)
    }
}

impl EtcdKeys {
    /// `prefix`: with a leading and without a trailing slash, as the configuration guarantees.
    pub fn new(prefix: &str, namespaces: &[String]) -> Self {
        Self {
            prefix: prefix.to_owned(),
            namespaces: namespaces.to_vec(),
        }
    }

    /// All topics there are.
    pub fn topics(&self) -> impl Iterator<Item = Topic> {
        Topic::all(self.namespaces.len())
    }

    /// The key prefix of a topic, with a trailing slash; without one it is the only key of the topic.
    pub fn of(&self, topic: Topic) -> String {
        let (before, path) = topic.around_prefix();
        let keys = format!("{before}{}{path}", self.prefix);
        match topic {
            Topic::Leases(namespace) => {
                let namespace = self.namespaces.get(usize::from(namespace));
                format!("{keys}{}/", namespace.map_or("", String::as_str))
            }
            _ => keys,
        }
    }

    /// Below which proxies that may not use `id`, because another one does, say so: each in a key named by its address.
    pub fn claims(&self, id: &str) -> String {
        format!("{}{id}/", self.of(Topic::Claims))
    }
}

/// The claim of the proxy at `address`, below the prefix of [`Topic::Claims`]. `id`: the ID that it may not use; `None`:
/// it has no ID yet.
pub fn claim(id: Option<&str>, address: SocketAddr) -> String {
    format!("{}/{address}", id.unwrap_or(UNNAMED))
}

/// Whose claim a key below the prefix of [`Topic::Claims`] is.
pub fn claimant(key: &str) -> Option<SocketAddr> {
    let (_, address) = key.rsplit_once('/')?;
    address.parse().ok()
}

/// Whether a key below the prefix of [`Topic::Claims`] names an ID that another proxy uses.
pub fn claims_an_id(key: &str) -> bool {
    key.split_once('/').is_none_or(|(id, _)| id != UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_in_one_etcd_stay_apart() {
        let namespaces = ["kube-system".to_owned()];
        let (a, b) = (
            EtcdKeys::new("/registry", &namespaces),
            EtcdKeys::new("/registry2", &namespaces),
        );
        for topic in a.topics() {
            assert!(
                !b.of(topic).starts_with(&a.of(topic)) && !a.of(topic).starts_with(&b.of(topic))
            );
        }
        assert_eq!(
            a.of(Topic::Servers),
            "/kube-interop-proxy/registry/servers/"
        );
        assert_eq!(a.of(Topic::Live), "/kube-interop-proxy/registry/live/");
        assert_eq!(a.of(Topic::Leases(0)), "/registry/leases/kube-system/");
    }

    #[test]
    fn a_claim_tells_whose_it_is() {
        let keys = EtcdKeys::new("/registry", &[]);
        let all = keys.of(Topic::Claims);
        for address in ["10.0.0.1:6443", "[fd00::1]:6443"] {
            let key = format!("{}{address}", keys.claims("cp-a.example"));
            let claim = key.strip_prefix(&all).unwrap();
            assert_eq!(claimant(claim), Some(address.parse().unwrap()));
        }
        for key in ["", "cp-a", "cp-a/", "cp-a/nowhere"] {
            assert_eq!(claimant(key), None, "{key}");
            assert!(claims_an_id(key), "{key}");
        }
        let address = "10.0.0.1:6443".parse().unwrap();
        for (id, claims) in [(Some("cp-a"), true), (None, false)] {
            let key = claim(id, address);
            assert_eq!(
                (claimant(&key), claims_an_id(&key)),
                (Some(address), claims)
            );
        }
    }

    #[test]
    fn topics_are_listed_in_their_order() {
        let topics: Vec<_> = Topic::all(2).collect();
        assert!(topics.len() == 12 && topics.is_sorted());
    }
}
