//! The same documents in YAML and protobuf.

use k8s_pb::api::apidiscovery::v2;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;

use super::*;
use crate::discovery::document::{DiscoveryDocument, DocumentFormat, MergeError};
use crate::discovery::merge::merge;
use crate::kube::gvr::api_version;

fn local() -> Document {
    listing(
        "a",
        &["/v1/pods", "g/v1/x", "g/v1/x/status", "g/v1/only/scale"],
    )
}

fn others() -> PeerUnion {
    let names = [
        "/v1/pods",
        "/v1/nodes",
        "g/v1/x/scale",
        "g/v1/y",
        "g/v1/only",
        "g/v2/x",
        "h/v1/z",
        "h/v1/z/status",
    ];
    other(&listing("b", &names))
}

pub(super) fn enveloped(version: &str, kind: &str, message: &impl Message) -> Vec<u8> {
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(version.into()),
            kind: Some(kind.into()),
        }),
        raw: Some(message.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    };
    [b"k8s\0".as_slice(), &unknown.encode_to_vec()].concat()
}

pub(super) fn opened<M: Message + Default>(body: &[u8]) -> (TypeMeta, M) {
    let unknown = Unknown::decode(body.strip_prefix(b"k8s\0").unwrap()).unwrap();
    let message = M::decode(unknown.raw()).unwrap();
    (unknown.type_meta.unwrap(), message)
}

pub(super) fn group_discovery(
    part: AggregatedDocument,
    document: &Document,
) -> v2::APIGroupDiscoveryList {
    let groups = part.of(document).map(wire::aggregated::Group::from);
    v2::APIGroupDiscoveryList {
        metadata: Some(meta::ListMeta::default()),
        items: groups.map(Into::into).collect(),
    }
}

fn group_list(document: &Document) -> meta::APIGroupList {
    let groups = AggregatedDocument::Groups
        .of(document)
        .map(wire::legacy::Group::from);
    meta::APIGroupList {
        groups: groups.map(Into::into).collect(),
    }
}

pub(super) fn resource_list(document: &Document, of: (&str, &str)) -> meta::APIResourceList {
    let version = document.version(of.0, of.1).unwrap();
    let resources = version.resources.iter();
    let resources = resources.flat_map(|resource| wire::legacy::Resource::all(resource));
    meta::APIResourceList {
        group_version: Some(api_version(of.0, of.1)),
        resources: resources.map(Into::into).collect(),
    }
}

#[test]
fn aggregated_discovery_in_protobuf_says_what_it_says_in_json() {
    let (local, others) = (local(), others());
    let expected = merged(&local, &others);
    for part in [AggregatedDocument::Core, AggregatedDocument::Groups] {
        let body = enveloped(
            "apidiscovery.k8s.io/v2beta1",
            "APIGroupDiscoveryList",
            &group_discovery(part, &local),
        );
        let merged = merge(
            DiscoveryDocument::Aggregated(part),
            DocumentFormat::Protobuf,
            Some(&body),
            &others,
        );
        let merged = merged.unwrap().unwrap();
        let (meta, list) = opened::<v2::APIGroupDiscoveryList>(&merged);
        assert_eq!(meta.api_version(), "apidiscovery.k8s.io/v2beta1");
        assert_eq!(list, group_discovery(part, &expected));
        let again = merge(
            DiscoveryDocument::Aggregated(part),
            DocumentFormat::Protobuf,
            Some(&merged),
            &others,
        );
        assert_eq!(again.unwrap(), None);
    }
}

#[test]
fn legacy_discovery_in_protobuf_says_what_it_says_in_json() {
    let (local, others) = (local(), others());
    let body = enveloped("v1", "APIGroupList", &group_list(&local));
    let merged_groups = merge(
        DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(&body),
        &others,
    );
    let (_, list) = opened::<meta::APIGroupList>(&merged_groups.unwrap().unwrap());
    assert_eq!(list, group_list(&merged_legacy(&local, &others)));

    let group: meta::APIGroup = list.groups[0].clone();
    let body = enveloped("v1", "APIGroup", &group_list(&local).groups[0]);
    let merged_group = merge(
        DiscoveryDocument::Group("g"),
        DocumentFormat::Protobuf,
        Some(&body),
        &others,
    );
    assert_eq!(
        opened::<meta::APIGroup>(&merged_group.unwrap().unwrap()).1,
        group
    );

    let what = DiscoveryDocument::Resources {
        group: "g",
        version: "v1",
    };
    let body = enveloped("v1", "APIResourceList", &resource_list(&local, ("g", "v1")));
    let merged_list = merge(what, DocumentFormat::Protobuf, Some(&body), &others)
        .unwrap()
        .unwrap();
    let (_, list) = opened::<meta::APIResourceList>(&merged_list);
    let names: Vec<_> = list
        .resources
        .iter()
        .map(|resource| resource.name())
        .collect();
    assert_eq!(
        names,
        ["x", "x/status", "only/scale", "x/scale", "y", "only"]
    );
    assert_eq!(
        merge(what, DocumentFormat::Protobuf, Some(&merged_list), &others).unwrap(),
        None
    );
}

#[test]
fn what_local_does_not_have_is_made_in_protobuf() {
    let others = others();
    let group = merge(
        DiscoveryDocument::Group("h"),
        DocumentFormat::Protobuf,
        None,
        &others,
    )
    .unwrap()
    .unwrap();
    let (meta, group) = opened::<meta::APIGroup>(&group);
    assert_eq!((meta.kind(), meta.api_version()), ("APIGroup", "v1"));
    assert_eq!(group, group_list(&others.document).groups[1]);
    let what = DiscoveryDocument::Resources {
        group: "h",
        version: "v1",
    };
    let list = merge(what, DocumentFormat::Protobuf, None, &others)
        .unwrap()
        .unwrap();
    let (_, list) = opened::<meta::APIResourceList>(&list);
    assert_eq!(list, resource_list(&others.document, ("h", "v1")));
    for what in [
        DiscoveryDocument::Group("nobodys"),
        DiscoveryDocument::Groups,
        DiscoveryDocument::Aggregated(AggregatedDocument::Core),
    ] {
        assert_eq!(
            merge(what, DocumentFormat::Protobuf, None, &others).unwrap(),
            None
        );
    }
}

#[test]
fn yaml_says_what_json_says() {
    let (local, others) = (local(), others());
    let json = resources_body(&local, &of("g", "v1")).unwrap();
    let yaml = serde_yaml::to_string(&value(&json)).unwrap();
    let what = DiscoveryDocument::Resources {
        group: "g",
        version: "v1",
    };
    let from_json = merge(what, DocumentFormat::Json, Some(&json), &others)
        .unwrap()
        .unwrap();
    let from_yaml = merge(what, DocumentFormat::Yaml, Some(yaml.as_bytes()), &others)
        .unwrap()
        .unwrap();
    assert!(from_yaml.starts_with(b"apiVersion: v1\n"));
    let read: Value = serde_yaml::from_slice(&from_yaml).unwrap();
    assert_eq!(read, value(&from_json));
    assert_eq!(
        merge(what, DocumentFormat::Yaml, Some(&from_yaml), &others).unwrap(),
        None
    );
    let made = merge(
        DiscoveryDocument::Group("h"),
        DocumentFormat::Yaml,
        None,
        &others,
    )
    .unwrap()
    .unwrap();
    assert!(made.starts_with(b"apiVersion: v1\nkind: APIGroup\nname: h\n"));
}

#[test]
fn the_form_is_that_of_the_media_type() {
    for (content_type, format) in [
        ("application/json", Some(DocumentFormat::Json)),
        (
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Some(DocumentFormat::Json),
        ),
        (
            "Application/YAML ; charset=utf-8",
            Some(DocumentFormat::Yaml),
        ),
        (
            "application/vnd.kubernetes.protobuf",
            Some(DocumentFormat::Protobuf),
        ),
        (
            "application/vnd.kubernetes.protobuf;as=APIGroupDiscoveryList",
            Some(DocumentFormat::Protobuf),
        ),
        ("application/cbor", None),
        ("text/plain", None),
        ("", None),
    ] {
        assert_eq!(DocumentFormat::of(content_type), format, "{content_type}");
    }
}

#[test]
fn what_is_another_kind_or_damaged_is_refused() {
    let others = others();
    let list = enveloped("v1", "APIGroupList", &group_list(&local()));
    let refused = merge(
        DiscoveryDocument::Group("g"),
        DocumentFormat::Protobuf,
        Some(&list),
        &others,
    );
    assert!(matches!(refused, Err(MergeError::Kind("APIGroup"))));
    let bare = merge(
        DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(b"{}"),
        &others,
    );
    assert!(matches!(bare, Err(MergeError::Kind("APIGroupList"))));
    let cut = merge(
        DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(&list[..list.len() - 3]),
        &others,
    );
    assert!(matches!(cut, Err(MergeError::Protobuf(_))));
    let no_yaml = merge(
        DiscoveryDocument::Groups,
        DocumentFormat::Yaml,
        Some(b"a: [1"),
        &others,
    );
    assert!(matches!(no_yaml, Err(MergeError::Yaml(_))));
}
