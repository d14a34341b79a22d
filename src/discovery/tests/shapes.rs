//! Documents as no kube-apiserver has to write them, but may.

use super::*;

fn merge(body: &str, names: &[&str]) -> Value {
    let others = other(&listing("b", names));
    let merged = merge_aggregated(&DiscoveryDocument::Groups, body.as_bytes(), &others).unwrap();
    value(&merged.expect("something is added"))
}

const X: &str = r#"{"resource":"x","responseKind":{"group":"","version":"","kind":"Thing"},"scope":"Cluster","singularResource":"","verbs":["get","b"],"shortNames":["th"]}"#;
const STATUS: &str = r#"{"subresource":"status","responseKind":{"group":"","version":"","kind":"Thing"},"verbs":["get","b"]}"#;

#[test]
fn entries_are_put_at_the_ends_of_lists_and_nothing_else_changes() {
    let body = r#" { "new" : [1.0,{"a":"\u0062"}],
        "kind" : "APIGroupDiscoveryList", "items" : [ {"metadata": {"name":"g", "uid": 7},
            "versions":[ {"later":{}, "version":"v1","resources" : [ {"resource":"\u0079","verbs":[],"odd":1e3,
            "responseKind":{"kind":"Y"}} ] , "freshness":"Current"} ]} ] } "#;
    let merged = merge(body, &["g/v1/y/status", "g/v1/x", "g/v2/x", "h/v1/x"]);
    let version =
        |name| format!(r#"{{"version":"{name}","resources":[{X}],"freshness":"Current"}}"#);
    let expected = body
        .replace(
            r#""resource":"\u0079","#,
            &format!(r#""resource":"\u0079","subresources":[{STATUS}],"#),
        )
        .replace(
            r#"} ] , "freshness""#,
            &format!(r#"}} ,{X}] , "freshness""#),
        )
        .replace(
            r#""Current"} ]} ] } "#,
            &format!(
                r#""Current"}} ,{}]}} ,{{"metadata":{{"name":"h"}},"versions":[{}]}}] }} "#,
                version("v2"),
                version("v1")
            ),
        );
    assert_eq!(merged, value(expected.as_bytes()));
}

#[test]
fn lists_that_are_null_empty_or_not_there_are_made() {
    let version = format!(r#"{{"version":"v1","resources":[{X}],"freshness":"Current"}}"#);
    let group = format!(r#"{{"metadata":{{"name":"g"}},"versions":[{version}]}}"#);
    for (body, expected) in [
        (r#""items":null"#, format!(r#""items":[{group}]"#)),
        (r#""items":[ ]"#, format!(r#""items":[{group}]"#)),
        (
            r#""items":[{"metadata":{"name":"g"}}]"#,
            format!(r#""items":[{group}]"#),
        ),
        (
            r#""items":[{"metadata":{"name":"g"},"versions":[{"version":"v1","freshness":"Stale"}]}]"#,
            format!(
                r#""items":[{{"metadata":{{"name":"g"}},"versions":[{{"version":"v1","resources":[{X}],"freshness":"Stale"}}]}}]"#
            ),
        ),
    ] {
        let whole = |items: &str| format!(r#"{{"kind":"APIGroupDiscoveryList",{items}}}"#);
        let merged = merge(&whole(body), &["g/v1/x"]);
        assert_eq!(merged, value(whole(&expected).as_bytes()));
    }
    let merged = merge(r#"{"kind":"APIGroupDiscoveryList"}"#, &["g/v1/x"]);
    let expected = format!(r#"{{"kind":"APIGroupDiscoveryList","items":[{group}]}}"#);
    assert_eq!(merged, value(expected.as_bytes()));
}

#[test]
fn an_entry_that_stands_for_subresources_only_is_written_anew_with_its_own_first() {
    let body = r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[
        {"resource":"y","responseKind":{"kind":"Y"}},
        {"resource":"x","responseKind":{"group":"","version":"","kind":""},"scope":"Cluster","singularResource":"","verbs":null,
         "subresources":[{"subresource":"scale","verbs":["get","local"]}]}]}]}]}"#;
    let merged = merge(body, &["g/v1/x", "g/v1/x/scale", "g/v1/x/status"]);
    let mut x = value(X.as_bytes());
    x["subresources"] =
        json!([{"subresource":"scale","verbs":["get","local"]}, value(STATUS.as_bytes())]);
    let listed = merged["items"][0]["versions"][0]["resources"].as_array();
    assert_eq!(listed.unwrap()[1..], [x]);
    let others = other(&listing("b", &["g/v1/x", "g/v1/x/scale", "g/v1/x/status"]));
    let merged = serde_json::to_vec(&merged).unwrap();
    let again = merge_aggregated(&DiscoveryDocument::Groups, &merged, &others);
    assert_eq!(again.unwrap(), None);
}

#[test]
fn a_stale_version_is_added_as_such() {
    let mut document = listing("b", &["g/v1/x"]);
    document.groups[0].versions[0].freshness = STALE.into();
    let others = other(&document);
    let body = br#"{"kind":"APIGroupDiscoveryList","items":[]}"#;
    let merged = merge_aggregated(&DiscoveryDocument::Groups, body, &others)
        .unwrap()
        .unwrap();
    assert_eq!(
        value(&merged)["items"][0]["versions"][0]["freshness"],
        "Stale"
    );
    let body = br#"{"kind":"APIGroupList","groups":[]}"#;
    let merged = value(
        &merge_legacy(&DiscoveryDocument::Groups, Some(body), &others)
            .unwrap()
            .unwrap(),
    );
    assert_eq!(merged["groups"][0]["versions"][0]["groupVersion"], "g/v1");
    assert!(merge_legacy(&group("g"), None, &others).unwrap().is_some());
    assert_eq!(
        merge_legacy(&resources("g", "v1"), None, &others).unwrap(),
        None
    );
}

#[test]
fn the_core_group_and_the_others_are_in_documents_of_their_own() {
    let others = other(&listing("b", &["/v1/x", "g/v1/x"]));
    let body = br#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{},"versions":[{"version":"v1"}]}]}"#;
    let merged = merge_aggregated(&DiscoveryDocument::Versions, body, &others)
        .unwrap()
        .unwrap();
    let merged = value(&merged);
    assert_eq!(merged["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        merged["items"][0]["versions"][0]["resources"][0]["resource"],
        "x"
    );
    let made = merge_legacy(&resources("", "v1"), None, &others)
        .unwrap()
        .unwrap();
    assert_eq!(value(&made)["groupVersion"], "v1");
}

#[test]
fn what_is_another_document_is_refused() {
    let others = other(&listing("b", &["g/v1/x"]));
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "404 page not found",
        r#"{"kind":"Status","items":[]}"#,
        r#"{"kind":"Status","groups":[],"resources":[],"name":"g"}"#,
        r#"{"kind":"APIGroupDiscoveryList","items":[{}]}"#,
        r#"{"kind":"APIGroupDiscoveryList","items":{}}"#,
        r#"{"kind":"APIGroupDiscoveryList","items":[]"#,
        "\u{feff}{}",
    ] {
        let body = body.as_bytes();
        let unnamed = body.ends_with(b"[{}]}");
        assert!(
            merge_aggregated(&DiscoveryDocument::Groups, body, &others).is_err() != unnamed,
            "{body:?}"
        );
        assert!(merge_legacy(&DiscoveryDocument::Groups, Some(body), &others).is_err());
        assert!(merge_legacy(&group("g"), Some(body), &others).is_err());
        assert!(merge_legacy(&resources("g", "v1"), Some(body), &others).is_err());
    }
}
