//! Adding what others list to discovery documents in Kubernetes' protobuf form: `k8s\0` and a `runtime.Unknown` around the
//! document. Pure.
//!
//! The local server's entries come first and say what they said. Fields that this program's protobuf types do not have are
//! lost, but only in documents that something is added to.

mod entries;

use std::collections::{HashMap, HashSet};

use k8s_pb::api::apidiscovery::v2 as aggregated;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;

use super::forms::{Error, What};
use super::model::{self, Named};
use super::others::Others;
use super::wire::{aggregated as wire, legacy};
use crate::routing::table::api_version;

/// What the form begins with.
const ENVELOPE: &[u8] = b"k8s\0";

/// As [`super::forms::merge`].
pub(super) fn merge(
    what: What<'_>,
    body: Option<&[u8]>,
    others: &Others,
) -> Result<Option<Vec<u8>>, Error> {
    let document = &others.document;
    match what {
        What::Aggregated(part) => added(wire::KIND, body, |list| groups(list, part.of(document))),
        What::Groups => added(legacy::GROUPS, body, |list: &mut meta::APIGroupList| {
            let groups = super::aggregated::Part::Groups.of(document);
            add(&mut list.groups, groups, legacy_versions, |group| {
                legacy::Group::from(group).into()
            })
        }),
        What::Group(name) => {
            let Some(group) = document.group(name) else {
                return Ok(None);
            };
            if body.is_none() {
                return Ok(Some(made(
                    legacy::GROUP,
                    &meta::APIGroup::from(legacy::Group::from(group)),
                )));
            }
            added(legacy::GROUP, body, |local| legacy_versions(local, group))
        }
        What::Resources { group, version } => {
            let Some(known) = document.version(group, version) else {
                return Ok(None);
            };
            if body.is_none() {
                let mut list = meta::APIResourceList {
                    group_version: Some(api_version(group, version)),
                    resources: Vec::new(),
                };
                legacy_resources(&mut list, known);
                return Ok((!known.stale).then(|| made(legacy::RESOURCES, &list)));
            }
            added(legacy::RESOURCES, body, |list| {
                legacy_resources(list, known)
            })
        }
    }
}

/// The document with what `add` adds to it, if it does.
fn added<M: Message + Default>(
    kind: &'static str,
    body: Option<&[u8]>,
    add: impl FnOnce(&mut M) -> bool,
) -> Result<Option<Vec<u8>>, Error> {
    let Some(body) = body else {
        return Ok(None);
    };
    let envelope = body.strip_prefix(ENVELOPE).ok_or(Error::Kind(kind))?;
    let mut unknown = Unknown::decode(envelope)?;
    if unknown.type_meta.as_ref().map(TypeMeta::kind) != Some(kind) {
        return Err(Error::Kind(kind));
    }
    let mut document = M::decode(unknown.raw())?;
    if !add(&mut document) {
        return Ok(None);
    }
    unknown.raw = Some(document.encode_to_vec());
    Ok(Some(enveloped(&unknown)))
}

/// A document that stands by itself.
fn made(kind: &str, document: &impl Message) -> Vec<u8> {
    enveloped(&Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(document.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    })
}

fn enveloped(unknown: &Unknown) -> Vec<u8> {
    let mut body = Vec::with_capacity(ENVELOPE.len() + unknown.encoded_len());
    body.extend_from_slice(ENVELOPE);
    body.extend(unknown.encode_to_vec());
    body
}

/// Adds to `local` those of `others` whose names it does not have; with those that it has, `both` is done. Whether
/// anything was added.
fn add<'o, L: Named, O: Named + 'o>(
    local: &mut Vec<L>,
    others: impl IntoIterator<Item = &'o O>,
    mut both: impl FnMut(&mut L, &'o O) -> bool,
    new: impl Fn(&'o O) -> L,
) -> bool {
    let names = local.iter().enumerate();
    let named: HashMap<String, usize> = names
        .map(|(index, entry)| (entry.name().to_owned(), index))
        .collect();
    let mut added = false;
    for other in others {
        let known = named.get(other.name());
        added |= match known.and_then(|index| local.get_mut(*index)) {
            Some(known) => both(known, other),
            None => {
                local.push(new(other));
                true
            }
        };
    }
    added
}

fn groups<'o>(
    list: &mut aggregated::APIGroupDiscoveryList,
    others: impl Iterator<Item = &'o model::Group>,
) -> bool {
    let versions = |local: &mut aggregated::APIGroupDiscovery, other: &model::Group| {
        add(&mut local.versions, &other.versions, resources, |version| {
            wire::Version::from(version).into()
        })
    };
    add(&mut list.items, others, versions, |group| {
        wire::Group::from(group).into()
    })
}

fn resources(local: &mut aggregated::APIVersionDiscovery, other: &model::Version) -> bool {
    add(
        &mut local.resources,
        &other.resources,
        resource,
        |resource| wire::Resource::from(&**resource).into(),
    )
}

fn resource(
    local: &mut aggregated::APIResourceDiscovery,
    other: &std::sync::Arc<model::Resource>,
) -> bool {
    let served = local
        .response_kind
        .as_ref()
        .is_some_and(|kind| !kind.kind().is_empty());
    let stands_in = other.kind_known() == Some(true) && !served;
    if stands_in {
        let subresources = std::mem::take(&mut local.subresources);
        *local = wire::Resource::from(&**other).into();
        local.subresources = subresources;
    }
    let subresources = |_: &mut _, _| false;
    stands_in
        | add(
            &mut local.subresources,
            &other.subresources,
            subresources,
            |sub| wire::Subresource::from(sub).into(),
        )
}

fn legacy_versions(local: &mut meta::APIGroup, other: &model::Group) -> bool {
    add(
        &mut local.versions,
        &other.versions,
        |_, _| false,
        |version| legacy::Version::of(&other.name, version).into(),
    )
}

fn legacy_resources(list: &mut meta::APIResourceList, other: &model::Version) -> bool {
    let known: HashSet<String> = list
        .resources
        .iter()
        .map(|known| known.name().to_owned())
        .collect();
    let all = other
        .resources
        .iter()
        .flat_map(|resource| legacy::Resource::all(resource));
    let new = all.filter(|resource| !known.contains(&*resource.name));
    let before = list.resources.len();
    list.resources.extend(new.map(meta::APIResource::from));
    list.resources.len() > before
}
