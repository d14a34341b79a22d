//! Where things are kept in etcd.

/// Keys of one cluster: `prefix` is kube-apiserver's `--etcd-prefix`.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

/// What is followed in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// What proxies tell of their apiservers; outlives them.
    Servers,
    /// Which proxies are alive; bound to an etcd lease.
    Live,
    /// CustomResourceDefinitions.
    Definitions,
    /// APIServices.
    ApiServices,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 4] = [
        Topic::Servers,
        Topic::Live,
        Topic::Definitions,
        Topic::ApiServices,
    ];

    /// Name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Servers => "servers",
            Topic::Live => "live",
            Topic::Definitions => "customresourcedefinitions",
            Topic::ApiServices => "apiservices",
        }
    }
}

impl Keys {
    /// `prefix`: with a leading and without a trailing slash, as the configuration guarantees.
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// The key prefix of a topic, with a trailing slash. Ours have the cluster's prefix in them, so that two clusters
    /// in one etcd stay apart.
    pub fn of(&self, topic: Topic) -> String {
        let prefix = &self.prefix;
        match topic {
            Topic::Servers => format!("/kube-interop-proxy{prefix}/servers/"),
            Topic::Live => format!("/kube-interop-proxy{prefix}/live/"),
            Topic::Definitions => {
                format!("{prefix}/apiextensions.k8s.io/customresourcedefinitions/")
            }
            Topic::ApiServices => format!("{prefix}/apiregistration.k8s.io/apiservices/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_in_one_etcd_stay_apart() {
        let (a, b) = (Keys::new("/registry"), Keys::new("/registry2"));
        for topic in Topic::ALL {
            assert!(
                !b.of(topic).starts_with(&a.of(topic)) && !a.of(topic).starts_with(&b.of(topic))
            );
        }
        assert_eq!(
            a.of(Topic::Servers),
            "/kube-interop-proxy/registry/servers/"
        );
        assert_eq!(a.of(Topic::Live), "/kube-interop-proxy/registry/live/");
    }
}
