//! Documents to read and merge, and how a server says them.

mod fixtures;
mod merge;
mod named_alike;
mod peer_union;
mod properties;
mod shapes;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::merge::{DocumentFormat, MergeError};
use super::peer_union::union;
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::discovery::model::{
    CLUSTER, CURRENT, Document, GroupList, Kind, Resource, STALE, Subresource, Version,
};
use crate::kube::discovery::{documents, legacy};
use crate::kube::gvr::GroupVersion;
use crate::kube::media_type;

fn of(group: &str, version: &str) -> GroupVersion {
    GroupVersion {
        group: group.into(),
        version: version.into(),
    }
}

fn resources(group: &str, version: &str) -> DiscoveryDocument {
    DiscoveryDocument::Resources(of(group, version))
}

fn group(name: &str) -> DiscoveryDocument {
    DiscoveryDocument::Group(name.to_owned())
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
    let new = Version {
        name: version.into(),
        freshness: CURRENT.into(),
        ..Version::default()
    };
    let new = Document::from_iter([(group.to_owned(), new)])
        .groups
        .remove(0);
    let groups = &mut document.groups;
    let group = by_name(groups, |known| known.name() == group, || new.clone());
    let version = by_name(
        &mut group.versions,
        |known| known.name == version,
        || new.versions[0].clone(),
    );
    let resource = by_name(
        &mut version.resources,
        |known| known.name == resource,
        || Resource {
            name: resource.into(),
            scope: CLUSTER.into(),
            ..Resource::default()
        },
    );
    let kind = Kind {
        kind: "Thing".into(),
        ..Kind::default()
    };
    let verbs = vec!["get".to_owned(), server.to_owned()];
    let Some(name) = subresource else {
        resource.response_kind = kind;
        resource.verbs = verbs;
        resource.short_names = vec!["th".to_owned()];
        return;
    };
    by_name(
        &mut resource.subresources,
        |known| known.name == name,
        || Subresource {
            name: name.into(),
            response_kind: Some(kind),
            verbs,
            ..Subresource::default()
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

/// What peers list, and whether its entries take the place of what the local server lists under the same names.
#[derive(Debug, Clone, Default, PartialEq)]
struct PeerUnion {
    document: Document,
    replaces: bool,
}

/// What others list, from one of them.
fn other(document: &Document) -> PeerUnion {
    PeerUnion {
        document: union(&[(document, true)]),
        replaces: false,
    }
}

/// The `Content-Type` of a document.
fn content_type(aggregated: bool, format: DocumentFormat) -> String {
    let essence = match format {
        DocumentFormat::Json => media_type::JSON,
        DocumentFormat::Yaml => media_type::YAML,
        DocumentFormat::Protobuf => media_type::PROTOBUF,
    };
    match aggregated {
        true => format!("{essence};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
        false => essence.to_owned(),
    }
}

type Merged = Result<Option<Vec<u8>>, MergeError>;

/// Merges a document of aggregated discovery in JSON.
fn merge_aggregated(document: &DiscoveryDocument, body: &[u8], others: &PeerUnion) -> Merged {
    super::merge::merge(
        document,
        &content_type(true, DocumentFormat::Json),
        Some(body),
        [(&others.document, others.replaces)],
    )
}

/// Merges a legacy document in JSON.
fn merge_legacy(document: &DiscoveryDocument, body: Option<&[u8]>, others: &PeerUnion) -> Merged {
    super::merge::merge(
        document,
        &content_type(false, DocumentFormat::Json),
        body,
        [(&others.document, others.replaces)],
    )
}

fn group_list(document: &DiscoveryDocument, listed: &Document) -> GroupList {
    let is_core = *document == DiscoveryDocument::Versions;
    let mut items = listed.groups.clone();
    items.retain(|group| group.name().is_empty() == is_core);
    GroupList { items }
}

/// An aggregated document as a server says it.
fn aggregated_body(document: &DiscoveryDocument, listed: &Document) -> Vec<u8> {
    let mut body = json!(group_list(document, listed));
    body["kind"] = "APIGroupDiscoveryList".into();
    body["apiVersion"] = "apidiscovery.k8s.io/v2".into();
    body["metadata"] = json!({});
    serde_json::to_vec(&body).unwrap()
}

fn legacy_groups(listed: &Document) -> legacy::GroupList {
    let groups = group_list(&DiscoveryDocument::Groups, listed).items;
    legacy::GroupList {
        groups: groups.iter().map(Into::into).collect(),
    }
}

/// A list of groups as a server says it.
fn groups_body(listed: &Document) -> Vec<u8> {
    let mut body = json!(legacy_groups(listed));
    body["kind"] = "APIGroupList".into();
    body["apiVersion"] = "v1".into();
    serde_json::to_vec(&body).unwrap()
}

/// A group version's own document as a server says it.
fn resources_body(document: &Document, of: &GroupVersion) -> Option<Vec<u8>> {
    let others = PeerUnion {
        document: document.clone(),
        replaces: false,
    };
    merge_legacy(&DiscoveryDocument::Resources(of.clone()), None, &others).unwrap()
}

fn group_versions(document: &Document) -> BTreeSet<GroupVersion> {
    let groups = document.groups.iter();
    let names = groups.flat_map(|group| {
        let versions = group.versions.iter();
        versions.map(|version| of(group.name(), &version.name))
    });
    names.collect()
}

/// Everything that the local server's aggregated documents list once they are merged.
fn merged(local: &Document, others: &PeerUnion) -> Document {
    let documents = [DiscoveryDocument::Versions, DiscoveryDocument::Groups].map(|document| {
        let body = aggregated_body(&document, local);
        let merged = merge_aggregated(&document, &body, others).unwrap();
        documents::aggregated(&merged.unwrap_or(body)).unwrap()
    });
    Document {
        groups: documents.concat(),
    }
}

/// What servers' own documents of group versions say, the core group first, then in this order, then the rest by name.
/// A version without a document is stale.
fn read_legacy(
    order: &[GroupVersion],
    all: &BTreeSet<GroupVersion>,
    read: impl Fn(&GroupVersion) -> Option<Vec<u8>>,
) -> Document {
    let core = all.iter().filter(|of| of.group.is_empty());
    let listed = order.iter().filter(|of| all.contains(of));
    let mut seen = BTreeSet::new();
    let ordered = core.chain(listed).chain(all).filter(|of| seen.insert(*of));
    let version = |of: &GroupVersion| {
        let version = match read(of) {
            Some(body) => documents::resources(of, &body).unwrap(),
            None => Version {
                name: of.version.clone(),
                freshness: STALE.into(),
                ..Version::default()
            },
        };
        (of.group.clone(), version)
    };
    ordered.map(version).collect()
}

/// The same from the documents before aggregated discovery.
fn merged_legacy(local: &Document, others: &PeerUnion) -> Document {
    let groups = groups_body(local);
    let merged = merge_legacy(&DiscoveryDocument::Groups, Some(&groups), others).unwrap();
    let order = documents::listed(&merged.unwrap_or(groups)).unwrap();
    let all = group_versions(local).into_iter();
    let all = all.chain(group_versions(&others.document)).collect();
    read_legacy(&order, &all, |of| {
        let body = resources_body(local, of);
        let document = DiscoveryDocument::Resources(of.clone());
        let merged = merge_legacy(&document, body.as_deref(), others).unwrap();
        merged.or(body)
    })
}

fn value(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}
