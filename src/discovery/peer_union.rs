//! The union of what peers list, as one document to be added to the local one. Pure.
//!
//! Peers are visited in a fixed order: targets first, then the newest version, then by ID. The first peer that lists an entry
//! gives it. Entries keep the order in which they were found: groups and versions as the first peer's document has them,
//! then those that later peers add. Fresh entries of targets come before all stale ones, so a stale version is never
//! preferred to a fresh one. The result does not depend on the order of the input, and the union of a union is the same
//! union.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;

use super::document::MergeError;
use crate::kube::discovery::model::{Document, Group, Resource, Text, Version};
use crate::kube::gvr::GroupVersion;

/// The union of what peers list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerUnion {
    /// Without resources of CRDs and aggregated APIs, which every server has. May have what the local server lists too.
    pub document: Document,
    /// The local server serves none of it itself. What it lists under the same names is a CRD's or an aggregated API's, and
    /// these entries take its place.
    pub replaces: bool,
}

impl PeerUnion {
    /// Whether this entry takes the place of one that the local server lists under its name.
    pub(super) fn replaces(&self, other: &Resource) -> bool {
        self.replaces && other.kind.is_some()
    }

    /// Whether the version is stale and has a resource that takes the place of one of those that `is_custom` names.
    pub fn is_stale_for(&self, of: &GroupVersion, is_custom: impl Fn(&str) -> bool) -> bool {
        let version = self.document.version(&of.group, &of.version);
        let mut stale = version.filter(|it| it.stale).into_iter();
        let taken = |it: &Resource| self.replaces(it) && is_custom(&it.name);
        stale.any(|it| it.resources.iter().any(|it| taken(it)))
    }

    /// Which resources of `other`, a version of this union, take the place of some among the local server's legacy `names`.
    pub(super) fn replaced<'n>(
        &self,
        other: &Version,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<HashSet<&'n str>, MergeError> {
        let others = other.resources.iter().filter(|it| self.replaces(it));
        let others: HashSet<&str> = others.map(|resource| &*resource.name).collect();
        let replaced: HashSet<&str> = names.filter(|name| others.contains(name)).collect();
        match other.stale && !replaced.is_empty() {
            true => Err(MergeError::Stale),
            false => Ok(replaced),
        }
    }
}

/// The resource that a legacy name is of: `pods` for `pods/log`.
pub(super) fn resource_of(name: &str) -> &str {
    name.split_once('/').map_or(name, |(resource, _)| resource)
}

/// A peer and what it lists.
#[derive(Debug, Clone, Copy)]
pub struct UnionMember<'a> {
    /// Server ID.
    pub id: &'a str,
    /// Compatibility version, for example `1.36`, where known.
    pub compatibility: Option<&'a str>,
    /// What it lists, or listed last.
    pub document: &'a Document,
    /// Requests may be sent to it. What no target lists is stale.
    pub target: bool,
}

impl UnionMember<'_> {
    fn order(&self) -> impl Ord {
        let version = self.compatibility.and_then(numbers);
        (!self.target, Reverse(version), self.id)
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Groups and versions by name, in the order in which they were found.
type Groups = IndexMap<Text, IndexMap<Text, VersionUnion>>;

/// A version of a group.
struct VersionUnion {
    stale: bool,
    resources: IndexMap<Text, Arc<Resource>>,
}

/// The union of what `peers` list.
pub fn union(peers: &[UnionMember<'_>]) -> PeerUnion {
    let mut peers: Vec<&UnionMember<'_>> = peers.iter().collect();
    peers.sort_by(|one, other| one.order().cmp(&other.order()));
    let mut found = Groups::new();
    for fresh in [true, false] {
        for peer in &peers {
            for group in &peer.document.groups {
                let versions = group.versions.iter();
                for version in versions.filter(|version| fresh == (peer.target && !version.stale)) {
                    add(&mut found, group, version, !fresh);
                }
            }
        }
    }
    PeerUnion {
        document: Document {
            groups: found.into_iter().map(group).collect(),
        },
        replaces: false,
    }
}

fn add(found: &mut Groups, group: &Group, version: &Version, stale: bool) {
    // A stale version may be empty because its resources are unknown.
    if version.resources.is_empty() && !stale {
        return;
    }
    let known = found.entry(group.name.clone()).or_default();
    let known = known
        .entry(version.name.clone())
        .or_insert_with(|| VersionUnion {
            stale,
            resources: IndexMap::new(),
        });
    for resource in &version.resources {
        known
            .resources
            .entry(resource.name.clone())
            .and_modify(|known| known.complete(resource))
            .or_insert_with(|| Arc::clone(resource));
    }
}

fn group((name, versions): (Text, IndexMap<Text, VersionUnion>)) -> Group {
    let version = |(name, found): (Text, VersionUnion)| Version {
        name,
        stale: found.stale,
        resources: found.resources.into_values().collect(),
    };
    Group {
        name,
        versions: versions.into_iter().map(version).collect(),
    }
}
