//! The same documents in YAML and protobuf.

use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;

use super::*;
use crate::kube::envelope::EnvelopeError;

fn merge(
    document: &DiscoveryDocument,
    format: DocumentFormat,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Merged {
    super::super::merge::merge(
        document,
        &content_type(false, format),
        body,
        [(&others.document, others.replaces)],
    )
}

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

pub(super) fn resource_list(document: &Document, of: (&str, &str)) -> legacy::ResourceList {
    legacy::ResourceList::new(of.0, document.version(of.0, of.1).unwrap())
}

#[test]
fn aggregated_discovery_in_protobuf_says_what_it_says_in_json() {
    let (local, others) = (local(), others());
    let expected = merged(&local, &others);
    for document in [DiscoveryDocument::Versions, DiscoveryDocument::Groups] {
        let body = enveloped(
            "apidiscovery.k8s.io/v2beta1",
            "APIGroupDiscoveryList",
            &group_list(&document, &local),
        );
        let merge = |body: &[u8]| {
            let format = DocumentFormat::Protobuf;
            super::super::merge::merge(
                &document,
                &content_type(true, format),
                Some(body),
                [(&others.document, others.replaces)],
            )
            .unwrap()
        };
        let merged = merge(&body).unwrap();
        let (meta, list) = opened::<GroupList>(&merged);
        assert_eq!(meta.api_version(), "apidiscovery.k8s.io/v2beta1");
        assert_eq!(list, group_list(&document, &expected));
        assert_eq!(merge(&merged), None);
    }
}

#[test]
fn legacy_discovery_in_protobuf_says_what_it_says_in_json() {
    let (local, others) = (local(), others());
    let body = enveloped("v1", "APIGroupList", &legacy_groups(&local));
    let merged_groups = merge(
        &DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(&body),
        &others,
    );
    let (_, list) = opened::<legacy::GroupList>(&merged_groups.unwrap().unwrap());
    assert_eq!(list, legacy_groups(&merged_legacy(&local, &others)));

    let first: legacy::Group = list.groups[0].clone();
    let body = enveloped("v1", "APIGroup", &legacy_groups(&local).groups[0]);
    let merged_group = merge(&group("g"), DocumentFormat::Protobuf, Some(&body), &others);
    assert_eq!(
        opened::<legacy::Group>(&merged_group.unwrap().unwrap()).1,
        first
    );

    let what = &resources("g", "v1");
    let body = enveloped("v1", "APIResourceList", &resource_list(&local, ("g", "v1")));
    let merged_list = merge(what, DocumentFormat::Protobuf, Some(&body), &others)
        .unwrap()
        .unwrap();
    let (_, list) = opened::<legacy::ResourceList>(&merged_list);
    let names: Vec<_> = list
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
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
    let made = merge(&group("h"), DocumentFormat::Protobuf, None, &others)
        .unwrap()
        .unwrap();
    let (meta, made) = opened::<legacy::Group>(&made);
    assert_eq!((meta.kind(), meta.api_version()), ("APIGroup", "v1"));
    assert_eq!(made, legacy_groups(&others.document).groups[1]);
    let what = &resources("h", "v1");
    let list = merge(what, DocumentFormat::Protobuf, None, &others)
        .unwrap()
        .unwrap();
    let (_, list) = opened::<legacy::ResourceList>(&list);
    assert_eq!(list, resource_list(&others.document, ("h", "v1")));
    for what in [
        &group("nobodys"),
        &DiscoveryDocument::Groups,
        &DiscoveryDocument::Versions,
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
    let what = &resources("g", "v1");
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
    let made = merge(&group("h"), DocumentFormat::Yaml, None, &others)
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
    let list = enveloped("v1", "APIGroupList", &legacy_groups(&local()));
    let refused = merge(&group("g"), DocumentFormat::Protobuf, Some(&list), &others);
    assert!(matches!(refused, Err(MergeError::Kind("APIGroup"))));
    let bare = merge(
        &DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(b"{}"),
        &others,
    );
    assert!(matches!(
        bare,
        Err(MergeError::Protobuf(EnvelopeError::Magic))
    ));
    let cut = merge(
        &DiscoveryDocument::Groups,
        DocumentFormat::Protobuf,
        Some(&list[..list.len() - 3]),
        &others,
    );
    assert!(matches!(cut, Err(MergeError::Protobuf(_))));
    let no_yaml = merge(
        &DiscoveryDocument::Groups,
        DocumentFormat::Yaml,
        Some(b"a: [1"),
        &others,
    );
    assert!(matches!(no_yaml, Err(MergeError::Yaml(_))));
}
