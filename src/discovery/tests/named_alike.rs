//! A CRD or an aggregated API of the local server is named like a built-in resource that only others serve.

use super::merge::{enveloped, opened, resource_list};
use super::*;
use crate::discovery::merge;
use crate::kube::discovery::legacy::ResourceList;

/// Merges the document of g/v1.
fn merge_own(format: DocumentFormat, body: &[u8], others: &PeerUnion) -> Merged {
    merge::merge(
        &resources("g", "v1"),
        &content_type(false, format),
        Some(body),
        [(&others.document, others.replaces)],
    )
}

/// `x` is not the local server's own, `y` is nobody's built-in resource.
fn local() -> Document {
    listing(
        "local",
        &["g/v1/x", "g/v1/x/status", "g/v1/y", "g/v1/y/status"],
    )
}

fn others(stale: bool) -> PeerUnion {
    let mut document = listing("b", &["g/v1/z", "g/v1/x", "g/v1/x/scale"]);
    if stale {
        document.groups[0].versions[0].freshness = STALE.into();
    }
    PeerUnion {
        document,
        replaces: true,
    }
}

/// What `merged` is to list, in this order.
fn expected(names: &[&str]) -> Vec<(String, String)> {
    let server = |name: &&str| match name.starts_with('y') {
        true => ("local".to_owned(), (*name).to_owned()),
        false => ("b".to_owned(), (*name).to_owned()),
    };
    names.iter().map(server).collect()
}

/// The names of a list of resources, each with the server whose entry it is.
fn entries(list: &ResourceList) -> Vec<(String, String)> {
    let entry = |it: &legacy::Resource| (it.verbs.items[1].clone(), it.name.clone());
    list.resources.iter().map(entry).collect()
}

#[test]
fn aggregated_discovery_has_the_built_in_resource_in_its_place() {
    let merged = merged(&local(), &others(false));
    let version = merged.version("g", "v1").unwrap();
    assert!(!version.is_stale());
    let said: Vec<_> = version
        .resources
        .iter()
        .map(|it| {
            let subresources = it.subresources.iter().map(|sub| &*sub.name).collect();
            (&*it.name, &*it.verbs[1], subresources)
        })
        .collect();
    let expected: Vec<(_, _, Vec<_>)> = vec![
        ("x", "b", vec!["scale"]),
        ("y", "local", vec!["status"]),
        ("z", "b", vec![]),
    ];
    assert_eq!(said, expected);
    let kept = PeerUnion {
        replaces: false,
        ..others(true)
    };
    let kept = super::merged(&local(), &kept);
    let version = kept.version("g", "v1").unwrap();
    assert!(!version.is_stale() && &*version.resources[0].verbs[1] == "local");
}

#[test]
fn the_version_is_stale_where_no_target_has_the_built_in_resource() {
    let body = aggregated_body(&DiscoveryDocument::Groups, &local());
    let text = String::from_utf8(body).unwrap();
    let without = text.replace(r#""freshness":"Current","#, "");
    let last = without.replace(
        r#""version":"v1"}"#,
        r#""version":"v1","freshness":"Current"}"#,
    );
    let none = r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"g"},"versions":[{"version":"v1",
        "resources":[{"resource":"x","responseKind":{"kind":"X"}}]}]}]}"#;
    assert!(without.len() < text.len() && last.len() == text.len());
    let null = text.replace(r#""Current""#, "null");
    for body in [&text, &without, &last, &null, none] {
        let merged = merge_aggregated(&DiscoveryDocument::Groups, body.as_bytes(), &others(true));
        let merged = value(&merged.unwrap().unwrap());
        let version = &merged["items"][0]["versions"][0];
        assert_eq!(version["freshness"], "Stale", "{body}");
        assert_eq!(version["resources"][0]["verbs"][1], "b", "{body}");
    }
    // Nothing of its names is a CRD's.
    let body = aggregated_body(
        &DiscoveryDocument::Groups,
        &listing("local", &["g/v1/y", "g/v1/x/status"]),
    );
    let merged = merge_aggregated(&DiscoveryDocument::Groups, &body, &others(true));
    let merged = value(&merged.unwrap().unwrap());
    let version = &merged["items"][0]["versions"][0];
    assert_eq!(version["freshness"], "Current");
}

#[test]
fn subresources_of_what_the_local_server_lists_no_resource_of_stay() {
    let local = listing("local", &["g/v1/x/status", "g/v1/y"]);
    let json = resources_body(&local, &of("g", "v1")).unwrap();
    for stale in [false, true] {
        let merged = merge_own(DocumentFormat::Json, &json, &others(stale));
        let merged = value(&merged.unwrap().unwrap());
        let names = merged["resources"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["x/status", "y", "z", "x", "x/scale"], "{stale}");
    }
}

#[test]
fn the_version_s_own_document_has_the_built_in_resource_and_no_part_of_the_crds() {
    let json = resources_body(&local(), &of("g", "v1")).unwrap();
    let merged_json = merge_own(DocumentFormat::Json, &json, &others(false));
    let merged_json = merged_json.unwrap().unwrap();
    let of_json: Vec<_> = value(&merged_json)["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&it["verbs"][1]), text(&it["name"]))
        })
        .collect();
    let expected = expected(&["y", "y/status", "z", "x", "x/scale"]);
    assert_eq!(of_json, expected);

    let body = enveloped(
        "v1",
        "APIResourceList",
        &resource_list(&local(), ("g", "v1")),
    );
    let merged = merge_own(DocumentFormat::Protobuf, &body, &others(false));
    let (_, list) = opened::<ResourceList>(&merged.unwrap().unwrap());
    assert_eq!(entries(&list), expected);
}

#[test]
fn without_a_target_the_version_has_no_document_of_its_own() {
    let json = resources_body(&local(), &of("g", "v1")).unwrap();
    let protobuf = enveloped(
        "v1",
        "APIResourceList",
        &resource_list(&local(), ("g", "v1")),
    );
    for (format, body) in [
        (DocumentFormat::Json, &json),
        (DocumentFormat::Yaml, &json),
        (DocumentFormat::Protobuf, &protobuf),
    ] {
        let refused = merge_own(format, body, &others(true));
        assert!(matches!(refused, Err(MergeError::Stale)), "{format:?}");
    }
}
