//! Discovery as aggregated discovery says it: `apidiscovery.k8s.io/v2` and `v2beta1`, which have the same fields. One
//! declaration for JSON, YAML and protobuf. Servers' legacy documents are read into it too.

use indexmap::IndexMap;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::kube::gvr::{Gvr, Scope, ServedSet};
use crate::kube::nullable;

/// Freshness of a version of which no server can be reached, or whose document could not be read: it exists, but its
/// contents may have changed.
pub const STALE: &str = "Stale";
/// Freshness of all other versions.
pub const CURRENT: &str = "Current";
/// Scope of a namespaced resource.
pub const NAMESPACED: &str = "Namespaced";
/// Scope of a cluster-scoped resource.
pub const CLUSTER: &str = "Cluster";

/// Everything that a server lists, the core group (`""`) first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    pub groups: Vec<Group>,
}

/// `APIGroupDiscoveryList`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct GroupList {
    #[prost(message, repeated, tag = "2")]
    #[serde(default, deserialize_with = "nullable")]
    pub items: Vec<Group>,
}

/// `APIGroupDiscovery`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Group {
    #[prost(message, required, tag = "1")]
    #[serde(default)]
    pub metadata: Metadata,
    /// The preferred one first.
    #[prost(message, repeated, tag = "2")]
    #[serde(default, deserialize_with = "nullable")]
    pub versions: Vec<Version>,
}

/// The only field of `ObjectMeta` that a group has.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Metadata {
    /// Empty for the core group.
    #[prost(string, tag = "1")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `APIVersionDiscovery`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct Version {
    #[prost(string, tag = "1")]
    #[serde(rename = "version")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
    #[prost(string, tag = "3")]
    #[serde(default)]
    pub freshness: String,
}

/// `APIResourceDiscovery`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    #[prost(string, tag = "1")]
    #[serde(rename = "resource")]
    pub name: String,
    /// Empty where only subresources are served, and where only the resource's name is known. Some clients require it.
    #[prost(message, required, tag = "2")]
    #[serde(default, deserialize_with = "nullable")]
    pub response_kind: Kind,
    #[prost(string, tag = "3")]
    #[serde(default)]
    pub scope: String,
    #[prost(string, tag = "4")]
    #[serde(default)]
    pub singular_resource: String,
    #[prost(string, repeated, tag = "5")]
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

/// `APISubresourceDiscovery`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// Without that of the resource.
    #[prost(string, tag = "1")]
    #[serde(rename = "subresource")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<Kind>,
    #[prost(message, repeated, tag = "3")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<Kind>,
    #[prost(string, repeated, tag = "4")]
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
}

/// `GroupVersionKind`. Group and version are empty where they are those of the document.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Kind {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, tag = "3")]
    pub kind: String,
}

/// Of groups' names and versions. Groups are in the order of their first version.
impl FromIterator<(String, Version)> for Document {
    fn from_iter<T: IntoIterator<Item = (String, Version)>>(all: T) -> Self {
        let mut groups: IndexMap<String, Vec<Version>> = IndexMap::new();
        for (group, version) in all {
            groups.entry(group).or_default().push(version);
        }
        let group = |(name, versions)| Group {
            metadata: Metadata { name },
            versions,
        };
        Self {
            groups: groups.into_iter().map(group).collect(),
        }
    }
}

impl Document {
    /// A group, by name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name() == name)
    }

    /// A version of a group, by name.
    pub fn version(&self, group: &str, version: &str) -> Option<&Version> {
        let mut versions = self.group(group)?.versions.iter();
        versions.find(|known| known.name == version)
    }

    /// The resources and subresources that it lists.
    pub fn served(&self) -> ServedSet {
        scopes(&self.groups).map(|(gvr, _)| gvr).collect()
    }
}

/// The versions of groups, each with the name of its group.
pub fn versions(groups: &[Group]) -> impl Iterator<Item = (&str, &Version)> {
    let groups = groups.iter();
    groups.flat_map(|group| group.versions.iter().map(move |it| (group.name(), it)))
}

/// The resources and subresources that groups list, each with its scope. Aggregated discovery does not say the scope of a
/// resource of which only subresources are served.
pub fn scopes(groups: &[Group]) -> impl Iterator<Item = (Gvr, Option<Scope>)> {
    versions(groups).flat_map(|(group, version)| {
        version.resources.iter().flat_map(move |resource| {
            let scope = match resource.scope.as_str() {
                NAMESPACED => Scope::Namespaced,
                _ => Scope::Cluster,
            };
            let scope = resource.is_served().then_some(scope);
            let itself = resource.is_served().then_some("");
            let subresources = resource.subresources.iter().map(|sub| sub.name.as_str());
            itself.into_iter().chain(subresources).map(move |name| {
                let gvr = Gvr::new(group, &version.name, &resource.name, name);
                (gvr, scope)
            })
        })
    })
}

impl Group {
    /// Empty for the core group.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl Version {
    pub fn is_stale(&self) -> bool {
        self.freshness == STALE
    }
}

impl Resource {
    /// Not only its subresources are. If only its name is known, it has verbs and no kind.
    pub fn is_served(&self) -> bool {
        self.has_kind() || !self.verbs.is_empty()
    }

    /// More than its name is known.
    pub fn has_kind(&self) -> bool {
        !self.response_kind.kind.is_empty()
    }

    /// Adds what is missing from `other`, a description of the same resource: the resource itself, if only its
    /// subresources or its name are known, and further subresources.
    pub fn complete(&mut self, other: &Self) {
        let knows_less = !self.has_kind() && (other.has_kind() || !self.is_served());
        let known = std::mem::take(&mut self.subresources);
        if knows_less {
            *self = other.clone();
        }
        self.subresources = known;
        for sub in &other.subresources {
            if self.subresources.iter().all(|known| known.name != sub.name) {
                self.subresources.push(sub.clone());
            }
        }
    }
}
