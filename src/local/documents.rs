//! Reading discovery documents into a served set. Pure.
//!
//! Two forms: aggregated discovery (KEP-3352) has everything in two documents; before it there is the path index `/`,
//! which names exactly the group versions that are served, and one document per group version. The legacy `/apis`
//! group list is not read: it can miss what is served.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::discovery::model::{self, Group, served};
use crate::discovery::pool::Pool;
use crate::discovery::read;
use crate::routing::table::ServedSet;
use crate::routing::version::Version;

/// A group version and where its document is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// API group, empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
}

impl GroupVersion {
    /// Path of its document.
    pub fn path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

/// The `Accept` of aggregated discovery, newest form first, without what a native peer proxy would merge in.
pub const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
    application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
    application/json";

/// Whether an answer to [`ACCEPT_AGGREGATED`] is aggregated discovery.
pub fn is_aggregated(content_type: &str) -> bool {
    content_type.contains("g=apidiscovery.k8s.io")
        && content_type.contains("as=APIGroupDiscoveryList")
}

#[derive(Deserialize)]
struct Index {
    paths: Vec<String>,
}

/// The group versions that the path index `/` names.
pub fn group_versions(index: &[u8]) -> Result<BTreeSet<GroupVersion>, serde_json::Error> {
    let index: Index = serde_json::from_slice(index)?;
    Ok(index
        .paths
        .iter()
        .filter_map(|path| group_version(path))
        .collect())
}

fn group_version(path: &str) -> Option<GroupVersion> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let (group, version) = match (parts.next()?, parts.next()?) {
        ("api", version) => ("", version),
        ("apis", group) => (group, parts.next()?),
        _ => return None,
    };
    let whole = parts.next().is_none() && !version.is_empty();
    whole.then(|| GroupVersion {
        group: group.to_owned(),
        version: version.to_owned(),
    })
}

/// The resources of a group version's own document (`APIResourceList`).
pub fn resources(of: &GroupVersion, document: &[u8]) -> Result<ServedSet, serde_json::Error> {
    let version = model::Version {
        name: of.version.as_str().into(),
        resources: read::resources(&mut Pool::default(), of, document)?,
        ..model::Version::default()
    };
    let group = Group {
        name: of.group.as_str().into(),
        versions: vec![version],
    };
    Ok(served([&group]))
}

/// The resources of an aggregated discovery document.
pub fn aggregated(document: &[u8]) -> Result<ServedSet, serde_json::Error> {
    Ok(served(&read::groups(&mut Pool::default(), document)?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionInfo {
    git_version: String,
    #[serde(default)]
    major: String,
    #[serde(default)]
    minor: String,
    emulation_major: Option<String>,
    emulation_minor: Option<String>,
}

/// Versions of an apiserver, from `/version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// `gitVersion`, as `v1.20.2`.
    pub binary: String,
    /// Emulation version where there is one, else major and minor: `1.20`. Builds without version information have
    /// neither.
    pub compatibility: Option<Version>,
}

/// Reads `/version`.
pub fn versions(document: &[u8]) -> Result<Versions, serde_json::Error> {
    let info: VersionInfo = serde_json::from_slice(document)?;
    let major = info.emulation_major.unwrap_or(info.major);
    let minor = info.emulation_minor.unwrap_or(info.minor);
    // Some distributions append a plus sign to the minor version.
    let minor = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    Ok(Versions {
        binary: info.git_version,
        compatibility: format!("{major}.{minor}").parse().ok(),
    })
}

#[cfg(test)]
mod tests;
