//! What other servers list, as one document: ready to be added to what the local server says. Pure.
//!
//! Written by whoever gathers peers' documents, read for every discovery document that is served.
//!
//! Peers are gone through in an order of their own: targets first, then by version, the newest first, then by ID. What
//! lists something first gives its entry, and entries stand in the order in which they were found: groups and versions as
//! the first peer has them, then what later peers have besides. What is listed fresh by a target is found before all that
//! is stale, so a stale version is never preferred to a fresh one. The outcome depends on what peers say, not on the order
//! in which they are given, and the union of a union is the same again.

use std::cmp::Reverse;
use std::sync::Arc;

use indexmap::IndexMap;

use super::model::{Document, Group, Resource, Text, Version};
use crate::routing::table::{Custom, GvrRef};

/// What others list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// Without resources of CRDs and aggregated APIs: those are everybody's. May have what the local server lists too.
    pub document: Document,
}

/// Another server, and what it lists.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Server ID.
    pub id: &'a str,
    /// Compatibility version, as `1.36`, where known.
    pub compatibility: Option<&'a str>,
    /// What it lists, or listed last.
    pub document: &'a Document,
    /// Requests may be sent there. What no target lists is stale.
    pub target: bool,
}

impl Peer<'_> {
    fn order(&self) -> impl Ord {
        let version = self.compatibility.and_then(numbers);
        (!self.target, Reverse(version), self.id)
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// By name, in the order in which they were found.
type Groups = IndexMap<Text, IndexMap<Text, Found>>;

/// A version of a group.
struct Found {
    stale: bool,
    resources: IndexMap<Text, Arc<Resource>>,
}

/// What any of `peers` lists, except what belongs to CRDs and aggregated APIs.
pub fn union(peers: &[Peer<'_>], custom: &Custom) -> Others {
    let mut peers: Vec<&Peer<'_>> = peers.iter().collect();
    peers.sort_by(|one, other| one.order().cmp(&other.order()));
    let mut found = Groups::new();
    for fresh in [true, false] {
        for peer in &peers {
            for group in &peer.document.groups {
                let versions = group.versions.iter();
                for version in versions.filter(|version| fresh == (peer.target && !version.stale)) {
                    add(&mut found, group, version, !fresh, custom);
                }
            }
        }
    }
    Others {
        document: Document {
            groups: found.into_iter().map(group).collect(),
        },
    }
}

fn add(found: &mut Groups, group: &Group, version: &Version, stale: bool, custom: &Custom) {
    let ours = |resource: &str| {
        !custom.contains(GvrRef {
            group: &group.name,
            version: &version.name,
            resource,
            subresource: "",
        })
    };
    let resources = version.resources.iter();
    let mut resources = resources.filter(|resource| ours(&resource.name)).peekable();
    // A stale version may be empty because nobody knows what is in it. One of an aggregated API is everybody's.
    let unknown = stale && version.resources.is_empty() && ours("");
    if resources.peek().is_none() && !unknown {
        return;
    }
    let known = found.entry(group.name.clone()).or_default();
    let known = known.entry(version.name.clone()).or_insert_with(|| Found {
        stale,
        resources: IndexMap::new(),
    });
    for resource in resources {
        known
            .resources
            .entry(resource.name.clone())
            .and_modify(|known| known.complete(resource))
            .or_insert_with(|| Arc::clone(resource));
    }
}

fn group((name, versions): (Text, IndexMap<Text, Found>)) -> Group {
    let version = |(name, found): (Text, Found)| Version {
        name,
        stale: found.stale,
        resources: found.resources.into_values().collect(),
    };
    Group {
        name,
        versions: versions.into_iter().map(version).collect(),
    }
}
