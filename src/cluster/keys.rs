//! Where things are kept in etcd.

use std::net::SocketAddr;

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
    /// Leases of one namespace, by its place in `identity.leaseNamespaces`.
    Leases(u8),
}

/// In place of the server ID in the claim of a proxy that has none yet. No server has this ID.
const UNNAMED: &str = "-";

/// Topics without those of lease namespaces.
const FIXED: [Topic; 9] = [
    Topic::Servers,
    Topic::Live,
    Topic::PeerEndpoints,
    Topic::StorageVersions,
    Topic::Definitions,
    Topic::ApiServices,
    Topic::Claims,
    Topic::MasterLeases,
    Topic::HeaderNames,
];

impl Topic {
    /// All topics, with so many lease namespaces.
    pub fn all(namespaces: usize) -> impl Iterator<Item = Topic> {
        let namespaces = u8::try_from(namespaces).unwrap_or(u8::MAX);
        FIXED.into_iter().chain((0..namespaces).map(Topic::Leases))
    }

    /// Its place in [`Topic::all`].
    pub fn index(self) -> usize {
        match self {
            Topic::Servers => 0,
            Topic::Live => 1,
            Topic::PeerEndpoints => 2,
            Topic::StorageVersions => 3,
            Topic::Definitions => 4,
            Topic::ApiServices => 5,
            Topic::Claims => 6,
            Topic::MasterLeases => 7,
            Topic::HeaderNames => 8,
            Topic::Leases(namespace) => FIXED.len() + usize::from(namespace),
        }
    }

    /// Name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Servers => "servers",
            Topic::Live => "live",
            Topic::PeerEndpoints => "peerserverleases",
            Topic::StorageVersions => "storageversions",
            Topic::Definitions => "customresourcedefinitions",
            Topic::ApiServices => "apiservices",
            Topic::Claims => "claims",
            Topic::MasterLeases => "masterleases",
            Topic::HeaderNames => "extension-apiserver-authentication",
            Topic::Leases(_) => "leases",
        }
    }

    /// Whether it is not followed if etcd's role does not permit to read it: a role from before may not include it.
    pub fn is_optional(self) -> bool {
        self.is_of_bare_servers() || self == Topic::HeaderNames
    }

    /// Whether it tells only of apiservers without a proxy.
    pub fn is_of_bare_servers(self) -> bool {
        self == Topic::MasterLeases
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

    /// The key prefix of a topic, with a trailing slash; without one it is the only key of the topic. Ours have the cluster's prefix in them, so that two clusters in one
    /// etcd stay apart.
    pub fn of(&self, topic: Topic) -> String {
        let prefix = &self.prefix;
        match topic {
            Topic::Servers => format!("/kube-interop-proxy{prefix}/servers/"),
            Topic::Live => format!("/kube-interop-proxy{prefix}/live/"),
            Topic::PeerEndpoints => format!("{prefix}/peerserverleases/"),
            Topic::StorageVersions => format!("{prefix}/storageversions/"),
            Topic::Definitions => {
                format!("{prefix}/apiextensions.k8s.io/customresourcedefinitions/")
            }
            Topic::ApiServices => format!("{prefix}/apiregistration.k8s.io/apiservices/"),
            Topic::Claims => format!("/kube-interop-proxy{prefix}/claims/"),
            Topic::MasterLeases => format!("{prefix}/masterleases/"),
            Topic::HeaderNames => {
                format!("{prefix}/configmaps/kube-system/extension-apiserver-authentication")
            }
            Topic::Leases(namespace) => {
                let namespace = self.namespaces.get(usize::from(namespace));
                format!("{prefix}/leases/{}/", namespace.map_or("", String::as_str))
            }
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
    fn topics_are_numbered_in_their_order() {
        let numbers: Vec<_> = Topic::all(2).map(Topic::index).collect();
        assert_eq!(numbers, (0..11).collect::<Vec<_>>());
    }
}
