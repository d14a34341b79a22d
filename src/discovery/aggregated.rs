//! Adds what peers list to aggregated discovery in JSON. Pure.
//!
//! The local server's entries stay, byte for byte, and come first. Two exceptions: an entry that has only subresources is
//! rewritten where peers serve the resource itself, and a CRD's entry is replaced where it is named like a built-in
//! resource that only peers serve.

use std::collections::HashMap;

use serde::Deserialize;

use super::document::AggregatedDocument;
use super::peer_union::PeerUnion;
use super::splice::{Edits, Spanned, SpannedList, SpannedText, lacking};
use crate::kube::discovery::model::{self, Named};
use crate::kube::discovery::wire::{Text, aggregated as wire};

#[derive(Deserialize)]
struct Groups<'a> {
    #[serde(borrow)]
    kind: SpannedText<'a>,
    #[serde(borrow, default)]
    items: SpannedList<'a, Group<'a>>,
}

#[derive(Deserialize)]
struct Group<'a> {
    #[serde(borrow, default)]
    metadata: Spanned<'a, wire::Metadata<'a>>,
    #[serde(borrow, default)]
    versions: SpannedList<'a, Version<'a>>,
}

#[derive(Deserialize)]
struct Version<'a> {
    #[serde(borrow)]
    version: SpannedText<'a>,
    #[serde(borrow, default)]
    resources: SpannedList<'a, Resource<'a>>,
    #[serde(borrow, default)]
    freshness: Spanned<'a, Option<Text<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    #[serde(borrow)]
    resource: SpannedText<'a>,
    #[serde(borrow, default)]
    response_kind: Option<wire::Kind<'a>>,
    #[serde(borrow, default)]
    subresources: SpannedList<'a, Subresource<'a>>,
}

#[derive(Deserialize)]
struct Subresource<'a> {
    #[serde(borrow)]
    subresource: SpannedText<'a>,
}

impl Resource<'_> {
    /// Not only its subresources are.
    fn is_served(&self) -> bool {
        let kind = self.response_kind.as_ref();
        kind.is_some_and(|kind| !kind.is_empty())
    }
}

impl Named for Group<'_> {
    fn name(&self) -> &str {
        &self.metadata.value.name
    }
}

impl Named for Version<'_> {
    fn name(&self) -> &str {
        &self.version.value
    }
}

impl Named for Resource<'_> {
    fn name(&self) -> &str {
        &self.resource.value
    }
}

impl Named for Subresource<'_> {
    fn name(&self) -> &str {
        &self.subresource.value
    }
}

/// The local server's document with what it lacks; `None` if it lacks nothing.
pub fn merge(
    part: AggregatedDocument,
    body: &[u8],
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let local: Groups<'_> = serde_json::from_slice(body)?;
    local.kind.expect(wire::KIND)?;
    let mut edits = Edits::of(body);
    let groups = part.of(&others.document);
    let new = lacking(local.items.entries(), groups, |local, other| {
        versions(&mut edits, local, other, others)
    })?;
    let new = new.into_iter().map(wire::Group::from);
    edits.append(&local.items, ("items", &local.kind), new)?;
    Ok(edits.finish())
}

fn versions<'a>(
    edits: &mut Edits<'a>,
    local: &Group<'a>,
    other: &model::Group,
    others: &PeerUnion,
) -> Result<(), serde_json::Error> {
    let new = lacking(local.versions.entries(), &other.versions, |local, other| {
        resources(edits, local, other, others)
    })?;
    let new = new.into_iter().map(wire::Version::from);
    edits.append(&local.versions, ("versions", &local.metadata), new)
}

fn resources<'a>(
    edits: &mut Edits<'a>,
    local: &Version<'a>,
    other: &model::Version,
    others: &PeerUnion,
) -> Result<(), serde_json::Error> {
    let mut replaced = HashMap::new();
    let mut stale = false;
    let new = lacking(
        local.resources.entries(),
        &other.resources,
        |local, resource| {
            let served = local.is_served();
            let taken = served && others.replaces(resource);
            stale |= taken && other.stale;
            if taken || (!served && resource.kind_known() == Some(true)) {
                replaced.insert(local.name(), &**resource);
                return Ok(());
            }
            subresources(edits, local, resource)
        },
    )?;
    let new = new
        .into_iter()
        .map(|resource| wire::Resource::from(&**resource));
    edits.append(&local.resources, ("resources", &local.version), new)?;
    if stale {
        edits.set(&local.freshness, ("freshness", &local.version), wire::STALE)?;
    }
    replace(edits, local, &replaced)
}

/// Rewrites the entries of these names. What had only subresources keeps them.
fn replace<'a>(
    edits: &mut Edits<'a>,
    local: &Version<'a>,
    replaced: &HashMap<&str, &model::Resource>,
) -> Result<(), serde_json::Error> {
    if replaced.is_empty() {
        return Ok(());
    }
    for text in local.resources.texts()? {
        let known: wire::Resource<'_> = serde_json::from_str(text.get())?;
        let Some(other) = replaced.get(&*known.resource) else {
            continue;
        };
        let mut resource = wire::Resource::from(*other);
        if known.response_kind.is_empty() {
            let mut subresources = known.subresources;
            let new = lacking(&subresources, &other.subresources, |_, _| Ok(()))?;
            let new: Vec<_> = new.into_iter().map(wire::Subresource::from).collect();
            subresources.extend(new);
            resource.subresources = subresources;
        }
        edits.replace(text.get(), resource)?;
    }
    Ok(())
}

fn subresources<'a>(
    edits: &mut Edits<'a>,
    local: &Resource<'a>,
    other: &model::Resource,
) -> Result<(), serde_json::Error> {
    let known = local.subresources.entries();
    let new = lacking(known, &other.subresources, |_, _| Ok(()))?;
    let new = new.into_iter().map(wire::Subresource::from);
    edits.append(&local.subresources, ("subresources", &local.resource), new)
}
