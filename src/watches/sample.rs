//! What a server tells of a watched resource: the metadata of one object, as a
//! `PartialObjectMetadataList` with `limit=1`, and the resource's kind, from discovery. Pure.
//!
//! The list proves where the resource is stored if this etcd passed the list's own revision while the server answered,
//! and has the object with the same revision, or none either. (The object alone is no proof: a copy of an etcd has the
//! same keys and revisions.) Two etcds do not have the same revision at the same moment, unless by chance: so the two
//! reads of etcd's revision must be close together.

use serde_json::Value;

use super::frames;
use crate::kube::discovery::documents;
use crate::kube::gvr::Gvr;

/// `Accept` of the list.
pub const ACCEPT_METADATA: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Most revisions between the two reads of etcd.
const FEW: i64 = 256;

/// Path of the list of one object, of any namespace.
pub fn list_path(resource: &Gvr) -> String {
    let version = resource.group_version();
    format!("{}/{}?limit=1", version.path(), resource.resource)
}

/// The kind of a resource, by the document of its group version.
pub fn kind(resource: &Gvr, document: &[u8]) -> Option<String> {
    let version = documents::resources(&resource.group_version(), document).ok()?;
    let mut listed = version.resources.into_iter();
    let listed = listed.find(|listed| listed.name == resource.resource)?;
    Some(listed.response_kind.kind).filter(|kind| !kind.is_empty())
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
    /// Reads a body from [`list_path`]; `None` if it is no such list.
    pub fn read(body: &[u8]) -> Option<Self> {
        let list: Value = serde_json::from_slice(body).ok()?;
        if list["kind"] != "PartialObjectMetadataList" {
            return None;
        }
        let revision = |metadata: &Value| frames::revision(metadata["resourceVersion"].as_str()?);
        let anchor = |item: &Value| {
            let metadata = &item["metadata"];
            let [namespace, name] = ["namespace", "name"].map(|key| metadata[key].as_str());
            let name = name.filter(|name| !name.is_empty())?;
            let key = match namespace.unwrap_or_default() {
                "" => name.to_owned(),
                namespace => format!("{namespace}/{name}"),
            };
            let revision = revision(metadata)?;
            Some(Anchor { key, revision })
        };
        let object = match list["items"].get(0) {
            Some(item) => Some(anchor(item)?),
            None => None,
        };
        Some(Self {
            revision: revision(&list["metadata"])?,
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

#[cfg(test)]
mod tests;
