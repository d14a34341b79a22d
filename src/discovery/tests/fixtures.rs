//! What real kube-apiservers v1.20.2 and v1.36 say, read, written and merged.

use std::collections::BTreeMap;

use super::*;

fn path(version: &str) -> std::path::PathBuf {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join(format!("kube-apiserver-{version}/discovery"))
}

fn file(version: &str, name: &str) -> Vec<u8> {
    std::fs::read(path(version).join(name)).unwrap()
}

/// Aggregated discovery does not have `storageVersionHash`: it is not added.
fn without_hashes(document: &[u8]) -> Value {
    let mut document = value(document);
    for resource in document["resources"].as_array_mut().unwrap() {
        let resource = resource.as_object_mut().unwrap();
        resource.remove("storageVersionHash");
    }
    document
}

/// The documents of group versions that were kept of a server.
fn kept(version: &str) -> BTreeMap<GroupVersion, Vec<u8>> {
    let files = std::fs::read_dir(path(version)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let documents = names.filter_map(|name| {
        let of_version = name.strip_prefix("apis.")?.strip_suffix(".legacy.json")?;
        let (group, name_of_version) = of_version.split_once('_')?;
        Some((of(group, name_of_version), file(version, &name)))
    });
    documents.collect()
}

fn legacy_of(version: &str) -> Document {
    let kept = kept(version);
    let served = kept.keys().cloned().collect();
    let order = documents::listed(&file(version, "apis.legacy.json")).unwrap();
    read_legacy(&order, &served, |of| kept.get(of).cloned())
}

fn v1_36() -> Document {
    let read = |name| documents::aggregated(&file("v1.36", name)).unwrap();
    Document {
        groups: ["api.v2.json", "apis.v2.json"].map(read).concat(),
    }
}

#[test]
fn nothing_of_an_aggregated_document_is_lost_by_reading_and_writing_it() {
    let mut listed = v1_36();
    // Kinds of custom resources repeat their group and version.
    let custom = "example.com";
    listed.groups.retain(|group| group.name() != custom);
    for (document, name) in [
        (DiscoveryDocument::Versions, "api.v2.json"),
        (DiscoveryDocument::Groups, "apis.v2.json"),
    ] {
        let mut real = value(&file("v1.36", name));
        let items = real["items"].as_array_mut().unwrap();
        items.retain(|group| group["metadata"]["name"] != custom);
        assert_eq!(value(&aggregated_body(&document, &listed)), real, "{name}");
    }
}

#[test]
fn nothing_of_a_group_versions_document_is_lost_by_reading_and_writing_it() {
    for version in ["v1.20.2", "v1.36"] {
        let document = legacy_of(version);
        let documents = kept(version);
        assert!(documents.len() > 15, "{} documents", documents.len());
        for (of, body) in documents {
            let written = value(&resources_body(&document, &of).unwrap());
            let real = without_hashes(&body);
            for field in ["kind", "groupVersion", "resources"] {
                assert_eq!(written[field], real[field], "{of:?} of {version}");
            }
        }
    }
}

#[test]
fn groups_and_versions_keep_their_order_and_preference() {
    for version in ["v1.20.2", "v1.36"] {
        let listed = value(&file(version, "apis.legacy.json"));
        let known = kept(version);
        let known = |name: &str| {
            name.split_once('/')
                .is_some_and(|(g, v)| known.contains_key(&of(g, v)))
        };
        let mut written = value(&groups_body(&legacy_of(version)));
        let mut listed: Vec<Value> = listed["groups"].as_array().unwrap().clone();
        // Of some groups no document was kept; others are not in the list although they are served.
        listed.retain(|group| known(group["preferredVersion"]["groupVersion"].as_str().unwrap()));
        let written = written["groups"].as_array_mut().unwrap();
        written.truncate(listed.len());
        assert_eq!(*written, listed, "{version}");
    }
}

#[test]
fn both_kinds_of_documents_say_the_same_of_v1_36() {
    let aggregated = v1_36();
    let legacy = legacy_of("v1.36");
    let mut all = group_versions(&legacy);
    // Kinds of custom resources repeat their group and version.
    all.retain(|of| of.group != "example.com");
    for of in all {
        let version = |document: &Document| document.version(&of.group, &of.version).cloned();
        assert_eq!(version(&aggregated), version(&legacy), "{of:?}");
    }
}

#[test]
fn a_new_server_gets_what_only_an_old_one_lists() {
    let others = other(&legacy_of("v1.20.2"));
    let body = file("v1.36", "apis.v2.json");
    let text = merge_aggregated(&DiscoveryDocument::Groups, &body, &others)
        .unwrap()
        .unwrap();
    let groups = documents::aggregated(&text).unwrap();
    let expected: BTreeSet<_> = v1_36()
        .served()
        .into_iter()
        .filter(|gvr| !gvr.group.is_empty())
        .chain(others.document.served())
        .collect();
    let document = Document { groups };
    assert_eq!(document.served(), expected);
    let beta = document
        .version("flowcontrol.apiserver.k8s.io", "v1beta1")
        .unwrap();
    assert_eq!((beta.resources.len(), beta.is_stale()), (2, false));
    // The group that both have keeps its place, and its own version first.
    let group = document.group("flowcontrol.apiserver.k8s.io").unwrap();
    let versions: Vec<_> = group
        .versions
        .iter()
        .map(|version| &*version.name)
        .collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
}

#[test]
fn an_old_server_gets_what_only_a_new_one_lists() {
    let others = other(&legacy_of("v1.36"));
    let body = file("v1.20.2", "apis.legacy.json");
    let merged = value(
        &merge_legacy(&DiscoveryDocument::Groups, Some(&body), &others)
            .unwrap()
            .unwrap(),
    );
    let local = value(&body);
    let [merged, local] = [&merged, &local].map(|list| list["groups"].as_array().unwrap());
    let policy = |groups: &[Value]| {
        groups
            .iter()
            .find(|group| group["name"] == "policy")
            .unwrap()
            .clone()
    };
    assert_eq!(
        policy(merged),
        json!({"name": "policy",
            "versions": [{"groupVersion": "policy/v1beta1", "version": "v1beta1"}, {"groupVersion": "policy/v1", "version": "v1"}],
            "preferredVersion": {"groupVersion": "policy/v1beta1", "version": "v1beta1"}})
    );
    let names = |groups: &[Value]| {
        groups
            .iter()
            .map(|group| group["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&merged[..local.len()]), names(local));
    assert!(names(&merged[local.len()..]).contains(&json!("resource.k8s.io")));

    // What it answered 404 to is said as the new one says it.
    for name in [
        "apis.resource.k8s.io_v1.legacy.json",
        "apis.policy_v1.legacy.json",
    ] {
        let real = without_hashes(&file("v1.36", name));
        let of = real["groupVersion"]
            .as_str()
            .unwrap()
            .split_once('/')
            .unwrap();
        let made = merge_legacy(&resources(of.0, of.1), None, &others)
            .unwrap()
            .unwrap();
        assert_eq!(value(&made), real);
    }
    let group = merge_legacy(&group("resource.k8s.io"), None, &others)
        .unwrap()
        .unwrap();
    let version = json!({"groupVersion": "resource.k8s.io/v1", "version": "v1"});
    assert_eq!(
        value(&group),
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": "resource.k8s.io",
            "versions": [version], "preferredVersion": version})
    );
}

#[test]
fn resources_that_a_version_lacks_come_after_its_own() {
    let others = other(&legacy_of("v1.36"));
    let body = file("v1.20.2", "apis.batch_v1.legacy.json");
    let merged = merge_legacy(&resources("batch", "v1"), Some(&body), &others)
        .unwrap()
        .unwrap();
    let merged = value(&merged);
    let names: Vec<_> = merged["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["name"])
        .collect();
    assert_eq!(
        names,
        ["jobs", "jobs/status", "cronjobs", "cronjobs/status"]
    );
    assert_eq!(
        merged["resources"][0]["singularName"], "",
        "the local server's own words"
    );
    assert_eq!(merged["resources"][2]["shortNames"], json!(["cj"]));
}

#[test]
fn a_server_that_lacks_nothing_gets_nothing() {
    let others = other(&v1_36());
    for (document, name) in [
        (DiscoveryDocument::Versions, "api.v2.json"),
        (DiscoveryDocument::Groups, "apis.v2.json"),
    ] {
        let body = file("v1.36", name);
        assert_eq!(merge_aggregated(&document, &body, &others).unwrap(), None);
    }
    let others = other(&legacy_of("v1.20.2"));
    for (of, body) in kept("v1.20.2") {
        let merged = merge_legacy(
            &DiscoveryDocument::Resources(of.clone()),
            Some(&body),
            &others,
        );
        assert_eq!(merged.unwrap(), None, "{of:?}");
    }
}
