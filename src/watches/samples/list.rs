//! The parsed beginning of a list, the same for both formats. Pure.

use super::Sample;
use crate::watches::follower::{Anchor, ObjectType};
use crate::watches::frames::revision;

/// Objects kept of a list.
const ANCHORS: usize = 4;

/// The types of a list, and the objects that are complete.
#[derive(Debug, Default)]
pub(super) struct PartialList {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// The type that the objects name themselves. Built-in objects name none: their list does.
    own: Option<ObjectType>,
    anchors: Vec<Anchor>,
    /// Something is not as kube-apiserver writes it: the list is not used.
    malformed: bool,
}

#[derive(Debug, Default)]
pub(super) struct ListedObject<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) resource_version: &'a str,
}

impl PartialList {
    pub(super) fn add(&mut self, item: &ListedObject<'_>) {
        let Ok(revision) = revision(item.resource_version) else {
            return self.mark_malformed();
        };
        let own = (!item.kind.is_empty()).then(|| ObjectType {
            api_version: item.api_version.to_owned(),
            kind: item.kind.to_owned(),
        });
        let is_first = self.anchors.is_empty();
        self.malformed |= item.name.is_empty() || (!is_first && own != self.own);
        self.own = own;
        let mut anchor = Anchor::default();
        anchor.set(item.namespace, item.name, revision);
        self.anchors.push(anchor);
        self.anchors.sort_by_key(|anchor| anchor.revision);
        self.anchors.truncate(ANCHORS);
    }

    pub(super) fn mark_malformed(&mut self) {
        self.malformed = true;
    }

    /// The sample, without objects if the list is empty; `None` if it is no list of whole objects of `api_version`.
    pub(super) fn sample(self, api_version: &str) -> Option<Sample> {
        let of_items = || {
            let kind = self
                .kind
                .strip_suffix("List")
                .filter(|kind| !kind.is_empty());
            kind.map(|kind| ObjectType {
                api_version: self.api_version.clone(),
                kind: kind.to_owned(),
            })
        };
        // Tables and the like are lists of another version, meta.k8s.io/v1.
        let is_other = !self.api_version.is_empty() && self.api_version != api_version;
        let type_meta = self.own.clone().or_else(of_items)?;
        let fits = !self.malformed && !is_other && type_meta.api_version == api_version;
        fits.then_some(Sample {
            type_meta,
            anchors: self.anchors,
        })
    }
}
