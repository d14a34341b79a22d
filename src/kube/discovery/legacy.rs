//! Legacy discovery: lists of groups, of versions, of resources. One declaration for JSON, YAML and protobuf.

use prost::Message;
use serde::{Deserialize, Serialize};

use super::model::{self, NAMESPACED};
use crate::kube::gvr::api_version;
use crate::kube::nullable;

/// `APIGroupList`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
pub struct GroupList {
    #[prost(message, repeated, tag = "1")]
    #[serde(default, deserialize_with = "nullable")]
    pub groups: Vec<Group>,
}

/// `APIGroup`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(default, deserialize_with = "nullable")]
    pub versions: Vec<Version>,
    #[prost(message, required, tag = "3")]
    #[serde(default)]
    pub preferred_version: Version,
}

/// `GroupVersionForDiscovery`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Version {
    #[prost(string, tag = "1")]
    pub group_version: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// `APIResourceList`
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceList {
    #[prost(string, tag = "1")]
    pub group_version: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub resources: Vec<Resource>,
}

/// `APIResource`: a resource, or a subresource as `resource/subresource`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "6")]
    #[serde(default)]
    pub singular_name: String,
    #[prost(bool, tag = "2")]
    #[serde(default)]
    pub namespaced: bool,
    #[prost(string, tag = "8")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[prost(string, tag = "9")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[prost(string, tag = "3")]
    #[serde(default)]
    pub kind: String,
    #[prost(message, required, tag = "4")]
    #[serde(default)]
    pub verbs: Verbs,
    #[prost(string, repeated, tag = "5")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    #[serde(default, deserialize_with = "nullable")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    #[prost(string, tag = "10")]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_version_hash: String,
}

/// A list in JSON, a message in protobuf.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Verbs {
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub items: Vec<String>,
}

impl From<&model::Group> for Group {
    fn from(group: &model::Group) -> Self {
        let version = |it: &model::Version| Version {
            group_version: api_version(group.name(), &it.name),
            version: it.name.clone(),
        };
        let versions: Vec<_> = group.versions.iter().map(version).collect();
        Self {
            name: group.name().to_owned(),
            preferred_version: versions.first().cloned().unwrap_or_default(),
            versions,
        }
    }
}

impl ResourceList {
    /// The document of a version of a group.
    pub fn new(group: &str, version: &model::Version) -> Self {
        Self {
            group_version: api_version(group, &version.name),
            resources: version.resources.iter().flat_map(entries).collect(),
        }
    }
}

/// A resource, if it is served itself, and its subresources.
fn entries(of: &model::Resource) -> impl Iterator<Item = Resource> {
    let entry = |name: String, kind: &model::Kind, verbs: &[String]| Resource {
        name,
        namespaced: of.scope == NAMESPACED,
        group: kind.group.clone(),
        version: kind.version.clone(),
        kind: kind.kind.clone(),
        verbs: Verbs {
            items: verbs.to_vec(),
        },
        ..Resource::default()
    };
    let itself = of.is_served().then(|| Resource {
        singular_name: of.singular_resource.clone(),
        short_names: of.short_names.clone(),
        categories: of.categories.clone(),
        ..entry(of.name.clone(), &of.response_kind, &of.verbs)
    });
    let subresources = of.subresources.iter().map(move |sub| {
        let kind = sub.response_kind.clone().unwrap_or_default();
        entry(format!("{}/{}", of.name, sub.name), &kind, &sub.verbs)
    });
    itself.into_iter().chain(subresources)
}
