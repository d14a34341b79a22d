//! A server's discovery, independent of its format. Plain data, in the server's order.
//!
//! Texts, lists of texts and whole resources are shared, between servers too ([`super::pool`]): one document repeats
//! the same verbs hundreds of times, and servers differ in little.

use std::sync::Arc;

use crate::kube::gvr::{Gvr, Scope, ServedSet};

/// A text, shared.
pub type Text = Arc<str>;

/// A list of texts, shared.
pub type Texts = Arc<[Text]>;

/// Everything that a server lists, the core group (`""`) first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    pub groups: Vec<Group>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Empty for the core group.
    pub name: Text,
    /// Its versions, the preferred one first.
    pub versions: Vec<Version>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    pub name: Text,
    /// No server of it can be reached, or its document could not be read: it exists, but its contents may have changed
    /// (`freshness: Stale`).
    pub stale: bool,
    pub resources: Vec<Arc<Resource>>,
}

/// A resource, with its subresources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resource {
    pub name: Text,
    pub singular: Text,
    /// `None` if only its subresources are served. Its `kind` is empty if only the resource's name is known.
    pub kind: Option<Kind>,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    pub verbs: Texts,
    pub short_names: Texts,
    /// Categories, as `all`.
    pub categories: Texts,
    /// Hash of the storage version, in the legacy form only.
    pub storage_version_hash: Text,
    pub subresources: Vec<Subresource>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Subresource {
    /// Its name, without that of the resource.
    pub name: Text,
    pub kind: Option<Kind>,
    pub verbs: Texts,
}

/// A kind. Group and version are empty where they are those of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Kind {
    pub group: Text,
    pub version: Text,
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
    scopes(groups).map(|(gvr, _)| gvr).collect()
}

/// The resources and subresources that groups list, each with its scope, if that is said.
pub fn scopes<'a>(
    groups: impl IntoIterator<Item = &'a Group>,
) -> impl Iterator<Item = (Gvr, Option<Scope>)> {
    let groups = groups.into_iter();
    let versions = groups.flat_map(|group| group.versions.iter().map(move |it| (group, it)));
    versions.flat_map(|(group, version)| {
        let resources = version.resources.iter();
        resources.flat_map(move |resource| {
            let scope = resource.scope();
            let name = move |subresource: &str| Gvr {
                group: (*group.name).to_owned(),
                version: (*version.name).to_owned(),
                resource: (*resource.name).to_owned(),
                subresource: subresource.to_owned(),
            };
            let own = resource.kind.as_ref().map(|_| "");
            let subresources = resource.subresources.iter().map(|sub| &*sub.name);
            let names = own.into_iter().chain(subresources);
            names.map(move |subresource| (name(subresource), scope))
        })
    })
}

impl Resource {
    /// Where its objects are. Aggregated discovery does not say so of a resource of which only subresources are served.
    fn scope(&self) -> Option<Scope> {
        self.kind.as_ref().map(|_| match self.namespaced {
            true => Scope::Namespaced,
            false => Scope::Cluster,
        })
    }

    /// Whether its kind is known; `None` where only subresources of it are served.
    pub fn kind_known(&self) -> Option<bool> {
        self.kind.as_ref().map(|kind| !kind.kind.is_empty())
    }

    /// Adds what is missing from `other`, a description of the same resource: the resource itself, if only its
    /// subresources or its name are known, and further subresources.
    pub fn complete(self: &mut Arc<Self>, other: &Arc<Self>) {
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

/// Has a name that is unique in its list.
pub trait Named {
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
