//! The union of what servers list, as one document to be added to the local one. Pure.
//!
//! The first server that lists an entry gives it. Entries keep the order in which they were found: groups and versions as
//! the first server's document has them, then those that later servers add. Fresh entries of targets come before all stale
//! ones, so a stale version is never preferred to a fresh one.

use indexmap::IndexMap;

use crate::kube::discovery::model::{
    CURRENT, Document, NAMESPACED, Resource, STALE, Subresource, Version, versions,
};
use crate::kube::gvr::Gvr;

/// Versions by group and name, each with its freshness and its resources.
type Found<'a> = IndexMap<(&'a str, &'a str), (&'static str, IndexMap<&'a str, Resource>)>;

fn document(found: Found<'_>) -> Document {
    let versions = found.into_iter();
    let versions = versions.map(|((group, name), (freshness, resources))| {
        let version = Version {
            name: name.to_owned(),
            resources: resources.into_values().collect(),
            freshness: freshness.to_owned(),
        };
        (group.to_owned(), version)
    });
    versions.collect()
}

/// The union of what servers list, or listed last; with each, whether requests may be sent to it. What nobody lists to whom
/// requests may be sent is stale.
pub fn union(members: &[(&Document, bool)]) -> Document {
    let mut found = Found::new();
    for freshness in [CURRENT, STALE] {
        for (document, target) in members {
            for (group, version) in versions(&document.groups) {
                let is_fresh = *target && !version.is_stale();
                // A stale version may be empty because its resources are unknown.
                if is_fresh != (freshness == CURRENT) || (is_fresh && version.resources.is_empty())
                {
                    continue;
                }
                let (_, resources) = found
                    .entry((group, &version.name))
                    .or_insert_with(|| (freshness, IndexMap::new()));
                for resource in &version.resources {
                    resources
                        .entry(&resource.name)
                        .and_modify(|known| known.complete(resource))
                        .or_insert_with(|| resource.clone());
                }
            }
        }
    }
    document(found)
}

/// What can be done with almost every resource.
const USUAL_VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// A document of stale versions in which only the names of resources are known.
///
/// Resources are listed as namespaced, with the usual verbs. If the version is fresh because of other resources, a
/// controller that deletes everything in a namespace would otherwise skip the resource and leave its objects behind; so it
/// tries to delete them, and is refused.
pub(super) fn by_name<'a>(served: impl IntoIterator<Item = &'a Gvr>) -> Document {
    let mut found = Found::new();
    for gvr in served {
        let (_, resources) = found
            .entry((&gvr.group, &gvr.version))
            .or_insert_with(|| (STALE, IndexMap::new()));
        let resource = resources.entry(&gvr.resource).or_insert_with(|| Resource {
            name: gvr.resource.clone(),
            scope: NAMESPACED.to_owned(),
            ..Resource::default()
        });
        match gvr.subresource.as_str() {
            "" => resource.verbs = USUAL_VERBS.map(str::to_owned).into(),
            name => resource.subresources.push(Subresource {
                name: name.to_owned(),
                ..Subresource::default()
            }),
        }
    }
    document(found)
}
