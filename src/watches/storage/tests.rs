//! Against the keys that a real kube-apiserver v1.20.2 wrote: one object of each resource was created.

use std::sync::Arc;

use http::Method;
use serde::Deserialize;

use super::*;
use crate::kube::gvr::{Custom, Pair, defined};
use crate::request::info::{self, Target};
use crate::routing::table::Snapshot;

const KEYS: &str = include_str!("../../../tests/data/kube-apiserver-v1.20.2/keys.jsonl");

#[derive(Deserialize)]
struct Written {
    path: String,
    key: String,
}

fn etcd(other_resources: &[&str]) -> EtcdConfig {
    EtcdConfig {
        endpoints: Vec::new(),
        ca_file: None,
        client: None,
        prefix: "/registry".to_owned(),
        other_resources: other_resources.iter().map(ToString::to_string).collect(),
    }
}

fn custom() -> Custom {
    let pair = |group: &str, second: &str| Pair(group.to_owned(), second.to_owned());
    let definition = |group, plural, version| (pair(group, plural), defined(&[version]));
    Custom {
        definitions: [
            definition("example.com", "widgets", "v1"),
            definition("example.com", "gadgets", "v1"),
            definition("batch", "foos", "v1foo"),
            definition("networking.k8s.io", "networkpolicies", "v9"),
        ]
        .into(),
        aggregated: [pair("metrics.k8s.io", "v1beta1")].into(),
    }
}

fn of(path: &str, others: &[&str]) -> Option<(String, String)> {
    let info = info::read(&Method::GET, path, None);
    let Target::Resource(asked) = &info.target else {
        panic!("{path} is no resource");
    };
    let snapshot = Snapshot::new(true, Vec::new(), None, Arc::new(custom()));
    let kind = snapshot.kind_at(false, asked.into())?;
    let root = root(&etcd(others), kind, asked.into())?;
    Some((root, scope(asked.into(), &asked.namespace)))
}

#[test]
fn every_object_is_kept_where_it_is_looked_for() {
    let mut count = 0;
    for line in KEYS.lines() {
        let Written { path, key } = serde_json::from_str(line).unwrap();
        let (root, scope) = of(&path, &[]).unwrap_or_else(|| panic!("{path} is unknown"));
        let name = path.rsplit('/').next().unwrap();
        assert_eq!(format!("{root}{scope}{name}"), key, "{path}");
        let (collection, _) = path.rsplit_once('/').unwrap();
        assert_eq!(of(collection, &[]).unwrap().0, root);
        count += 1;
    }
    assert!(count > 45, "{count}");
}

#[test]
fn a_namespace_is_a_scope_of_its_own() {
    let expected = |scope: &str| Some(("/registry/configmaps/".to_owned(), scope.to_owned()));
    assert_eq!(of("/api/v1/configmaps", &[]), expected(""));
    assert_eq!(of("/api/v1/namespaces/a/configmaps", &[]), expected("a/"));
    assert_eq!(
        of("/api/v1/watch/namespaces/a/configmaps", &[]),
        expected("a/")
    );
    let all = Some(("/registry/namespaces/".to_owned(), String::new()));
    assert_eq!(of("/api/v1/namespaces", &[]), all);
    assert_eq!(of("/api/v1/namespaces/a", &[]), all);
}

#[test]
fn a_custom_resource_of_a_built_in_group_is_where_custom_resources_are() {
    let expected = |root: &str| Some((root.to_owned(), String::new()));
    assert_eq!(
        of("/apis/batch/v1foo/foos", &[]),
        expected("/registry/batch/foos/")
    );
    assert_eq!(of("/apis/batch/v1/jobs", &[]), expected("/registry/jobs/"));
    let policies = |version| format!("/apis/networking.k8s.io/{version}/networkpolicies");
    assert_eq!(
        of(&policies("v1"), &[]),
        expected("/registry/networkpolicies/")
    );
    assert_eq!(
        of(&policies("v9"), &[]),
        expected("/registry/networking.k8s.io/networkpolicies/")
    );
}

#[test]
fn what_is_not_known_is_nowhere() {
    for path in [
        "/apis/metrics.k8s.io/v1beta1/pods",
        "/apis/example.com/v1/others",
        "/apis/other.example.com/v1/widgets",
        "/apis/apiextensions.k8s.io/v1/others",
        "/api/v1/namespaces/a/pods/x/log",
    ] {
        assert_eq!(of(path, &[]), None, "{path}");
    }
}

#[test]
fn resources_of_another_etcd_are_nowhere_under_any_name() {
    let core = "/api/v1/namespaces/a/events";
    let group = "/apis/events.k8s.io/v1/events";
    for others in ["events", "events.events.k8s.io"] {
        assert_eq!(
            (of(core, &[others]), of(group, &[others])),
            (None, None),
            "{others}"
        );
    }
    assert!(of(core, &["leases.coordination.k8s.io"]).is_some());
    assert_eq!(
        of(
            "/apis/coordination.k8s.io/v1/leases",
            &["leases.coordination.k8s.io"]
        ),
        None
    );
    assert_eq!(
        of(
            "/apis/extensions/v1beta1/ingresses",
            &["ingresses.networking.k8s.io"]
        ),
        None
    );
    assert!(
        of("/apis/apps/v1/deployments", &["deployments"]).is_some(),
        "the core group's"
    );
}
