//! Documents to read and merge, and how a server says them.

mod fixtures;
mod merge;
mod named_alike;
mod peer_union;
mod properties;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::document::AggregatedDocument;
use super::peer_union::{PeerUnion, UnionMember, union};
use super::{aggregated, legacy};
use crate::kube::discovery::model::{Document, Group, Kind, Resource, Subresource, Version};
use crate::kube::discovery::pool::Pool;
use crate::kube::discovery::{read, wire};
use crate::kube::gvr::GroupVersion;

fn of(group: &str, version: &str) -> GroupVersion {
    GroupVersion {
        group: group.into(),
        version: version.into(),
    }
}

/// A document that lists these, as `group/version/resource[/subresource]`; said by `server`.
fn listing(server: &str, names: &[&str]) -> Document {
    let mut document = Document::default();
    for name in names {
        let parts: Vec<&str> = name.split('/').collect();
        let [group, version, resource, sub @ ..] = parts.as_slice() else {
            panic!("{name} is no resource");
        };
        add(
            &mut document,
            server,
            group,
            version,
            resource,
            sub.first().copied(),
        );
    }
    document
}

fn add(
    document: &mut Document,
    server: &str,
    group: &str,
    version: &str,
    resource: &str,
    subresource: Option<&str>,
) {
    let groups = &mut document.groups;
    let group = by_name(
        groups,
        |known| &*known.name == group,
        || Group {
            name: group.into(),
            ..Group::default()
        },
    );
    let version = by_name(
        &mut group.versions,
        |known| &*known.name == version,
        || Version {
            name: version.into(),
            ..Version::default()
        },
    );
    let resource = by_name(
        &mut version.resources,
        |known| &*known.name == resource,
        || {
            Arc::new(Resource {
                name: resource.into(),
                ..Resource::default()
            })
        },
    );
    let resource = Arc::make_mut(resource);
    let kind = Some(Kind {
        kind: "Thing".into(),
        ..Kind::default()
    });
    let verbs = [Arc::from("get"), Arc::from(server)].into();
    let Some(name) = subresource else {
        resource.kind = kind;
        resource.verbs = verbs;
        resource.short_names = [Arc::from("th")].into();
        return;
    };
    by_name(
        &mut resource.subresources,
        |known| &*known.name == name,
        || Subresource {
            name: name.into(),
            kind,
            verbs,
        },
    );
}

fn by_name<T>(list: &mut Vec<T>, named: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().position(named).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    });
    &mut list[at]
}

/// A living peer.
fn peer<'a>(id: &'a str, compatibility: &'a str, document: &'a Document) -> UnionMember<'a> {
    UnionMember {
        id,
        compatibility: Some(compatibility),
        document,
        target: true,
    }
}

/// What others list, from one of them.
fn other(document: &Document) -> PeerUnion {
    union(&[peer("b", "1.36", document)])
}

/// An aggregated document as a server says it.
fn aggregated_body(part: AggregatedDocument, document: &Document) -> Vec<u8> {
    let items: Vec<_> = part
        .of(document)
        .map(wire::aggregated::Group::from)
        .collect();
    let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items});
    serde_json::to_vec(&body).unwrap()
}

/// A list of groups as a server says it.
fn groups_body(document: &Document) -> Vec<u8> {
    let groups: Vec<_> = AggregatedDocument::Groups
        .of(document)
        .map(wire::legacy::Group::from)
        .collect();
    let body = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
    serde_json::to_vec(&body).unwrap()
}

/// A group version's own document as a server says it.
fn resources_body(document: &Document, of: &GroupVersion) -> Option<Vec<u8>> {
    let others = PeerUnion {
        document: document.clone(),
        replaces: false,
    };
    legacy::resources(&of.group, &of.version, None, &others).unwrap()
}

fn group_versions(document: &Document) -> BTreeSet<GroupVersion> {
    let groups = document.groups.iter();
    let names = groups.flat_map(|group| {
        let versions = group.versions.iter();
        versions.map(|version| of(&group.name, &version.name))
    });
    names.collect()
}

/// Everything that the local server's aggregated documents list once they are merged.
fn merged(local: &Document, others: &PeerUnion) -> Document {
    let [core, groups] = [AggregatedDocument::Core, AggregatedDocument::Groups].map(|part| {
        let body = aggregated_body(part, local);
        let merged = aggregated::merge(part, &body, others).unwrap();
        merged.unwrap_or(body)
    });
    read::aggregated(&mut Pool::default(), &core, &groups).unwrap()
}

/// The same from the documents before aggregated discovery.
fn merged_legacy(local: &Document, others: &PeerUnion) -> Document {
    let groups = groups_body(local);
    let groups = legacy::groups(&groups, others).unwrap().unwrap_or(groups);
    let all = group_versions(local).into_iter();
    let all = all.chain(group_versions(&others.document));
    let all: BTreeSet<_> = all.collect();
    let document = |of: &GroupVersion| {
        let body = resources_body(local, of);
        let merged = legacy::resources(&of.group, &of.version, body.as_deref(), others);
        Some((of.clone(), merged.unwrap().or(body)?))
    };
    let documents: BTreeMap<_, _> = all.iter().filter_map(document).collect();
    let order = read::order(&groups).unwrap();
    read::legacy(&mut Pool::default(), &order, &all, &documents)
}

fn value(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}
