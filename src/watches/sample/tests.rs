use super::*;
use crate::kube::gvr::GroupVersion;

fn resource(group: &str, resource: &str) -> Gvr {
    let version = GroupVersion {
        group: group.to_owned(),
        version: "v1".to_owned(),
    };
    version.gvr(resource)
}

fn list(revision: &str, items: &str) -> Option<Sample> {
    let body = format!(
        r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"{revision}"}},
        "items":{items}}}"#
    );
    Sample::read(body.as_bytes())
}

fn item(namespace: &str, name: &str, revision: &str) -> String {
    format!(
        r#"[{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":
        {{"name":"{name}","namespace":"{namespace}","uid":"x","resourceVersion":"{revision}"}}}}]"#
    )
}

#[test]
fn paths_are_those_of_the_resource() {
    let widgets = resource("example.test", "widgets");
    assert_eq!(list_path(&widgets), "/apis/example.test/v1/widgets?limit=1");
    assert_eq!(list_path(&resource("", "pods")), "/api/v1/pods?limit=1");
}

#[test]
fn the_kind_is_that_of_the_resource_and_not_of_its_subresources() {
    let document = br#"{"kind":"APIResourceList","groupVersion":"example.test/v1","resources":[
        {"name":"widgets/status","kind":"Other"},{"name":"widgets","kind":"Widget","verbs":["get"]}]}"#;
    let widgets = resource("example.test", "widgets");
    assert_eq!(kind(&widgets, document).as_deref(), Some("Widget"));
    for unknown in [
        &b"{}"[..],
        b"",
        br#"{"resources":[{"name":"gadgets","kind":"Gadget"}]}"#,
        br#"{"resources":[{"name":"widgets","kind":""}]}"#,
    ] {
        assert_eq!(kind(&widgets, unknown), None);
    }
}

#[test]
fn an_object_is_known_by_its_key_and_revision() {
    let key = |namespace| {
        let anchor = list("9", &item(namespace, "a", "7"))?.object?;
        Some((anchor.key, anchor.revision))
    };
    assert_eq!(key("default"), Some(("default/a".to_owned(), 7)));
    assert_eq!(key(""), Some(("a".to_owned(), 7)));
    for nothing in ["null", "[]"] {
        assert_eq!(list("9", nothing).unwrap().object, None);
    }
}

#[test]
fn what_is_no_such_list_proves_nothing() {
    assert_eq!(list("", "null"), None);
    assert_eq!(list("0", "null"), None);
    assert_eq!(list("-3", "null"), None);
    assert_eq!(list("9", &item("", "", "7")), None);
    assert_eq!(list("9", &item("", "a", "x")), None);
    for other in [
        &br#"{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[]}"#[..],
        br#"{"kind":"Status","metadata":{},"code":403}"#,
        b"",
        b"[]",
    ] {
        assert_eq!(Sample::read(other), None);
    }
}

#[test]
fn an_empty_list_proves_the_etcd_whose_revision_it_has() {
    let at = |revision, keys| KeyCount { revision, keys };
    let empty = list("100", "null").unwrap();
    for (before, after, proved) in [
        (at(100, 0), at(100, 0), ListedIn::SameEtcd),
        (at(98, 0), at(101, 0), ListedIn::SameEtcd),
        (at(101, 0), at(103, 0), ListedIn::OtherEtcd),
        (at(90, 0), at(99, 0), ListedIn::OtherEtcd),
        // What is not there for the server is there for etcd.
        (at(100, 2), at(100, 2), ListedIn::OtherEtcd),
        (at(100, 0), at(101, 1), ListedIn::MovedOn),
        (at(99, 1), at(100, 0), ListedIn::MovedOn),
        (at(100, 0), at(100 + FEW + 1, 0), ListedIn::MovedOn),
        (at(100, 0), at(100 + FEW, 0), ListedIn::SameEtcd),
    ] {
        assert_eq!(
            empty.compared(before, after),
            proved,
            "{before:?} {after:?}"
        );
    }
}

#[test]
fn a_copy_of_an_etcd_with_the_same_object_has_another_revision() {
    let at = |revision| KeyCount { revision, keys: 3 };
    let copied = list("100", &item("default", "a", "7")).unwrap();
    assert_eq!(copied.compared(at(98), at(101)), ListedIn::SameEtcd);
    assert_eq!(copied.compared(at(70), at(71)), ListedIn::OtherEtcd);
    assert_eq!(copied.compared(at(120), at(121)), ListedIn::OtherEtcd);
}
