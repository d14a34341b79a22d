//! What lists have in common, whatever their form. Pure.

use super::Sample;
use crate::watches::follower::{TypeMeta, Witness};
use crate::watches::frames::revision;

/// Objects that are kept of a list.
const WITNESSES: usize = 4;

/// What was read of a list: the types, and the objects that came whole.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// What the objects say themselves. Built-in ones say nothing: their list does.
    own: Option<TypeMeta>,
    witnesses: Vec<Witness>,
    /// Something is not as kube-apiserver writes it, and nothing is believed.
    odd: bool,
}

/// What is needed of an object.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) resource_version: &'a str,
}

impl List {
    /// The next object.
    pub(super) fn add(&mut self, item: &Item<'_>) {
        let Ok(revision) = revision(item.resource_version) else {
            return self.disbelieve();
        };
        let own = (!item.kind.is_empty()).then(|| TypeMeta {
            api_version: item.api_version.to_owned(),
            kind: item.kind.to_owned(),
        });
        let is_first = self.witnesses.is_empty();
        self.odd |= item.name.is_empty() || (!is_first && own != self.own);
        self.own = own;
        let mut witness = Witness::default();
        witness.set(item.namespace, item.name, revision);
        self.witnesses.push(witness);
        self.witnesses.sort_by_key(|witness| witness.revision);
        self.witnesses.truncate(WITNESSES);
    }

    /// It is not what it should be.
    pub(super) fn disbelieve(&mut self) {
        self.odd = true;
    }

    /// The sample, without objects if there were none; none if it is not a list of objects of `api_version`, as they are.
    pub(super) fn sample(self, api_version: &str) -> Option<Sample> {
        let of_items = || {
            let kind = self
                .kind
                .strip_suffix("List")
                .filter(|kind| !kind.is_empty());
            kind.map(|kind| TypeMeta {
                api_version: self.api_version.clone(),
                kind: kind.to_owned(),
            })
        };
        // Tables and the like have a list of another version, meta.k8s.io/v1.
        let is_other = !self.api_version.is_empty() && self.api_version != api_version;
        let type_meta = self.own.clone().or_else(of_items)?;
        let fits = !self.odd && !is_other && type_meta.api_version == api_version;
        fits.then_some(Sample {
            type_meta,
            witnesses: self.witnesses,
        })
    }
}
