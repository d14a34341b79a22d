//! Parses a server's discovery, aggregated or legacy. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};

use super::model::{Document, Group, Kind, Resource, Subresource, Version};
use super::pool::Pool;
use super::wire::{aggregated as wire, legacy};
use crate::kube::gvr::GroupVersion;

/// Parses the two documents of aggregated discovery, `/api` and `/apis`.
pub fn aggregated(
    pool: &mut Pool,
    core: &[u8],
    groups: &[u8],
) -> Result<Document, serde_json::Error> {
    let mut document = Document::default();
    for body in [core, groups] {
        document.groups.extend(self::groups(pool, body)?);
    }
    Ok(document)
}

/// Parses one document of aggregated discovery.
pub fn groups(pool: &mut Pool, body: &[u8]) -> Result<Vec<Group>, serde_json::Error> {
    let list: wire::Groups<'_> = serde_json::from_slice(body)?;
    let groups = list.items.into_iter();
    let groups = groups.map(|read| group(pool, &read.metadata.name, read.versions));
    Ok(groups.collect())
}

/// Parses the groups of aggregated discovery that are wanted. Others may have thousands of custom resources: these are
/// skipped.
pub fn groups_where(
    pool: &mut Pool,
    body: &[u8],
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Group>, serde_json::Error> {
    let list: wire::NamedGroups<'_> = serde_json::from_slice(body)?;
    let mut groups = Vec::new();
    for read in list.items {
        let name = &*read.metadata.name;
        if !wanted(name) {
            continue;
        }
        let versions: Vec<wire::Version<'_>> = match read.versions {
            Some(versions) => serde_json::from_str(versions.get())?,
            None => Vec::new(),
        };
        groups.push(group(pool, name, versions));
    }
    Ok(groups)
}

fn group(pool: &mut Pool, name: &str, versions: Vec<wire::Version<'_>>) -> Group {
    let versions = versions.into_iter();
    Group {
        name: pool.text(name),
        versions: versions.map(|read| version(pool, name, read)).collect(),
    }
}

fn version(pool: &mut Pool, group: &str, read: wire::Version<'_>) -> Version {
    let of = (group, &*read.version);
    let resources = read.resources.into_iter();
    Version {
        name: pool.text(&read.version),
        stale: &*read.freshness == wire::STALE,
        resources: resources.map(|read| resource(pool, of, &read)).collect(),
    }
}

fn resource(pool: &mut Pool, of: (&str, &str), read: &wire::Resource<'_>) -> Arc<Resource> {
    let subresources = read.subresources.iter();
    let subresources = subresources.map(|sub| Subresource {
        name: pool.text(&sub.subresource),
        kind: kind(pool, of, &sub.response_kind),
        verbs: pool.list(sub.verbs.iter()),
    });
    let subresources = subresources.collect();
    let resource = Resource {
        name: pool.text(&read.resource),
        singular: pool.text(&read.singular_resource),
        kind: kind(pool, of, &read.response_kind),
        namespaced: &*read.scope == wire::NAMESPACED,
        verbs: pool.list(read.verbs.iter()),
        short_names: pool.list(read.short_names.iter()),
        categories: pool.list(read.categories.iter()),
        storage_version_hash: pool.text(""),
        subresources,
    };
    pool.resource(resource)
}

/// Leaves group and version empty where they are those of the document.
fn kind(pool: &mut Pool, of: (&str, &str), read: &wire::Kind<'_>) -> Option<Kind> {
    let same = |value: &str, of: &str| value.is_empty() || value == of;
    let (group, version) = match same(&read.group, of.0) && same(&read.version, of.1) {
        true => ("", ""),
        false => (&*read.group, &*read.version),
    };
    (!read.is_empty()).then(|| Kind {
        group: pool.text(group),
        version: pool.text(version),
        kind: pool.text(&read.kind),
    })
}

/// Puts documents of group versions together: the core group first, then in this order, then the rest by name. The order
/// says nothing about what is served, because lists of groups can be wrong about that. A group version of `served` whose
/// document is missing from `documents` or cannot be parsed is stale.
pub fn legacy<'a, B: AsRef<[u8]>>(
    pool: &mut Pool,
    order: &'a [GroupVersion],
    served: &'a BTreeSet<GroupVersion>,
    documents: &BTreeMap<GroupVersion, B>,
) -> Document {
    let core = served.iter().filter(|of| of.group.is_empty());
    let listed = order.iter().filter(|of| served.contains(*of));
    let all: IndexSet<_> = core.chain(listed).chain(served).collect();
    let mut ordered: IndexMap<&str, Vec<Version>> = IndexMap::new();
    for of in all {
        let read = documents
            .get(of)
            .and_then(|body| resources(pool, of, body.as_ref()).ok());
        ordered.entry(&of.group).or_default().push(Version {
            name: pool.text(&of.version),
            stale: read.is_none(),
            resources: read.unwrap_or_default(),
        });
    }
    let groups = ordered.into_iter().map(|(name, versions)| Group {
        name: pool.text(name),
        versions,
    });
    Document {
        groups: groups.collect(),
    }
}

/// The order of a legacy list of groups: the preferred version of each group first.
pub fn order(groups: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    let list: legacy::Groups<'_> = serde_json::from_slice(groups)?;
    Ok(list.groups.iter().flat_map(order_of).collect())
}

/// The order of a group's own legacy document: the preferred version first.
pub fn order_of_group(group: &[u8]) -> Result<Vec<GroupVersion>, serde_json::Error> {
    let group: legacy::Group<'_> = serde_json::from_slice(group)?;
    Ok(order_of(&group).collect())
}

fn order_of(group: &legacy::Group<'_>) -> impl Iterator<Item = GroupVersion> {
    let versions = std::iter::once(&group.preferred_version).chain(&group.versions);
    versions.map(|version| GroupVersion {
        group: (*group.name).to_owned(),
        version: (*version.version).to_owned(),
    })
}

/// Parses the resources of one group version's document. Subresources may stand anywhere in it.
pub fn resources(
    pool: &mut Pool,
    of: &GroupVersion,
    body: &[u8],
) -> Result<Vec<Arc<Resource>>, serde_json::Error> {
    let list: legacy::Resources<'_> = serde_json::from_slice(body)?;
    let of = (&*of.group, &*of.version);
    let mut resources: IndexMap<&str, Resource> = IndexMap::new();
    for read in &list.resources {
        let read_kind = wire::Kind {
            group: read.group.clone(),
            version: read.version.clone(),
            kind: read.kind.clone(),
        };
        let kind = kind(pool, of, &read_kind);
        let verbs = pool.list(read.verbs.iter());
        let (name, subresource) = read.name.split_once('/').unwrap_or((&read.name, ""));
        let known = resources.entry(name).or_insert_with(|| Resource {
            name: pool.text(name),
            namespaced: read.namespaced,
            ..Resource::default()
        });
        if !subresource.is_empty() {
            known.subresources.push(Subresource {
                name: pool.text(subresource),
                kind,
                verbs,
            });
            continue;
        }
        *known = Resource {
            name: known.name.clone(),
            singular: pool.text(&read.singular_name),
            // It is served, even without a kind.
            kind: Some(kind.unwrap_or_default()),
            namespaced: read.namespaced,
            verbs,
            short_names: pool.list(read.short_names.iter()),
            categories: pool.list(read.categories.iter()),
            storage_version_hash: pool.text(&read.storage_version_hash),
            subresources: std::mem::take(&mut known.subresources),
        };
    }
    let resources = resources.into_values();
    Ok(resources.map(|resource| pool.resource(resource)).collect())
}

#[cfg(test)]
mod tests {
    use super::{Pool, groups, groups_where};

    #[test]
    fn wanted_groups_are_read_as_all_groups_are() {
        let document =
            include_bytes!("../../../tests/data/kube-apiserver-v1.36/discovery/apis.v2.json");
        let wanted = |name: &str| name == "apps" || name == "batch";
        let read = groups_where(&mut Pool::default(), document, wanted).unwrap();
        let mut all = groups(&mut Pool::default(), document).unwrap();
        all.retain(|group| wanted(&group.name));
        assert_eq!(all.len(), 2);
        assert_eq!(read, all);
    }
}
