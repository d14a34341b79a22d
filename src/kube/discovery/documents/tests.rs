use super::*;
use crate::kube::discovery::model::{Document, scopes};
use crate::kube::gvr::{Gvr, Scope};
use crate::kube::media_type::is_aggregated;

fn core() -> GroupVersion {
    GroupVersion {
        group: String::new(),
        version: "v1".into(),
    }
}

fn names(set: &BTreeSet<Gvr>) -> Vec<String> {
    set.iter()
        .map(|gvr| {
            format!(
                "{}/{}/{}/{}",
                gvr.group, gvr.version, gvr.resource, gvr.subresource
            )
        })
        .collect()
}

fn served(groups: Vec<Group>) -> BTreeSet<Gvr> {
    Document { groups }.served()
}

/// What a group version's own document lists.
fn own(of: &GroupVersion, document: &[u8]) -> Vec<Group> {
    let version = resources(of, document).unwrap();
    Document::from_iter([(of.group.clone(), version)]).groups
}

#[test]
fn the_path_index_names_group_versions_among_other_paths() {
    let index = br#"{"paths":["/api","/api/v1","/apis","/apis/","/apis/apps","/apis/apps/v1","/healthz","/healthz/etcd",
        "/openapi/v2","/apis/a.b.c/v1beta1","/apis/apps/v1/deeper","/version"]}"#;
    let paths: Vec<_> = group_versions(index)
        .unwrap()
        .iter()
        .map(GroupVersion::path)
        .collect();
    assert_eq!(paths, ["/api/v1", "/apis/a.b.c/v1beta1", "/apis/apps/v1"]);
}

#[test]
fn a_group_versions_document_lists_subresources_by_their_path() {
    let document = br#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
        {"name":"pods","kind":"Pod"},{"name":"pods/exec","kind":"PodExecOptions"}]}"#;
    assert_eq!(
        names(&served(own(&core(), document))),
        ["/v1/pods/", "/v1/pods/exec"]
    );
}

#[test]
fn lists_of_groups_are_read_in_their_order_in_either_form() {
    let text = |all: Vec<GroupVersion>| all.iter().map(GroupVersion::path).collect::<Vec<_>>();
    let legacy = br#"{"kind":"APIGroupList","groups":[{"name":"b","versions":[{"groupVersion":"b/v2","version":"v2"},
        {"groupVersion":"b/v1","version":"v1"}],"preferredVersion":{"groupVersion":"b/v2","version":"v2"}},{"name":"a","versions":null}]}"#;
    assert_eq!(text(listed(legacy).unwrap()), ["/apis/b/v2", "/apis/b/v1"]);
    for nothing in [&br#"{"groups":null}"#[..], b"{}"] {
        assert!(listed(nothing).unwrap().is_empty());
    }

    let legacy =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/apis.legacy.json");
    let aggregated =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/apis.v2.json");
    let legacy = text(listed(legacy).unwrap());
    assert!(legacy.contains(&"/apis/apps/v1".to_owned()));
    let aggregated = text(listed(aggregated).unwrap());
    assert!(legacy.iter().all(|path| aggregated.contains(path)));
}

#[test]
fn real_documents_of_v1_20_are_read() {
    let document = include_bytes!(
        "../../../../tests/data/kube-apiserver-v1.20.2/discovery/apis.apps_v1.legacy.json"
    );
    let apps = GroupVersion {
        group: "apps".into(),
        version: "v1".into(),
    };
    let set = served(own(&apps, document));
    assert_eq!(set.len(), 12, "{:?}", names(&set));
    assert!(names(&set).contains(&"apps/v1/deployments/scale".to_owned()));
}

#[test]
fn real_documents_of_v1_36_are_read() {
    let document =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/apis.v2.json");
    let listed = names(&served(aggregated(document).unwrap()));
    for name in [
        "apps/v1/deployments/scale",
        "autoscaling/v2/horizontalpodautoscalers/",
        "batch/v1/cronjobs/status",
    ] {
        assert!(listed.contains(&name.to_owned()), "{name} in {listed:?}");
    }
    let document =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/api.v2.json");
    let listed = names(&served(aggregated(document).unwrap()));
    assert!(
        listed.contains(&"/v1/pods/resize".to_owned()) && listed.contains(&"/v1/pods/".to_owned())
    );
}

#[test]
fn both_forms_say_the_same_of_v1_36() {
    let document =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/apis.v2.json");
    let of_apps = |groups: Vec<Group>| {
        let listed = scopes(&groups).filter(|(gvr, _)| gvr.group == "apps");
        listed.collect::<Vec<_>>()
    };
    let legacy = include_bytes!(
        "../../../../tests/data/kube-apiserver-v1.36/discovery/apis.apps_v1.legacy.json"
    );
    let apps = GroupVersion {
        group: "apps".into(),
        version: "v1".into(),
    };
    let mut one = of_apps(aggregated(document).unwrap());
    let mut other = of_apps(own(&apps, legacy));
    one.sort_by(|one, other| one.0.cmp(&other.0));
    other.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(one, other);
    assert!(
        one.iter()
            .all(|(_, scope)| *scope == Some(Scope::Namespaced))
    );
}

#[test]
fn a_resource_that_has_only_subresources_is_not_served_itself() {
    let document = br#"{"items":[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[
        {"resource":"ghosts","responseKind":{"group":"","version":"","kind":""},"subresources":[{"subresource":"status"}]}]}]}]}"#;
    let groups = aggregated(document).unwrap();
    assert!(scopes(&groups).all(|(_, scope)| scope.is_none()));
    assert_eq!(names(&served(groups)), ["g/v1/ghosts/status"]);
}

#[test]
fn the_core_group_of_v1_36_has_both_scopes() {
    let document =
        include_bytes!("../../../../tests/data/kube-apiserver-v1.36/discovery/api.v2.json");
    let groups = aggregated(document).unwrap();
    let of = |resource: &str, subresource: &str| {
        let mut all = scopes(&groups);
        let found = all.find(|(gvr, _)| gvr.resource == resource && gvr.subresource == subresource);
        found.unwrap().1
    };
    assert_eq!(of("pods", ""), Some(Scope::Namespaced));
    assert_eq!(of("pods", "status"), Some(Scope::Namespaced));
    assert_eq!(of("nodes", ""), Some(Scope::Cluster));
    assert_eq!(of("namespaces", "finalize"), Some(Scope::Cluster));
}

#[test]
fn only_what_says_so_is_aggregated() {
    assert!(is_aggregated(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    ));
    assert!(is_aggregated(
        "application/json;as=APIGroupDiscoveryList;v=v2beta1;g=apidiscovery.k8s.io"
    ));
    assert!(!is_aggregated("application/json"));
}

#[test]
fn what_is_no_document_is_an_error_and_no_panic() {
    for junk in [
        &b""[..],
        b"null",
        b"[]",
        b"{",
        b"404 page not found",
        b"\xff",
    ] {
        assert!(group_versions(junk).is_err());
        assert!(aggregated(junk).is_err() || junk == b"[]");
        assert!(resources(&core(), junk).is_err() || junk == b"[]");
    }
}
