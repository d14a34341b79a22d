//! Where in etcd kube-apiserver stores a resource. Pure.
//!
//! A wrong location does no harm where an object was found there. An empty list proves the etcd, not the location, so what
//! is said here must be right: unknown resources have no location.

use crate::config::EtcdConfig;
use crate::kube::gvr::{GvrRef, ResourceKind};

/// Built-in groups (`""`: the core group) whose resources are stored under their plural name.
const BUILT_IN: [&str; 22] = [
    "",
    "admissionregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "extensions",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// The key prefix, with a trailing slash, of the requested resource, which is of this kind at its server, in the configured
/// etcd; `None` if unknown or in another etcd.
pub fn root(etcd: &EtcdConfig, kind: ResourceKind, asked: GvrRef<'_>) -> Option<String> {
    let (group, resource) = (asked.group, asked.resource);
    if !asked.subresource.is_empty() || is_elsewhere(etcd, asked) {
        return None;
    }
    let below = match kind {
        ResourceKind::Aggregated => return None,
        // A custom resource may be in a built-in group.
        ResourceKind::Custom => format!("{group}/{resource}"),
        ResourceKind::BuiltIn => built_in(group, resource)?.to_owned(),
    };
    Some(format!("{}/{below}/", etcd.prefix))
}

/// The requested namespace with a trailing slash, which follows [`root`] in keys; empty for all namespaces.
pub fn scope(asked: GvrRef<'_>, namespace: &str) -> String {
    // A Namespace is stored as a cluster-scoped object.
    let is_namespace = asked.group.is_empty() && asked.resource == "namespaces";
    match namespace.is_empty() || is_namespace {
        true => String::new(),
        false => format!("{namespace}/"),
    }
}

/// As `SpecialDefaultResourcePrefixes` in kube-apiserver, and the two kinds that its extension and aggregation servers store.
fn built_in<'a>(group: &str, resource: &'a str) -> Option<&'a str> {
    Some(match (group, resource) {
        ("", "replicationcontrollers") => "controllers",
        ("", "endpoints") => "services/endpoints",
        ("", "services") => "services/specs",
        ("", "nodes") => "minions",
        ("extensions" | "networking.k8s.io", "ingresses") => "ingress",
        ("extensions" | "policy", "podsecuritypolicies") => "podsecuritypolicy",
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            "apiextensions.k8s.io/customresourcedefinitions"
        }
        ("apiregistration.k8s.io", "apiservices") => "apiregistration.k8s.io/apiservices",
        _ if BUILT_IN.contains(&group) => resource,
        _ => return None,
    })
}

/// Whether the resource is in `etcd.otherResources`, under its own group or under another group that shares its storage.
pub fn is_elsewhere(etcd: &EtcdConfig, asked: GvrRef<'_>) -> bool {
    let (group, resource) = (asked.group, asked.resource);
    etcd.other_resources.iter().any(|other| {
        let (other, other_group) = other.split_once('.').unwrap_or((other, ""));
        let same = other_group == group || (shares(other_group, other) && shares(group, resource));
        other == resource && same
    })
}

/// Whether the resource is served in several groups from one storage, and `group` is one of them.
fn shares(group: &str, resource: &str) -> bool {
    match resource {
        "events" => matches!(group, "" | "events.k8s.io"),
        "ingresses" | "networkpolicies" => matches!(group, "extensions" | "networking.k8s.io"),
        "podsecuritypolicies" => matches!(group, "extensions" | "policy"),
        "deployments" | "daemonsets" | "replicasets" => matches!(group, "extensions" | "apps"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
