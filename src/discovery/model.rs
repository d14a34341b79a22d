//! What a server's discovery lists, whichever form it was read in. Plain data, in the server's own order.
//!
//! Texts, lists of texts and whole resources are shared, between servers too ([`super::pool`]): one document repeats the
//! same verbs hundreds of times, and servers differ in little.

use std::sync::Arc;

use crate::routing::table::{Gvr, ServedSet};

/// A text, shared.
pub type Text = Arc<str>;

/// A list of texts, shared.
pub type Texts = Arc<[Text]>;

/// Everything that a server lists, the core group (`""`) first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// Its groups.
    pub groups: Vec<Group>,
}

/// An API group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Its name, empty for the core group.
    pub name: Text,
    /// Its versions, the preferred one first.
    pub versions: Vec<Version>,
}

/// A version of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    /// Its name.
    pub name: Text,
    /// Nobody who serves it can be reached, or its document could not be read: it is there, and its contents are not to
    /// be relied on (`freshness: Stale`).
    pub stale: bool,
    /// Its resources.
    pub resources: Vec<Arc<Resource>>,
}

/// A resource, with its subresources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resource {
    /// Plural name.
    pub name: Text,
    /// Singular name.
    pub singular: Text,
    /// What it gives and takes; `None` where only subresources of it are served. Its name is empty where nothing but the
    /// resource's name is known.
    pub kind: Option<Kind>,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// What can be done with it.
    pub verbs: Texts,
    /// Short names.
    pub short_names: Texts,
    /// Categories, as `all`.
    pub categories: Texts,
    /// Hash of the storage version, in the legacy form only.
    pub storage_version_hash: Text,
    /// Its subresources.
    pub subresources: Vec<Subresource>,
}

/// A subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Subresource {
    /// Its name, without that of the resource.
    pub name: Text,
    /// What it gives and takes.
    pub kind: Option<Kind>,
    /// What can be done with it.
    pub verbs: Texts,
}

/// A kind. Group and version are empty where they are those of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Kind {
    /// API group.
    pub group: Text,
    /// API version.
    pub version: Text,
    /// The kind's name.
    pub kind: Text,
}

impl Document {
    /// A group, by name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| &*group.name == name)
    }

    /// A version of a group, by name.
    pub fn version(&self, group: &str, version: &str) -> Option<&Version> {
        let mut versions = self.group(group)?.versions.iter();
        versions.find(|known| &*known.name == version)
    }

    /// The resources and subresources that it lists.
    pub fn served(&self) -> ServedSet {
        served(&self.groups)
    }
}

/// The resources and subresources that groups list.
pub fn served<'a>(groups: impl IntoIterator<Item = &'a Group>) -> ServedSet {
    let mut served = ServedSet::new();
    for group in groups {
        for version in &group.versions {
            for resource in &version.resources {
                let name = |subresource: &str| Gvr {
                    group: (*group.name).to_owned(),
                    version: (*version.name).to_owned(),
                    resource: (*resource.name).to_owned(),
                    subresource: subresource.to_owned(),
                };
                served.extend(resource.kind.as_ref().map(|_| name("")));
                served.extend(resource.subresources.iter().map(|sub| name(&sub.name)));
            }
        }
    }
    served
}

impl Resource {
    /// Whether its kind is known; `None` where only subresources of it are served.
    pub(super) fn kind_known(&self) -> Option<bool> {
        self.kind.as_ref().map(|kind| !kind.kind.is_empty())
    }

    /// Adds what `other` says of the same resource and is not known: the resource itself, if only subresources of it
    /// are, or only its name, and subresources.
    pub(super) fn complete(self: &mut Arc<Self>, other: &Arc<Self>) {
        if Arc::ptr_eq(self, other) {
            return;
        }
        let known: std::collections::HashSet<_> = self
            .subresources
            .iter()
            .map(|sub| sub.name.clone())
            .collect();
        let lacking = other.subresources.iter();
        let lacking: Vec<_> = lacking
            .filter(|sub| !known.contains(&sub.name))
            .cloned()
            .collect();
        if self.kind_known() < other.kind_known() {
            let subresources = self.subresources.clone();
            *self = Arc::new(Self {
                subresources,
                ..Self::clone(other)
            });
        }
        if !lacking.is_empty() {
            Arc::make_mut(self).subresources.extend(lacking);
        }
    }
}

/// What is told apart by its name among its like.
pub(super) trait Named {
    /// The name.
    fn name(&self) -> &str;
}

impl Named for Group {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Version {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Arc<Resource> {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Subresource {
    fn name(&self) -> &str {
        &self.name
    }
}
