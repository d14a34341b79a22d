//! Adds what peers list to legacy discovery documents in JSON. Pure.
//!
//! The local server's entries stay, byte for byte, and come first; its preferred versions are kept. One exception: those of
//! a CRD that is named like a built-in resource that only peers serve are replaced. `/api` is not here: the core group has
//! only one version.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::document::{AggregatedDocument, MergeError};
use super::peer_union::{PeerUnion, resource_of};
use super::splice::{Edits, SpannedList, SpannedText, lacking};
use crate::kube::discovery::model::{self, Named};
use crate::kube::discovery::wire::{Text, legacy as wire};
use crate::kube::gvr::api_version;

#[derive(Deserialize)]
struct Groups<'a> {
    #[serde(borrow)]
    kind: SpannedText<'a>,
    #[serde(borrow, default)]
    groups: SpannedList<'a, Group<'a>>,
}

/// One of a list has no kind.
#[derive(Deserialize)]
struct Group<'a> {
    #[serde(borrow, default)]
    kind: SpannedText<'a>,
    #[serde(borrow)]
    name: SpannedText<'a>,
    #[serde(borrow, default)]
    versions: SpannedList<'a, Version<'a>>,
}

#[derive(Deserialize)]
struct Version<'a> {
    #[serde(borrow)]
    version: SpannedText<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resources<'a> {
    #[serde(borrow)]
    kind: SpannedText<'a>,
    #[serde(borrow, default)]
    resources: SpannedList<'a, Resource<'a>>,
}

#[derive(Deserialize)]
struct Resource<'a> {
    #[serde(borrow)]
    name: SpannedText<'a>,
}

impl Named for Group<'_> {
    fn name(&self) -> &str {
        &self.name.value
    }
}

impl Named for Version<'_> {
    fn name(&self) -> &str {
        &self.version.value
    }
}

/// `/apis`: the local server's list with what it lacks; `None` where it lacks nothing.
pub fn groups(body: &[u8], others: &PeerUnion) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let local: Groups<'_> = serde_json::from_slice(body)?;
    local.kind.expect(wire::GROUPS)?;
    let mut edits = Edits::of(body);
    let groups = AggregatedDocument::Groups.of(&others.document);
    let new = lacking(local.groups.entries(), groups, |local, other| {
        versions(&mut edits, local, other)
    })?;
    let new = new.into_iter().map(wire::Group::from);
    edits.append(&local.groups, ("groups", &local.kind), new)?;
    Ok(edits.finish())
}

/// `/apis/<group>`: the local server's document with what it lacks; `None` where it lacks nothing. Without a local
/// document it is made from what others list; `None` where they do not list the group.
pub fn group(
    name: &str,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let Some(other) = others.document.group(name) else {
        return Ok(None);
    };
    let Some(body) = body else {
        return wire::Document::text(wire::GROUP, wire::Group::from(other)).map(Some);
    };
    let local: Group<'_> = serde_json::from_slice(body)?;
    local.kind.expect(wire::GROUP)?;
    let mut edits = Edits::of(body);
    versions(&mut edits, &local, other)?;
    Ok(edits.finish())
}

/// `/apis/<group>/<version>` and `/api/<version>`: the local server's document with what it lacks; `None` where it lacks
/// nothing. Without a local document it is made from what others list; `None` where they do not list the version, or it is
/// stale. [`MergeError::Stale`]: the local server lists a CRD's resource in place of a stale one.
pub fn resources(
    group: &str,
    version: &str,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, MergeError> {
    let Some(other) = others.document.version(group, version) else {
        return Ok(None);
    };
    let all = other
        .resources
        .iter()
        .flat_map(|resource| wire::Resource::all(resource));
    let Some(body) = body else {
        let list = wire::Resources {
            group_version: Text(api_version(group, version).into()),
            resources: all.collect(),
        };
        return match other.stale {
            true => Ok(None),
            false => Ok(Some(wire::Document::text(wire::RESOURCES, list)?)),
        };
    };
    let local: Resources<'_> = serde_json::from_slice(body)?;
    local.kind.expect(wire::RESOURCES)?;
    let names = local.resources.entries().iter();
    let names: Vec<&str> = names.map(|resource| &*resource.name.value).collect();
    let replaced = others.replaced(other, names.iter().copied())?;
    let kept = |name: &str| !replaced.contains(resource_of(name));
    let known: HashSet<&str> = names.iter().copied().filter(|name| kept(name)).collect();
    let new = all.filter(|resource| !known.contains(&*resource.name));
    let mut edits = Edits::of(body);
    if replaced.is_empty() {
        edits.append(&local.resources, ("resources", &local.kind), new)?;
    } else {
        let texts = local.resources.texts()?.into_iter().zip(&names);
        let texts = texts.filter(|(_, name)| kept(name));
        let texts = texts.map(|(text, _)| Ok(text.to_owned()));
        let new = new.map(|resource| to_raw_value(&resource));
        let list: Vec<Box<RawValue>> = texts.chain(new).collect::<Result<_, _>>()?;
        edits.replace(local.resources.text(), list)?;
    }
    Ok(edits.finish())
}

fn versions<'a>(
    edits: &mut Edits<'a>,
    local: &Group<'a>,
    other: &model::Group,
) -> Result<(), serde_json::Error> {
    let new = lacking(local.versions.entries(), &other.versions, |_, _| Ok(()))?;
    let new = new
        .into_iter()
        .map(|version| wire::Version::of(&other.name, version));
    edits.append(&local.versions, ("versions", &local.name), new)
}
