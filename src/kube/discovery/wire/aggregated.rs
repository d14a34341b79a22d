//! Aggregated discovery: `apidiscovery.k8s.io/v2` and `v2beta1`, which have the same fields.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{List, Text, nullable};
use crate::kube::discovery::model;

pub const KIND: &str = "APIGroupDiscoveryList";
/// Freshness of a version whose contents may be outdated.
pub const STALE: &str = "Stale";
/// Freshness of all other versions.
pub const CURRENT: &str = "Current";
/// Scope of a namespaced resource.
pub const NAMESPACED: &str = "Namespaced";
/// Scope of a cluster-scoped resource.
pub const CLUSTER: &str = "Cluster";

/// `APIGroupDiscoveryList`
#[derive(Deserialize)]
pub struct Groups<'a> {
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub items: Vec<Group<'a>>,
}

/// `APIGroupDiscovery`
#[derive(Deserialize, Serialize)]
pub struct Group<'a> {
    #[serde(borrow, default)]
    pub metadata: Metadata<'a>,
    #[serde(default, deserialize_with = "nullable")]
    pub versions: Vec<Version<'a>>,
}

/// [`Groups`] whose versions are not parsed yet.
#[derive(Deserialize)]
pub struct NamedGroups<'a> {
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub items: Vec<NamedGroup<'a>>,
}

#[derive(Deserialize)]
pub struct NamedGroup<'a> {
    #[serde(borrow, default)]
    pub metadata: Metadata<'a>,
    #[serde(borrow, default)]
    pub versions: Option<&'a RawValue>,
}

/// The used fields of `ObjectMeta`.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Metadata<'a> {
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub name: Text<'a>,
}

/// `APIVersionDiscovery`
#[derive(Deserialize, Serialize)]
pub struct Version<'a> {
    #[serde(borrow)]
    pub version: Text<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub resources: Vec<Resource<'a>>,
    #[serde(default)]
    pub freshness: Text<'a>,
}

/// `APIResourceDiscovery`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource<'a> {
    #[serde(borrow)]
    pub resource: Text<'a>,
    /// Empty where only subresources are served; some clients require it.
    #[serde(default, deserialize_with = "nullable")]
    pub response_kind: Kind<'a>,
    #[serde(default)]
    pub scope: Text<'a>,
    #[serde(default)]
    pub singular_resource: Text<'a>,
    #[serde(default)]
    pub verbs: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub short_names: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub categories: List<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub subresources: Vec<Subresource<'a>>,
}

/// `APISubresourceDiscovery`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource<'a> {
    #[serde(borrow)]
    pub subresource: Text<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Kind::is_empty"
    )]
    pub response_kind: Kind<'a>,
    #[serde(default)]
    pub verbs: List<'a>,
}

/// `GroupVersionKind`
#[derive(Default, Deserialize, Serialize)]
pub struct Kind<'a> {
    #[serde(borrow, default)]
    pub group: Text<'a>,
    #[serde(default)]
    pub version: Text<'a>,
    #[serde(default)]
    pub kind: Text<'a>,
}

impl Kind<'_> {
    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }
}

impl<'a> From<&'a model::Group> for Group<'a> {
    fn from(group: &'a model::Group) -> Self {
        Self {
            metadata: Metadata {
                name: Text::from(&*group.name),
            },
            versions: group.versions.iter().map(Version::from).collect(),
        }
    }
}

impl<'a> From<&'a model::Version> for Version<'a> {
    fn from(version: &'a model::Version) -> Self {
        let resources = version.resources.iter();
        Self {
            version: Text::from(&*version.name),
            resources: resources
                .map(|resource| Resource::from(&**resource))
                .collect(),
            freshness: Text::from(if version.stale { STALE } else { CURRENT }),
        }
    }
}

impl<'a> From<&'a model::Resource> for Resource<'a> {
    fn from(resource: &'a model::Resource) -> Self {
        let subresources = resource.subresources.iter();
        Self {
            resource: Text::from(&*resource.name),
            response_kind: Kind::from(resource.kind.as_ref()),
            scope: Text::from(if resource.namespaced {
                NAMESPACED
            } else {
                CLUSTER
            }),
            singular_resource: Text::from(&*resource.singular),
            verbs: List::from(&resource.verbs),
            short_names: List::from(&resource.short_names),
            categories: List::from(&resource.categories),
            subresources: subresources.map(Subresource::from).collect(),
        }
    }
}

impl<'a> From<&'a model::Subresource> for Subresource<'a> {
    fn from(subresource: &'a model::Subresource) -> Self {
        Self {
            subresource: Text::from(&*subresource.name),
            response_kind: Kind::from(subresource.kind.as_ref()),
            verbs: List::from(&subresource.verbs),
        }
    }
}

impl<'a> From<Option<&'a model::Kind>> for Kind<'a> {
    fn from(kind: Option<&'a model::Kind>) -> Self {
        kind.map_or_else(Self::default, |kind| Self {
            group: Text::from(&*kind.group),
            version: Text::from(&*kind.version),
            kind: Text::from(&*kind.kind),
        })
    }
}

impl model::Named for Subresource<'_> {
    fn name(&self) -> &str {
        &self.subresource
    }
}
