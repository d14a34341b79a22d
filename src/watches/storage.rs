//! Below which prefix of etcd kube-apiserver keeps a resource. Pure.
//!
//! A wrong guess does no harm: whoever goes by it first looks for a delivered object there.

use crate::config::Etcd;
use crate::request::info::ResourceRequest;
use crate::routing::table::{Custom, Pair};

/// Built-in groups, `""` for the core group, whose resources are kept below their plural name.
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

/// Where a resource is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What all keys of the resource begin with, up to a slash.
    pub root: String,
    /// What those of the request's namespace go on with, up to a slash; empty for all.
    pub scope: String,
}

/// Where what is asked for is kept in the etcd that is known; none if that is not known.
pub fn place(etcd: &Etcd, custom: &Custom, asked: &ResourceRequest<'_>) -> Option<Place> {
    let (group, resource) = (&*asked.group, &*asked.resource);
    if !asked.subresource.is_empty() || is_elsewhere(&etcd.other_resources, group, resource) {
        return None;
    }
    let pair = |second: &str| Pair(group.to_owned(), second.to_owned());
    if custom.aggregated.contains(&pair(&asked.version)) {
        return None;
    }
    let below = match built_in(group, resource) {
        Some(below) => below.to_owned(),
        None if custom.definitions.contains(&pair(resource)) => format!("{group}/{resource}"),
        None => return None,
    };
    // A namespace is kept as what it is, not below itself.
    let scope = match asked.namespace.is_empty() || (group.is_empty() && resource == "namespaces") {
        true => String::new(),
        false => format!("{}/", asked.namespace),
    };
    Some(Place {
        root: format!("{}/{below}/", etcd.prefix),
        scope,
    })
}

/// As `SpecialDefaultResourcePrefixes` of kube-apiserver, and the two kinds that other parts of it keep.
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

/// Whether it is in `etcd.otherResources`, under its own name or under that of another group that shares its storage.
fn is_elsewhere(others: &[String], group: &str, resource: &str) -> bool {
    others.iter().any(|other| {
        let (other, other_group) = other.split_once('.').unwrap_or((other, ""));
        let same = other_group == group || (shares(other_group, other) && shares(group, resource));
        other == resource && same
    })
}

/// Resources that are one resource in several groups.
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
