//! Entries of discovery documents as protobuf. Like Go's, they have empty texts too.

use k8s_pb::api::apidiscovery::v2 as aggregated;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;

use crate::kube::discovery::model::Named;
use crate::kube::discovery::wire::{List, Text, aggregated as wire, legacy};

fn text(text: Text<'_>) -> Option<String> {
    Some(text.0.into_owned())
}

fn texts(list: List<'_>) -> Vec<String> {
    list.0.into_iter().map(|text| text.0.into_owned()).collect()
}

fn kind(kind: wire::Kind<'_>) -> Option<meta::GroupVersionKind> {
    Some(meta::GroupVersionKind {
        group: text(kind.group),
        version: text(kind.version),
        kind: text(kind.kind),
    })
}

impl From<wire::Group<'_>> for aggregated::APIGroupDiscovery {
    fn from(group: wire::Group<'_>) -> Self {
        let metadata = meta::ObjectMeta {
            name: text(group.metadata.name),
            ..meta::ObjectMeta::default()
        };
        Self {
            metadata: Some(metadata),
            versions: group.versions.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<wire::Version<'_>> for aggregated::APIVersionDiscovery {
    fn from(version: wire::Version<'_>) -> Self {
        Self {
            version: text(version.version),
            resources: version.resources.into_iter().map(Into::into).collect(),
            freshness: text(version.freshness),
        }
    }
}

impl From<wire::Resource<'_>> for aggregated::APIResourceDiscovery {
    fn from(resource: wire::Resource<'_>) -> Self {
        Self {
            resource: text(resource.resource),
            response_kind: kind(resource.response_kind),
            scope: text(resource.scope),
            singular_resource: text(resource.singular_resource),
            verbs: texts(resource.verbs),
            short_names: texts(resource.short_names),
            categories: texts(resource.categories),
            subresources: resource.subresources.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<wire::Subresource<'_>> for aggregated::APISubresourceDiscovery {
    fn from(subresource: wire::Subresource<'_>) -> Self {
        let given = !subresource.response_kind.is_empty();
        Self {
            subresource: text(subresource.subresource),
            response_kind: kind(subresource.response_kind).filter(|_| given),
            accepted_types: Vec::new(),
            verbs: texts(subresource.verbs),
        }
    }
}

impl From<legacy::Group<'_>> for meta::APIGroup {
    fn from(group: legacy::Group<'_>) -> Self {
        Self {
            name: text(group.name),
            versions: group.versions.into_iter().map(Into::into).collect(),
            preferred_version: Some(group.preferred_version.into()),
            server_address_by_client_cid_rs: Vec::new(),
        }
    }
}

impl From<legacy::Version<'_>> for meta::GroupVersionForDiscovery {
    fn from(version: legacy::Version<'_>) -> Self {
        Self {
            group_version: Some(version.group_version),
            version: text(version.version),
        }
    }
}

impl From<legacy::Resource<'_>> for meta::APIResource {
    fn from(resource: legacy::Resource<'_>) -> Self {
        Self {
            name: text(resource.name),
            singular_name: text(resource.singular_name),
            namespaced: Some(resource.namespaced),
            group: text(resource.group),
            version: text(resource.version),
            kind: text(resource.kind),
            verbs: Some(meta::Verbs {
                items: texts(resource.verbs),
            }),
            short_names: texts(resource.short_names),
            categories: texts(resource.categories),
            storage_version_hash: text(resource.storage_version_hash),
        }
    }
}

impl Named for aggregated::APIGroupDiscovery {
    fn name(&self) -> &str {
        self.metadata
            .as_ref()
            .map_or("", |metadata| metadata.name())
    }
}

impl Named for aggregated::APIVersionDiscovery {
    fn name(&self) -> &str {
        self.version()
    }
}

impl Named for aggregated::APIResourceDiscovery {
    fn name(&self) -> &str {
        self.resource()
    }
}

impl Named for aggregated::APISubresourceDiscovery {
    fn name(&self) -> &str {
        self.subresource()
    }
}

impl Named for meta::APIGroup {
    fn name(&self) -> &str {
        self.name()
    }
}

impl Named for meta::GroupVersionForDiscovery {
    fn name(&self) -> &str {
        self.version()
    }
}
