//! Legacy discovery: lists of groups, of versions, of resources.

use serde::{Deserialize, Serialize};

use super::{List, Text, nullable};
use crate::kube::discovery::model;
use crate::kube::gvr::api_version;

/// Kind of the list of groups.
pub const GROUPS: &str = "APIGroupList";
/// Kind of a group.
pub const GROUP: &str = "APIGroup";
/// Kind of the list of resources of a group version.
pub const RESOURCES: &str = "APIResourceList";

/// A complete document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document<T> {
    kind: &'static str,
    api_version: &'static str,
    #[serde(flatten)]
    contents: T,
}

impl<T: Serialize> Document<T> {
    /// Serializes it with kube-apiserver's trailing newline.
    pub fn text(kind: &'static str, contents: T) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec(&Self {
            kind,
            api_version: "v1",
            contents,
        })?;
        text.push(b'\n');
        Ok(text)
    }
}

/// `APIGroupList`
#[derive(Deserialize)]
pub struct Groups<'a> {
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub groups: Vec<Group<'a>>,
}

/// `APIGroup`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(default, deserialize_with = "nullable")]
    pub versions: Vec<Version<'a>>,
    #[serde(default)]
    pub preferred_version: Version<'a>,
}

/// `GroupVersionForDiscovery`
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version<'a> {
    #[serde(default)]
    pub group_version: String,
    #[serde(borrow, default)]
    pub version: Text<'a>,
}

/// `APIResourceList`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources<'a> {
    #[serde(borrow, default)]
    pub group_version: Text<'a>,
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub resources: Vec<Resource<'a>>,
}

/// `APIResource`: a resource, or a subresource as `resource/subresource`.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(default)]
    pub singular_name: Text<'a>,
    #[serde(default)]
    pub namespaced: bool,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub group: Text<'a>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub version: Text<'a>,
    #[serde(default)]
    pub kind: Text<'a>,
    #[serde(default)]
    pub verbs: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub short_names: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub categories: List<'a>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub storage_version_hash: Text<'a>,
}

impl<'a> From<&'a model::Group> for Group<'a> {
    fn from(group: &'a model::Group) -> Self {
        let versions = group.versions.iter();
        let versions: Vec<_> = versions
            .map(|version| Version::of(&group.name, version))
            .collect();
        Self {
            name: Text::from(&*group.name),
            preferred_version: versions.first().cloned().unwrap_or_default(),
            versions,
        }
    }
}

impl<'a> Version<'a> {
    /// A version of a group.
    pub fn of(group: &str, version: &'a model::Version) -> Self {
        Self {
            group_version: api_version(group, &version.name),
            version: Text::from(&*version.name),
        }
    }
}

impl<'a> Resource<'a> {
    /// The entries of a resource: itself if it is served, and its subresources.
    pub fn all(of: &'a model::Resource) -> impl Iterator<Item = Self> {
        let itself = of.kind.as_ref().map(|kind| Self {
            singular_name: Text::from(&*of.singular),
            short_names: List::from(&of.short_names),
            categories: List::from(&of.categories),
            storage_version_hash: Text::from(&*of.storage_version_hash),
            ..Self::entry(Text::from(&*of.name), of, Some(kind), &of.verbs)
        });
        let subresources = of.subresources.iter().map(|sub| {
            let name = Text(format!("{}/{}", of.name, sub.name).into());
            Self::entry(name, of, sub.kind.as_ref(), &sub.verbs)
        });
        itself.into_iter().chain(subresources)
    }

    fn entry(
        name: Text<'a>,
        of: &model::Resource,
        kind: Option<&'a model::Kind>,
        verbs: &'a model::Texts,
    ) -> Self {
        let text = |field: fn(&'a model::Kind) -> &'a str| Text::from(kind.map_or("", field));
        Self {
            name,
            singular_name: Text::default(),
            namespaced: of.namespaced,
            group: text(|kind| &kind.group),
            version: text(|kind| &kind.version),
            kind: text(|kind| &kind.kind),
            verbs: List::from(verbs),
            short_names: List::default(),
            categories: List::default(),
            storage_version_hash: Text::default(),
        }
    }
}
