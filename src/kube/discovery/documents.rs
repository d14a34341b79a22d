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
    CLUSTER, CURRENT, Group, GroupList, Kind, NAMESPACED, Resource, Subresource, Version,
};
use crate::kube::gvr::GroupVersion;
use crate::kube::nullable;

#[derive(Deserialize)]
struct Index {
    paths: Vec<String>,
}

/// A list of groups, legacy or aggregated.
#[derive(Deserialize)]
struct Listed {
    #[serde(default, deserialize_with = "nullable")]
    groups: Vec<legacy::Group>,
    #[serde(default, deserialize_with = "nullable")]
    items: Vec<Group>,
}

/// The group versions that a list of groups names, legacy or aggregated, in its order.
pub fn listed(document: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    let list: Listed = serde_json::from_slice(document)?;
    let aggregated = list.items.iter().map(legacy::Group::from);
    let groups = list.groups.into_iter().chain(aggregated);
    Ok(groups.flat_map(versions_of).collect())
}

fn versions_of(group: legacy::Group) -> impl Iterator<Item = GroupVersion> {
    let versions = group.versions.into_iter();
    versions.map(move |it| GroupVersion::new(&group.name, &it.version))
}

/// The group versions that the path index `/` names.
pub fn group_versions(index: &[u8]) -> Result<BTreeSet<GroupVersion>, serde_json::Error> {
    let index: Index = serde_json::from_slice(index)?;
    let paths = index.paths.iter();
    Ok(paths.filter_map(|path| group_version(path)).collect())
}

fn group_version(path: &str) -> Option<GroupVersion> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let (group, version) = match (parts.next()?, parts.next()?) {
        ("api", version) => ("", version),
        ("apis", group) => (group, parts.next()?),
        _ => return None,
    };
    let whole = parts.next().is_none() && !version.is_empty();
    whole.then(|| GroupVersion::new(group, version))
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
            known.response_kind = kind;
            known.scope = scope.to_owned();
            known.singular_resource = read.singular_name;
            known.verbs = read.verbs.items;
            known.short_names = read.short_names;
            known.categories = read.categories;
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
