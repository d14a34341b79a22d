//! Since which version kube-apiserver understands what a request contains. The only place where that is listed; from 1.21
//! on, and what is older only where it was still new in 1.20. Pure.
//!
//! An older server ignores a query parameter that it does not know, and its client may wait for what never comes. So these
//! are looked at before a request is sent. What an older server rejects is only listed here: its answer tells
//! ([`crate::relay::inspect::not_understood`]).
//!
//! | media type | since | source |
//! |---|---|---|
//! | `application/apply-patch+yaml` | 1.16 | KEP-555 |
//! | `application/json;as=APIGroupDiscoveryList;v=v2beta1` | 1.26 | KEP-3352; clients name others after it |
//! | the same with `v=v2` | 1.30 | KEP-3352 |
//! | `application/cbor`, `application/cbor-seq`, `application/apply-patch+cbor` | 1.32 | KEP-4222, behind a gate |

use super::info::{RequestInfo, Verb, query_values};
use crate::kube::version::KubernetesVersion;

/// Query parameters of lists, of watches, and of a pod's log, which alone is read with [`Verb::Get`] here: each with where
/// it has this meaning, and the minor version that began to understand it.
const PARAMETERS: [(&str, &[Verb], u32); 5] = [
    // KEP-2523.
    ("resourceVersionMatch", &[Verb::List], 19),
    // KEP-3157: forbidden for watches before.
    ("resourceVersionMatch", &[Verb::Watch], 27),
    // KEP-3157, behind a gate; without that the answer is 422.
    ("sendInitialEvents", &[Verb::Watch], 27),
    // KEP-5866, behind a gate.
    ("shardSelector", &[Verb::List, Verb::Watch], 36),
    // KEP-3288, behind a gate.
    ("stream", &[Verb::Get], 32),
];

/// Field selectors of the core group; older servers answer 400.
const FIELDS: [(&str, &str, u32); 3] = [
    // kubernetes#110477
    ("pods", "spec.hostNetwork", 28),
    // kubernetes#123905; kubelets use it since the same version.
    ("services", "spec.clusterIP", 31),
    ("services", "spec.type", 31),
];

/// The first version that understands all parameters of a read or watch; `None`: any version does.
pub fn parameters_since(info: &RequestInfo<'_>, query: Option<&str>) -> Option<KubernetesVersion> {
    let asked = info.gvr()?;
    let query = Some(query.filter(|query| !query.is_empty())?);
    let core = asked.group.is_empty();
    let names = (asked.resource, asked.subresource);
    let concerns = info.verb != Verb::Get || core && names == ("pods", "log");
    let is_used = |name: &str| {
        let value = query_values(query, name).next();
        value.is_some_and(|value| !value.is_empty())
    };
    let used = PARAMETERS.iter().filter_map(|(name, verbs, since)| {
        (concerns && verbs.contains(&info.verb) && is_used(name)).then_some(*since)
    });
    let selects = core && matches!(info.verb, Verb::List | Verb::Watch);
    let selector = selects.then(|| query_values(query, "fieldSelector").next());
    let fields = selector.flatten().and_then(|it| fields_since(&it, names.0));
    let minor = used.chain(fields).max()?;
    Some(KubernetesVersion::new(1, minor))
}

fn fields_since(selector: &str, resource: &str) -> Option<u32> {
    let selects = |label: &str| {
        let mut after = selector.split(',').filter_map(|it| it.strip_prefix(label));
        after.any(|operator| operator.starts_with(['=', '!']))
    };
    let known = FIELDS.iter();
    let known = known.filter(|(of, label, _)| *of == resource && selects(label));
    known.map(|(_, _, since)| *since).max()
}

/// Kubernetes' own clients, which name their version in `User-Agent`.
const CLIENTS: [&[u8]; 5] = [
    b"kubelet",
    b"kube-controller-manager",
    b"kube-scheduler",
    b"kube-proxy",
    b"kubectl",
];

/// The version of a client of Kubernetes' own, by its `User-Agent`: `kubelet/v1.36.2 (linux/amd64) kubernetes/1234567`.
/// Anybody may say so: it only orders servers.
pub fn client_version(user_agent: &[u8]) -> Option<KubernetesVersion> {
    let after = |client: &&[u8]| user_agent.strip_prefix(*client)?.strip_prefix(b"/v");
    let version = CLIENTS.iter().find_map(after)?;
    // As far as the patch version, which may be followed by anything.
    let mut dots = (0..version.len().min(16)).filter(|at| version[*at] == b'.');
    let minor = &version[..dots.nth(1)?];
    str::from_utf8(minor).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use proptest::prelude::*;

    use super::super::info::read;
    use super::*;

    fn since(path: &str, query: &str) -> String {
        let query = Some(query).filter(|query| !query.is_empty());
        let info = read(&Method::GET, path, query);
        parameters_since(&info, query).map_or_else(String::new, |version| version.to_string())
    }

    #[test]
    fn a_read_needs_the_version_that_began_to_understand_its_newest_parameter() {
        for (path, query, expected) in [
            ("/api/v1/pods", "", ""),
            (
                "/api/v1/pods",
                "limit=500&resourceVersion=0&labelSelector=a%3Db",
                "",
            ),
            (
                "/api/v1/pods",
                "resourceVersion=5&resourceVersionMatch=Exact",
                "1.19",
            ),
            (
                "/api/v1/pods",
                "watch=1&allowWatchBookmarks=true&resourceVersion=5",
                "",
            ),
            ("/api/v1/pods", "watch=1&sendInitialEvents=true", "1.27"),
            ("/api/v1/watch/pods", "sendInitialEvents=false", "1.27"),
            (
                "/api/v1/pods",
                "watch=1&send%49nitialEvents=true&resourceVersionMatch=NotOlderThan",
                "1.27",
            ),
            ("/api/v1/pods", "sendInitialEvents=true", ""),
            (
                "/apis/apps/v1/deployments",
                "shardSelector=x&resourceVersionMatch=Exact",
                "1.36",
            ),
            ("/api/v1/namespaces/a/pods/b", "shardSelector=x", ""),
            ("/api/v1/pods", "shardSelector=", ""),
            ("/api/v1/namespaces/a/pods/b/log", "stream=Stderr", "1.32"),
            ("/api/v1/namespaces/a/pods/b/log", "follow=1", ""),
            (
                "/apis/x.example.com/v1/namespaces/a/pods/b/log",
                "stream=Stderr",
                "",
            ),
            (
                "/api/v1/services",
                "fieldSelector=spec.clusterIP%21%3DNone&limit=500",
                "1.31",
            ),
            (
                "/api/v1/services",
                "fieldSelector=metadata.name=a,spec.type=NodePort",
                "1.31",
            ),
            (
                "/api/v1/services",
                "fieldSelector=metadata.name=spec.clusterIP",
                "",
            ),
            ("/api/v1/services", "fieldSelector=spec.clusterIPs=x", ""),
            ("/api/v1/pods", "fieldSelector=spec.clusterIP=None", ""),
            (
                "/api/v1/pods",
                "watch=1&fieldSelector=spec.hostNetwork=true",
                "1.28",
            ),
            ("/version", "shardSelector=x", ""),
        ] {
            assert_eq!(since(path, query), expected, "{path}?{query}");
        }
    }

    #[test]
    fn writes_need_none() {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let query = Some("shardSelector=x&sendInitialEvents=1&resourceVersionMatch=Exact");
            let info = read(&method, "/api/v1/namespaces/a/pods", query);
            assert_eq!(parameters_since(&info, query), None, "{method}");
        }
    }

    #[test]
    fn only_kubernetes_own_clients_name_a_version() {
        for (user_agent, expected) in [
            ("kubelet/v1.36.2 (linux/amd64) kubernetes/abcdef0", "1.36"),
            (
                "kube-controller-manager/v1.24.0 (linux/amd64) kubernetes/x/leader-election",
                "1.24",
            ),
            ("kube-scheduler/v1.30.0-rc.1", "1.30"),
            ("kube-proxy/v1.31.4+k3s1 (linux/arm64)", "1.31"),
            ("kubectl/v999.999.0", "999.999"),
            ("kubectl/v1.36.2-gke.100", "1.36"),
            ("kubectl/v0.0.0-master+$Format:%H$", "0.0"),
            ("kubelet/v1.36", ""),
            ("kubelet/1.36.2", ""),
            ("kubelet/v1.x.2", ""),
            ("kubelet/v1.036.2", ""),
            ("kubelet/v", ""),
            ("kubelet/", ""),
            ("kubelet", ""),
            ("Kubelet/v1.36.2", ""),
            ("my kubelet/v1.36.2", ""),
            ("kubelet/v99999999999.1.0", ""),
            ("curl/8.5.0 kubelet/v1.36.2", ""),
            ("Go-http-client/2.0", ""),
            ("", ""),
        ] {
            let found = client_version(user_agent.as_bytes());
            let found = found.map_or_else(String::new, |version| version.to_string());
            assert_eq!(found, expected, "{user_agent:?}");
        }
        let long = [b"kubelet/v1.".as_slice(), &vec![b'1'; 1 << 20], b".2"].concat();
        assert_eq!(client_version(&long), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, query: String) {
            client_version(&bytes);
            client_version(&[b"kubelet/v".as_slice(), &bytes].concat());
            since("/api/v1/services", &query);
            fields_since(&query, "services");
        }
    }
}
