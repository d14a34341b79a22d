//! Reads discovery documents. Pure.
//!
//! There are two formats: aggregated discovery (KEP-3352) is two documents. Legacy discovery is the path index `/`,
//! which names exactly the served group versions, and one document per group version. The list of groups `/apis` is read
//! for the order only, because it can lack what is served.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde::Deserialize;

use super::legacy;
use super::model::{
    CLUSTER, CURRENT, Group, GroupList, Kind, Metadata, NAMESPACED, Resource, Subresource, Version,
};
use crate::kube::gvr::GroupVersion;

#[derive(Deserialize)]
struct Index {
    paths: Vec<String>,
}

/// A list of groups, legacy or aggregated.
#[derive(Deserialize)]
struct Listed {
    groups: Option<Vec<ListedGroup>>,
    items: Option<Vec<ListedGroup>>,
}

/// A group. Its name is in `metadata` in aggregated discovery.
#[derive(Deserialize)]
struct ListedGroup {
    name: Option<String>,
    metadata: Option<Metadata>,
    versions: Option<Vec<ListedVersion>>,
}

#[derive(Deserialize)]
struct ListedVersion {
    version: String,
}

/// The group versions that a list of groups names, legacy or aggregated, in its order.
pub fn listed(document: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    let list: Listed = serde_json::from_slice(document)?;
    let groups = list.groups.into_iter().chain(list.items).flatten();
    Ok(groups.flat_map(group_versions_of).collect())
}

/// The versions that a group's own document names, in its order.
pub fn versions(document: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    Ok(group_versions_of(serde_json::from_slice(document)?).collect())
}

fn group_versions_of(group: ListedGroup) -> impl Iterator<Item = GroupVersion> {
    let name = group.name.or(group.metadata.map(|it| it.name));
    let name = name.unwrap_or_default();
    let versions = group.versions.into_iter().flatten();
    versions.map(move |it| GroupVersion {
        group: name.clone(),
        version: it.version,
    })
}

/// The group versions that the path index `/` names.
pub fn group_versions(index: &[u8]) -> Result<BTreeSet<GroupVersion>, serde_json::Error> {
    let index: Index = serde_json::from_slice(index)?;
    Ok(index
        .paths
        .iter()
        .filter_map(|path| group_version(path))
        .collect())
}

fn group_version(path: &str) -> Option<GroupVersion> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let (group, version) = match (parts.next()?, parts.next()?) {
        ("api", version) => ("", version),
        ("apis", group) => (group, parts.next()?),
        _ => return None,
    };
    let whole = parts.next().is_none() && !version.is_empty();
    whole.then(|| GroupVersion {
        group: group.to_owned(),
        version: version.to_owned(),
    })
}

/// An aggregated discovery document.
pub fn aggregated(document: &[u8]) -> Result<Vec<Group>, serde_json::Error> {
    serde_json::from_slice(document).map(|list: GroupList| list.items)
}

/// A group version's own document (`APIResourceList`). Subresources may stand anywhere in it.
pub fn resources(of: &GroupVersion, document: &[u8]) -> Result<Version, serde_json::Error> {
    let list: legacy::ResourceList = serde_json::from_slice(document)?;
    let mut resources: IndexMap<String, Resource> = IndexMap::new();
    for read in list.resources {
        let kind = Kind {
            group: read.group,
            version: read.version,
            kind: read.kind,
        };
        let scope = match read.namespaced {
            true => NAMESPACED,
            false => CLUSTER,
        };
        let (name, subresource) = read.name.split_once('/').unwrap_or((&read.name, ""));
        let known = resources
            .entry(name.to_owned())
            .or_insert_with(|| Resource {
                name: name.to_owned(),
                scope: scope.to_owned(),
                ..Resource::default()
            });
        if subresource.is_empty() {
            *known = Resource {
                name: name.to_owned(),
                response_kind: kind,
                scope: scope.to_owned(),
                singular_resource: read.singular_name,
                verbs: read.verbs.items,
                short_names: read.short_names,
                categories: read.categories,
                subresources: std::mem::take(&mut known.subresources),
            };
        } else {
            known.subresources.push(Subresource {
                name: subresource.to_owned(),
                response_kind: (!kind.kind.is_empty()).then_some(kind),
                accepted_types: Vec::new(),
                verbs: read.verbs.items,
            });
        }
    }
    Ok(Version {
        name: of.version.clone(),
        resources: resources.into_values().collect(),
        freshness: CURRENT.to_owned(),
    })
}

#[cfg(test)]
mod tests;
