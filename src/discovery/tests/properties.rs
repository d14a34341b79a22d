//! What holds whatever servers list.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::discovery::merge::merge;

const GROUPS: [&str; 5] = ["", "apps", "batch", "a \"quoted\" one", "z.example.com"];
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v2"];
const RESOURCES: [&str; 4] = ["x", "y", "z\u{e9}\n", "items"];
const SUBRESOURCES: [Option<&str>; 4] = [None, None, Some("status"), Some("scale/deep")];

prop_compose! {
    /// What one server lists, in any order.
    fn document(server: &'static str)(
        names in prop::collection::vec(
            (select(&GROUPS[..]), select(&VERSIONS[..]), select(&RESOURCES[..]), select(&SUBRESOURCES[..])), 0..16),
        stale in prop::collection::vec(any::<Index>(), 0..2),
    ) -> Document {
        let mut document = Document::default();
        for (group, version, resource, subresource) in names {
            add(&mut document, server, group, version, resource, subresource);
        }
        for index in stale {
            let mut versions: Vec<_> = document.groups.iter_mut().flat_map(|group| &mut group.versions).collect();
            if !versions.is_empty() {
                index.get_mut(&mut versions).freshness = STALE.into();
            }
        }
        document
    }
}

/// What the local server lists; it reads its own resources itself.
fn local() -> impl Strategy<Value = Document> {
    document("local").prop_map(|mut document| {
        let versions = document
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.versions);
        versions.for_each(|version| version.freshness = CURRENT.into());
        document
    })
}

type Server = (Document, bool);

fn server(id: &'static str) -> impl Strategy<Value = Server> {
    (document(id), any::<bool>())
}

fn servers() -> impl Strategy<Value = [Server; 3]> {
    (server("a"), server("b"), server("c")).prop_map(<[Server; 3]>::from)
}

fn union_of(servers: &[Server; 3]) -> PeerUnion {
    let members = servers
        .each_ref()
        .map(|(document, target)| (document, *target));
    PeerUnion {
        document: union(&members),
        replaces: false,
    }
}

/// Whether `merged` is `local` with entries added to the ends of lists.
fn only_longer(local: &Value, merged: &Value) -> bool {
    match (local, merged) {
        (Value::Array(local), Value::Array(merged)) => {
            local.len() <= merged.len() && local.iter().zip(merged).all(|(l, m)| only_longer(l, m))
        }
        // The one exception: it stood for its subresources.
        (Value::Object(local), Value::Object(merged))
            if local
                .get("responseKind")
                .is_some_and(|kind| kind["kind"] == "") =>
        {
            local["resource"] == merged["resource"]
                && only_longer(&local["subresources"], &merged["subresources"])
        }
        (Value::Object(local), Value::Object(merged)) => local.iter().all(|(name, value)| {
            merged
                .get(name)
                .is_some_and(|other| only_longer(value, other))
        }),
        _ => local == merged,
    }
}

proptest! {
    #[test]
    fn the_union_of_a_union_is_the_same(servers in servers()) {
        let others = union_of(&servers);
        prop_assert_eq!(other(&others.document), others.clone());
        // Whatever else is put together with it.
        let twice = union(&[(&others.document, true), (&others.document, true)]);
        prop_assert_eq!(twice, others.document);
    }

    #[test]
    fn the_union_has_what_any_peer_lists_and_marks_what_no_target_lists(servers in servers()) {
        let others = union_of(&servers);
        let all: BTreeSet<_> = servers.iter().flat_map(|(document, _)| document.served()).collect();
        prop_assert_eq!(others.document.served(), all);
        for of in group_versions(&others.document) {
            let fresh = servers.iter().any(|(document, target)| {
                let version = document.version(&of.group, &of.version);
                *target && version.is_some_and(|version| !version.is_stale())
            });
            prop_assert_eq!(others.document.version(&of.group, &of.version).unwrap().is_stale(), !fresh);
        }
    }

    #[test]
    fn everything_that_anybody_lists_is_listed_afterwards_in_both_kinds_of_documents(
        local in local(), servers in servers(),
    ) {
        let others = union_of(&servers);
        let aggregated = merged(&local, &others);
        let mut all = local.served();
        all.extend(others.document.served());
        prop_assert_eq!(aggregated.served(), all);
        let legacy = merged_legacy(&local, &others);
        prop_assert_eq!(group_versions(&legacy), group_versions(&aggregated));
        for of in group_versions(&aggregated) {
            let version = |document: &Document| {
                let mut known = document.clone();
                known.groups.retain(|group| group.name() == of.group);
                known.groups.iter_mut().for_each(|group| group.versions.retain(|version| *version.name == of.version));
                known
            };
            // A stale one has no document of its own.
            if resources_body(&local, &of).is_some() || !others.document.version(&of.group, &of.version).unwrap().is_stale() {
                prop_assert_eq!(version(&legacy).served(), version(&aggregated).served());
            }
        }
    }

    #[test]
    fn what_local_says_stays_and_nothing_is_added_twice(
        local in local(), servers in servers(), pretty in any::<bool>(),
    ) {
        let others = union_of(&servers);
        for document in [DiscoveryDocument::Versions, DiscoveryDocument::Groups] {
            let mut body = aggregated_body(&document, &local);
            if pretty {
                body = serde_json::to_vec_pretty(&value(&body)).unwrap();
            }
            prop_assert_eq!(merge_aggregated(&document, &body, &PeerUnion::default()).unwrap(), None);
            if let Some(merged) = merge_aggregated(&document, &body, &others).unwrap() {
                prop_assert!(only_longer(&value(&body), &value(&merged)));
                prop_assert_eq!(merge_aggregated(&document, &merged, &others).unwrap(), None);
            }
        }
        let groups = groups_body(&local);
        let merge_groups = |body: &[u8]| merge_legacy(&DiscoveryDocument::Groups, Some(body), &others).unwrap();
        if let Some(merged) = merge_groups(&groups) {
            prop_assert!(only_longer(&value(&groups), &value(&merged)));
            prop_assert_eq!(merge_groups(&merged), None);
        }
        for of in group_versions(&local) {
            let Some(body) = resources_body(&local, &of) else { continue };
            let merge = |body: &[u8]| merge_legacy(&DiscoveryDocument::Resources(of.clone()), Some(body), &others).unwrap();
            if let Some(merged) = merge(&body) {
                prop_assert!(only_longer(&value(&body), &value(&merged)));
                prop_assert_eq!(merge(&merged), None);
            }
        }
    }

    #[test]
    fn protobuf_says_what_json_says(local in local(), servers in servers(), replaces in any::<bool>()) {
        let others = PeerUnion { replaces, ..union_of(&servers) };
        let expected = merged(&local, &others);
        for document in [DiscoveryDocument::Versions, DiscoveryDocument::Groups] {
            let enveloped = |listed| {
                let list = group_list(&document, listed);
                super::merge::enveloped("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList", &list)
            };
            let body = enveloped(&local);
            let merged = merge(&document, &content_type(true, DocumentFormat::Protobuf), Some(&body), [(&others.document, others.replaces)]).unwrap();
            prop_assert_eq!(merged.unwrap_or(body), enveloped(&expected));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), text in ".{0,40}") {
        let others = PeerUnion { replaces: true, ..other(&listing("b", &["/v1/x", "g/v1/x"])) };
        let body = format!(r#"{{"kind":"APIGroupDiscoveryList","items":[{text}]}}"#);
        for body in [bytes.as_slice(), body.as_bytes(), &[b"k8s\0", bytes.as_slice()].concat()] {
            for what in [DiscoveryDocument::Groups, group("g"), resources("g", "v1")] {
                for format in [DocumentFormat::Json, DocumentFormat::Yaml, DocumentFormat::Protobuf] {
                    let _ = merge(&what, &content_type(false, format), Some(body), [(&others.document, others.replaces)]);
                    let _ = merge(&what, &content_type(true, format), Some(body), [(&others.document, others.replaces)]);
                }
            }
        }
    }
}
