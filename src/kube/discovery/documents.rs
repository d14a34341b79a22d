//! Reads discovery documents. Pure.
//!
//! There are two formats: aggregated discovery (KEP-3352) is two documents. Legacy discovery is the path index `/`,
//! which names exactly the served group versions, and one document per group version. The list of groups `/apis` is read
//! for the order only, because it can lack what is served.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::kube::discovery::model::{self, Group};
use crate::kube::discovery::pool::Pool;
use crate::kube::discovery::read;
use crate::kube::gvr::GroupVersion;

#[derive(Deserialize)]
struct Index {
    paths: Vec<String>,
}

/// A list of groups, legacy or aggregated.
#[derive(Deserialize)]
struct GroupList {
    groups: Option<Vec<GroupNames>>,
    items: Option<Vec<GroupNames>>,
}

/// A group. Its name is in `metadata` in aggregated discovery.
#[derive(Deserialize)]
struct GroupNames {
    name: Option<String>,
    metadata: Option<Metadata>,
    versions: Option<Vec<VersionName>>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<String>,
}

#[derive(Deserialize)]
struct VersionName {
    version: String,
}

/// The group versions that a list of groups names, legacy or aggregated, in its order.
pub fn listed(document: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    let list: GroupList = serde_json::from_slice(document)?;
    let groups = list.groups.into_iter().chain(list.items).flatten();
    Ok(groups.flat_map(group_versions_of).collect())
}

/// The versions that a group's own document names, in its order.
pub fn versions(document: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    Ok(group_versions_of(serde_json::from_slice(document)?).collect())
}

fn group_versions_of(group: GroupNames) -> impl Iterator<Item = GroupVersion> {
    let name = group.name.or(group.metadata.and_then(|it| it.name));
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

/// A group version's own document (`APIResourceList`).
pub fn resources(of: &GroupVersion, document: &[u8]) -> Result<Group, serde_json::Error> {
    let version = model::Version {
        name: of.version.as_str().into(),
        resources: read::resources(&mut Pool::default(), of, document)?,
        ..model::Version::default()
    };
    Ok(Group {
        name: of.group.as_str().into(),
        versions: vec![version],
    })
}

/// An aggregated discovery document.
pub fn aggregated(document: &[u8]) -> Result<Vec<Group>, serde_json::Error> {
    read::groups(&mut Pool::default(), document)
}

#[cfg(test)]
mod tests;
