//! What a server tells of a watched resource: the metadata of one object, as a
//! `PartialObjectMetadataList` with `limit=1`, and the resource's kind, from discovery. Pure.
//!
//! The list proves where the resource is stored if this etcd passed the list's own revision while the server answered,
//! and has the object with the same revision, or none either. (The object alone is no proof: a copy of an etcd has the
//! same keys and revisions.) Two etcds do not have the same revision at the same moment, unless by chance: so the two
//! reads of etcd's revision must be close together.

use serde::Deserialize;

use super::frames;
use crate::request::info::{PathForm, ResourceRequest};

/// `Accept` of the list.
pub const ACCEPT_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Most revisions between the two reads of etcd.
const FEW: i64 = 256;

/// A resource as the path of its watches names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedResource {
    pub group: Box<str>,
    pub version: Box<str>,
    pub resource: Box<str>,
}

impl WatchedResource {
    /// A request for all of it in `namespace`; empty for all namespaces.
    pub fn request<'a>(&'a self, namespace: &'a str) -> ResourceRequest<'a> {
        ResourceRequest {
            group: (&*self.group).into(),
            version: (&*self.version).into(),
            resource: (&*self.resource).into(),
            subresource: "".into(),
            namespace: namespace.into(),
            name: "".into(),
            form: PathForm::default(),
        }
    }

    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.to_string(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Path of the discovery document that lists it.
    pub fn document_path(&self) -> String {
        let api = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{api}/{}", self.api_version())
    }

    /// Path of the list of one object, of any namespace.
    pub fn list_path(&self) -> String {
        format!("{}/{}?limit=1", self.document_path(), self.resource)
    }

    /// Its kind, by a body from [`Self::document_path`].
    pub fn kind(&self, document: &[u8]) -> Option<String> {
        let document: Document = serde_json::from_slice(document).ok()?;
        let mut resources = document.resources.into_iter();
        let listed = resources.find(|listed| listed.name == *self.resource)?;
        (!listed.kind.is_empty()).then_some(listed.kind)
    }
}

#[derive(Deserialize)]
struct Document {
    resources: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    kind: String,
}

/// An object. The etcd that stores the resource must have the same revision of this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// Namespace and name, or the name alone, as in etcd's keys.
    pub key: String,
    pub revision: i64,
}

/// A list of at most one object's metadata.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample {
    /// Of the list.
    revision: i64,
    pub object: Option<Anchor>,
}

#[derive(Deserialize)]
struct List {
    kind: String,
    metadata: Metadata,
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

/// An etcd's revision, and how many keys it has below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCount {
    pub revision: i64,
    pub keys: i64,
}

/// Where a list was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedIn {
    /// In this etcd.
    SameEtcd,
    /// Not in this one, or elsewhere in it.
    OtherEtcd,
    /// Too much happened meanwhile. Another list may tell.
    MovedOn,
}

impl Sample {
    /// Reads a body from [`WatchedResource::list_path`]; `None` if it is no such list.
    pub fn read(body: &[u8]) -> Option<Self> {
        let list: List = serde_json::from_slice(body).ok()?;
        if list.kind != "PartialObjectMetadataList" {
            return None;
        }
        let first = list.items.and_then(|items| items.into_iter().next());
        let object = match first {
            Some(Item { metadata }) => Some(anchor(&metadata)?),
            None => None,
        };
        Some(Self {
            revision: frames::revision(&list.metadata.resource_version)?,
            object,
        })
    }

    /// Where the list was made. `before`, `after`: read from etcd before it was asked for, and after it came.
    pub fn compared(&self, before: KeyCount, after: KeyCount) -> ListedIn {
        let empty = self.object.is_none();
        if empty && before.keys > 0 && after.keys > 0 {
            return ListedIn::OtherEtcd;
        }
        let changed = empty && (before.keys > 0 || after.keys > 0);
        if changed || after.revision - before.revision > FEW {
            return ListedIn::MovedOn;
        }
        match (before.revision..=after.revision).contains(&self.revision) {
            true => ListedIn::SameEtcd,
            false => ListedIn::OtherEtcd,
        }
    }
}

fn anchor(metadata: &Metadata) -> Option<Anchor> {
    if metadata.name.is_empty() {
        return None;
    }
    let key = match &*metadata.namespace {
        "" => metadata.name.clone(),
        namespace => format!("{namespace}/{}", metadata.name),
    };
    let revision = frames::revision(&metadata.resource_version)?;
    Some(Anchor { key, revision })
}

#[cfg(test)]
mod tests;
