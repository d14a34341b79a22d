//! Discovery documents of apiservers: which there are, their forms, and how they are read. Pure.

pub mod documents;
pub mod legacy;
pub mod model;

use super::gvr::GroupVersion;

/// A discovery or OpenAPI document that can differ between servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryDocument {
    /// `/api`: versions of the core group, or aggregated discovery of it.
    Versions,
    /// `/apis`: all other groups, or aggregated discovery of them.
    Groups,
    /// `/apis/<group>`: versions of one group.
    Group(String),
    /// `/api/<version>` and `/apis/<group>/<version>`: resources of one version.
    Resources(GroupVersion),
    /// `/openapi/v2`: everything.
    OpenApiV2,
    /// `/openapi/v3`: index of the documents below it.
    OpenApiV3,
    /// `/openapi/v3/api/<version>` and `/openapi/v3/apis/<group>/<version>`.
    OpenApiV3Version(GroupVersion),
}

impl DiscoveryDocument {
    /// Whether the proxy can merge the documents of several servers. Otherwise one server's document is passed on.
    pub fn is_merged(&self) -> bool {
        !matches!(self, Self::OpenApiV3Version(_))
    }

    /// Whether it lists groups, or the versions of one.
    pub fn lists_groups(&self) -> bool {
        matches!(self, Self::Groups | Self::Group(_))
    }

    /// The group version, for a document about a single one.
    pub fn group_version(&self) -> Option<&GroupVersion> {
        match self {
            Self::Resources(of) | Self::OpenApiV3Version(of) => Some(of),
            _ => None,
        }
    }
}
