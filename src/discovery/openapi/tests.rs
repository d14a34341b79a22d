//! Merging against a plain model of it, and documents that no model would make.

mod model;

use proptest::prelude::*;

use super::{OpenApiFormat, group_version, merge};
use model::{Model, documents};

const FORMS: [OpenApiFormat; 3] = [
    OpenApiFormat::V2Json,
    OpenApiFormat::V2Protobuf,
    OpenApiFormat::V3Index,
];

fn all(_: &str, _: &str) -> bool {
    true
}

fn merged(format: OpenApiFormat, local: &str, peers: &[&str]) -> Option<String> {
    let peers: Vec<&[u8]> = peers.iter().map(|peer| peer.as_bytes()).collect();
    let merged = merge(format, local.as_bytes(), &peers, all).unwrap();
    merged.map(|merged| String::from_utf8(merged).unwrap())
}

fn value(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn local_entries_stay_byte_for_byte_and_the_rest_is_added() {
    let local = r#"{"swagger":"2.0","info":{"title":"a"},
        "paths": { "/apis/a/v1/": {"get" : 1.50} },"definitions":{"A": { } },"security":[{}]}"#;
    let peer = r#"{"info":{"title":"b"},"paths":{"/apis/a/v1/":{},"/apis/b/v1/":{"get": "\u00fc"},"/logs/":{}},
        "definitions":{"A":{"x":1},"B":{"x" :[]}},"tags":[]}"#;
    let expected = concat!(
        r#"{"definitions":{"A":{ },"B":{"x" :[]}},"info":{"title":"a"},"#,
        r#""paths":{"/apis/a/v1/":{"get" : 1.50},"/apis/b/v1/":{"get": "\u00fc"}},"#,
        r#""security":[{}],"swagger":"2.0"}"#
    );
    assert_eq!(
        merged(OpenApiFormat::V2Json, local, &[peer]).as_deref(),
        Some(expected)
    );
}

#[test]
fn parts_that_are_missing_null_or_empty_are_filled() {
    let peer = r#"{"paths":{"/apis/b/v1/":{},"/apis/c/v1/":{}},"definitions":{"B":{}}}"#;
    for (local, extra) in [
        ("{}", ""),
        (r#"{"definitions":null,"x":0}"#, r#","x":0"#),
        (r#"{"paths":{ }}"#, ""),
        (r#"{"definitions":{"B":{}},"paths":null}"#, ""),
    ] {
        let merged = merged(OpenApiFormat::V2Json, local, &[peer]).unwrap();
        let expected = format!("{}{extra}}}", peer.strip_suffix('}').unwrap());
        assert_eq!(value(&merged), value(&expected), "{local}");
    }
}

#[test]
fn names_are_the_same_however_they_are_escaped() {
    let local = r#"{"paths":{"/apis/a/v1/<>":{}}}"#;
    let peer = r#"{"paths":{"/apis/a/v1/\u003c\u003e":{}}}"#;
    assert_eq!(merged(OpenApiFormat::V2Json, local, &[peer]), None);
}

#[test]
fn depth_does_not_matter() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let paths = format!(r#""paths":{{"/apis/b/v1/":{deep}}}"#);
    let merged = merged(OpenApiFormat::V2Json, "{}", &[&format!("{{{paths}}}")]);
    assert_eq!(merged, Some(format!(r#"{{"definitions":{{}},{paths}}}"#)));
}

#[test]
fn the_index_takes_group_versions_and_nothing_else() {
    let local = r#"{"paths":{".well-known/openid-configuration":{"serverRelativeURL":"a"},"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=A"}}}"#;
    let peer = r#"{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=B"},"apis":{},"apis/apps":{},"version":{},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"}}}"#;
    let expected = local.replace(
        "}}}",
        r#"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"}}}"#,
    );
    let merged = merged(OpenApiFormat::V3Index, local, &[peer]).unwrap();
    assert_eq!(value(&merged), value(&expected));
}

#[test]
fn a_local_document_that_cannot_be_read_is_an_error_and_a_peers_is_left_out() {
    let good: [&[u8]; 3] = [b"{}", b"", b"{}"];
    for (format, good) in FORMS.into_iter().zip(good) {
        let bad: &[&[u8]] = match format {
            OpenApiFormat::V2Protobuf => &[
                b"\x0a",         // no length
                b"\x0a\x02a",    // cut off
                b"\x42\x01\x12", // cut off in `paths`
                b"\x42\x05\x12\x03\x0a\x01\xff",
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            ],
            OpenApiFormat::V2Json | OpenApiFormat::V3Index => &[
                b"",
                b"[]",
                b"null",
                b"{}x",
                b"{\"a\":\xff}",
                b"{\"paths\":[]}",
                b"{\"paths\":{\"a\"}}",
            ],
        };
        for bad in bad {
            assert!(merge(format, bad, &[], all).is_err(), "{format:?} {bad:?}");
            let peer = merge(format, good, &[good, bad], all).unwrap();
            assert_eq!(peer, None, "{format:?} {bad:?}");
        }
    }
}

#[test]
fn paths_belong_to_what_discovery_names() {
    for (path, expected) in [
        ("/api/", Some(("", ""))),
        ("/api/v1/", Some(("", "v1"))),
        ("api/v1", Some(("", "v1"))),
        ("/apis/", None),
        ("apis", None),
        ("/apis/apps/", Some(("apps", ""))),
        ("/apis/apps/v1/", Some(("apps", "v1"))),
        ("apis/apps/v1", Some(("apps", "v1"))),
        (
            "/apis/apps/v1/watch/namespaces/{namespace}/deployments/{name}",
            Some(("apps", "v1")),
        ),
        ("/api/v1/namespaces/{name}/finalize", Some(("", "v1"))),
        ("/version/", None),
        ("/logs/{logpath}", None),
        ("/.well-known/openid-configuration/", None),
        ("", None),
    ] {
        assert_eq!(group_version(path), expected, "{path}");
    }
}

#[test]
fn a_part_in_several_fields_is_one_part_and_unknown_fields_stay() {
    // swagger; paths with an entry; a fixed64 and a varint nobody knows; paths with another entry.
    let local = b"\x0a\x032.0\x42\x0d\x12\x0b\x0a\x09/apis/a/b\xa1\x06\x01\x02\x03\x04\x05\x06\x07\x08\xa8\x06\x01\x42\x0d\x12\x0b\x0a\x09/apis/a/c";
    let peer = b"\x42\x1e\x12\x0b\x0a\x09/apis/a/c\x12\x0b\x0a\x09/apis/a/d\x0a\x02\x0a\x00";
    let merged = merge(OpenApiFormat::V2Protobuf, local, &[peer], all)
        .unwrap()
        .unwrap();
    assert_eq!(
        merged,
        [local, &b"\x42\x0d\x12\x0b\x0a\x09/apis/a/d\x4a\x00"[..]].concat()
    );
}

#[test]
fn parts_that_a_protobuf_document_lacks_are_new_fields() {
    let peer = b"\x4a\x05\x0a\x03\x0a\x01B\x42\x0d\x12\x0b\x0a\x09/apis/a/b";
    let expected = b"\x0a\x032.0\x42\x0d\x12\x0b\x0a\x09/apis/a/b\x4a\x05\x0a\x03\x0a\x01B";
    let merged = merge(OpenApiFormat::V2Protobuf, b"\x0a\x032.0", &[peer], all).unwrap();
    assert_eq!(merged.as_deref(), Some(expected.as_slice()));
}

/// What a caller could want.
fn wants(groups: &[&str]) -> impl Fn(&str, &str) -> bool {
    move |group, _| groups.contains(&group)
}

proptest! {
    #[test]
    fn documents_are_merged_as_the_model_is(local in documents(), peers in documents_of_peers(), groups in groups()) {
        for format in FORMS {
            let bytes: Vec<_> = peers.iter().map(|peer| peer.write(format)).collect();
            let bytes: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
            let body = local.write(format);
            let merged = merge(format, &body, &bytes, wants(&groups)).unwrap();
            let expected = local.with(format, &peers, &groups);
            prop_assert_eq!(merged.as_ref().map(|it| Model::read(format, it)), expected, "{:?}", format);

            let merged = merged.unwrap_or(body);
            prop_assert_eq!(merge(format, &merged, &bytes, wants(&groups)).unwrap(), None);
        }
    }

    #[test]
    fn peers_may_come_one_after_the_other(local in documents(), peers in documents_of_peers()) {
        for format in FORMS {
            let bytes: Vec<_> = peers.iter().map(|peer| peer.write(format)).collect();
            let together: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
            let together = merge(format, &local.write(format), &together, all).unwrap();
            let folded = bytes.iter().fold(local.write(format), |body, peer| {
                merge(format, &body, &[peer], all).unwrap().unwrap_or(body)
            });
            let together = together.unwrap_or(local.write(format));
            prop_assert_eq!(Model::read(format, &together), Model::read(format, &folded));
        }
    }

    #[test]
    fn nothing_is_added_that_is_there_or_unwanted(local in documents(), peers in documents_of_peers()) {
        for format in FORMS {
            let body = local.write(format);
            let bytes: Vec<_> = peers.iter().map(|peer| peer.write(format)).collect();
            let bytes: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(merge(format, &body, &[], all).unwrap(), None);
            prop_assert_eq!(merge(format, &body, &[&body], all).unwrap(), None);
            prop_assert_eq!(merge(format, &body, &bytes, |_, _| false).unwrap(), None);
        }
    }

    #[test]
    fn any_bytes_are_read(local in any::<Vec<u8>>(), peer in any::<Vec<u8>>()) {
        for format in FORMS {
            let _ = merge(format, &local, &[&peer], all);
        }
    }

    #[test]
    fn documents_with_an_error_are_read(local in documents(), peer in documents(), at: prop::sample::Index, byte: u8, cut: bool) {
        for format in FORMS {
            let local = local.write(format);
            let mut broken = peer.write(format);
            let at = at.index(broken.len().max(1));
            if cut {
                broken.truncate(at);
            } else if let Some(there) = broken.get_mut(at) {
                *there = byte;
            }
            let _ = merge(format, &broken, &[&local], all);
            // What could be merged is a document.
            if let Ok(Some(merged)) = merge(format, &local, &[&broken], all) {
                prop_assert_eq!(merge(format, &merged, &[&broken], all).unwrap(), None);
            }
        }
    }
}

fn documents_of_peers() -> impl Strategy<Value = Vec<Model>> {
    prop::collection::vec(documents(), 0..4)
}

fn groups() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(vec!["", "a", "b", "c"], 0..=4)
}
