//! Adding what others list to discovery documents in Kubernetes' protobuf form: `k8s\0` and a `runtime.Unknown` around the
//! document. Pure.
//!
//! The local server's entries come first and say what they said, but for the exceptions in [`super::aggregated`] and
//! [`super::legacy`]. Fields that this program's protobuf types do not have are lost, but only in documents that something
//! is added to.

mod entries;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_pb::api::apidiscovery::v2 as aggregated;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime::TypeMeta;
use prost::Message;

use super::document::{AggregatedDocument, DiscoveryDocument, MergeError};
use super::peer_union::{PeerUnion, resource_of};
use crate::kube::discovery::model::{self, Named};
use crate::kube::discovery::wire::{aggregated as wire, legacy};
use crate::kube::envelope::{self, EnvelopeError};
use crate::kube::gvr::api_version;

/// As [`super::merge::merge`].
pub(super) fn merge(
    target: DiscoveryDocument<'_>,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, MergeError> {
    let document = &others.document;
    match target {
        DiscoveryDocument::Aggregated(part) => added(wire::KIND, body, |list| {
            Ok(groups(list, part.of(document), others))
        }),
        DiscoveryDocument::Groups => {
            added(legacy::GROUPS, body, |list: &mut meta::APIGroupList| {
                let groups = AggregatedDocument::Groups.of(document);
                Ok(add(&mut list.groups, groups, legacy_versions, |group| {
                    legacy::Group::from(group).into()
                }))
            })
        }
        DiscoveryDocument::Group(name) => {
            let Some(group) = document.group(name) else {
                return Ok(None);
            };
            if body.is_none() {
                return Ok(Some(envelope::wrap_object(
                    "v1",
                    legacy::GROUP,
                    &meta::APIGroup::from(legacy::Group::from(group)),
                )));
            }
            added(legacy::GROUP, body, |local| {
                Ok(legacy_versions(local, group))
            })
        }
        DiscoveryDocument::Resources { group, version } => {
            let Some(known) = document.version(group, version) else {
                return Ok(None);
            };
            if body.is_none() {
                let mut list = meta::APIResourceList {
                    group_version: Some(api_version(group, version)),
                    resources: Vec::new(),
                };
                legacy_resources(&mut list, known, others)?;
                return Ok(
                    (!known.stale).then(|| envelope::wrap_object("v1", legacy::RESOURCES, &list))
                );
            }
            added(legacy::RESOURCES, body, |list| {
                legacy_resources(list, known, others)
            })
        }
    }
}

/// The document with what `add` adds to it, if it does.
fn added<M: Message + Default>(
    kind: &'static str,
    body: Option<&[u8]>,
    add: impl FnOnce(&mut M) -> Result<bool, MergeError>,
) -> Result<Option<Vec<u8>>, MergeError> {
    let Some(body) = body else {
        return Ok(None);
    };
    let mut unknown = match envelope::unwrap(body) {
        Ok(unknown) => unknown,
        Err(EnvelopeError::Magic) => return Err(MergeError::Kind(kind)),
        Err(EnvelopeError::Protobuf(error)) => return Err(error.into()),
    };
    if unknown.type_meta.as_ref().map(TypeMeta::kind) != Some(kind) {
        return Err(MergeError::Kind(kind));
    }
    let mut document = M::decode(unknown.raw())?;
    if !add(&mut document)? {
        return Ok(None);
    }
    unknown.raw = Some(document.encode_to_vec());
    Ok(Some(envelope::wrap(&unknown)))
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
    groups: impl Iterator<Item = &'o model::Group>,
    others: &PeerUnion,
) -> bool {
    let resources = |local: &mut _, version: &_| resources(local, version, others);
    let versions = |local: &mut aggregated::APIGroupDiscovery, other: &'o model::Group| {
        add(&mut local.versions, &other.versions, resources, |version| {
            wire::Version::from(version).into()
        })
    };
    add(&mut list.items, groups, versions, |group| {
        wire::Group::from(group).into()
    })
}

fn resources(
    local: &mut aggregated::APIVersionDiscovery,
    other: &model::Version,
    others: &PeerUnion,
) -> bool {
    let mut stale = false;
    let both = |known: &mut aggregated::APIResourceDiscovery, other_resource: &Arc<_>| {
        let taken = is_served(known) && others.replaces(other_resource);
        stale |= taken && other.stale;
        resource(known, other_resource, taken)
    };
    let added = add(&mut local.resources, &other.resources, both, |resource| {
        wire::Resource::from(&**resource).into()
    });
    if stale {
        local.freshness = Some(wire::STALE.to_owned());
    }
    added
}

/// Not only its subresources are.
fn is_served(resource: &aggregated::APIResourceDiscovery) -> bool {
    let kind = resource.response_kind.as_ref();
    kind.is_some_and(|kind| !kind.kind().is_empty())
}

/// `taken`: the other takes the place of the local one, with all subresources.
fn resource(
    local: &mut aggregated::APIResourceDiscovery,
    other: &Arc<model::Resource>,
    taken: bool,
) -> bool {
    let replaced = taken || (other.kind_known() == Some(true) && !is_served(local));
    if replaced {
        let subresources = std::mem::take(&mut local.subresources);
        *local = wire::Resource::from(&**other).into();
        if !taken {
            local.subresources = subresources;
        }
    }
    let subresources = |_: &mut _, _| false;
    replaced
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

fn legacy_resources(
    list: &mut meta::APIResourceList,
    other: &model::Version,
    others: &PeerUnion,
) -> Result<bool, MergeError> {
    let names: Vec<String> = list.resources.iter().map(|it| it.name().into()).collect();
    let replaced = others.replaced(other, names.iter().map(String::as_str))?;
    let kept = |name: &str| !replaced.contains(resource_of(name));
    list.resources.retain(|resource| kept(resource.name()));
    let known: HashSet<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| kept(name))
        .collect();
    let all = other
        .resources
        .iter()
        .flat_map(|resource| legacy::Resource::all(resource));
    let new = all.filter(|resource| !known.contains(&*resource.name));
    let before = list.resources.len();
    list.resources.extend(new.map(meta::APIResource::from));
    Ok(list.resources.len() > before)
}
