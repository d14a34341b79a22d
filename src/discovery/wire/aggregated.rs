//! Aggregated discovery: `apidiscovery.k8s.io/v2` and `v2beta1`, which have the same fields.

use serde::{Deserialize, Serialize};

use super::{List, Text, nullable};
use crate::discovery::model;

/// Its kind.
pub(in crate::discovery) const KIND: &str = "APIGroupDiscoveryList";
/// Freshness of what is not to be relied on.
pub(in crate::discovery) const STALE: &str = "Stale";
/// Freshness of everything else.
pub(in crate::discovery) const CURRENT: &str = "Current";
/// Scope of a resource whose objects are in namespaces.
pub(in crate::discovery) const NAMESPACED: &str = "Namespaced";
/// Scope of a resource whose objects are not.
pub(in crate::discovery) const CLUSTER: &str = "Cluster";

/// `APIGroupDiscoveryList`
#[derive(Deserialize)]
pub(in crate::discovery) struct Groups<'a> {
    #[serde(borrow, default, deserialize_with = "nullable")]
    pub(in crate::discovery) items: Vec<Group<'a>>,
}

/// `APIGroupDiscovery`
#[derive(Deserialize, Serialize)]
pub(in crate::discovery) struct Group<'a> {
    #[serde(borrow, default)]
    pub(in crate::discovery) metadata: Metadata<'a>,
    #[serde(default, deserialize_with = "nullable")]
    pub(in crate::discovery) versions: Vec<Version<'a>>,
}

/// What is used of `ObjectMeta`.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(in crate::discovery) struct Metadata<'a> {
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    pub(in crate::discovery) name: Text<'a>,
}

/// `APIVersionDiscovery`
#[derive(Deserialize, Serialize)]
pub(in crate::discovery) struct Version<'a> {
    #[serde(borrow)]
    pub(in crate::discovery) version: Text<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(in crate::discovery) resources: Vec<Resource<'a>>,
    #[serde(default)]
    pub(in crate::discovery) freshness: Text<'a>,
}

/// `APIResourceDiscovery`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::discovery) struct Resource<'a> {
    #[serde(borrow)]
    pub(in crate::discovery) resource: Text<'a>,
    /// Empty where only subresources are served; some clients cannot do without it.
    #[serde(default, deserialize_with = "nullable")]
    pub(in crate::discovery) response_kind: Kind<'a>,
    #[serde(default)]
    pub(in crate::discovery) scope: Text<'a>,
    #[serde(default)]
    pub(in crate::discovery) singular_resource: Text<'a>,
    #[serde(default)]
    pub(in crate::discovery) verbs: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub(in crate::discovery) short_names: List<'a>,
    #[serde(default, skip_serializing_if = "List::is_empty")]
    pub(in crate::discovery) categories: List<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(in crate::discovery) subresources: Vec<Subresource<'a>>,
}

/// `APISubresourceDiscovery`
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::discovery) struct Subresource<'a> {
    #[serde(borrow)]
    pub(in crate::discovery) subresource: Text<'a>,
    #[serde(
        default,
        deserialize_with = "nullable",
        skip_serializing_if = "Kind::is_empty"
    )]
    pub(in crate::discovery) response_kind: Kind<'a>,
    #[serde(default)]
    pub(in crate::discovery) verbs: List<'a>,
}

/// `GroupVersionKind`
#[derive(Default, Deserialize, Serialize)]
pub(in crate::discovery) struct Kind<'a> {
    #[serde(borrow, default)]
    pub(in crate::discovery) group: Text<'a>,
    #[serde(default)]
    pub(in crate::discovery) version: Text<'a>,
    #[serde(default)]
    pub(in crate::discovery) kind: Text<'a>,
}

impl Kind<'_> {
    /// There is none.
    pub(in crate::discovery) fn is_empty(&self) -> bool {
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
