//! StorageVersions: which API versions each server serves of a resource. Pure.
//!
//! Only `servedVersions` counts, which exists since Kubernetes 1.28. `encodingVersion` and `decodableVersions` are
//! ignored on purpose: a server decodes versions that it does not serve.

use std::collections::BTreeSet;

use prost::Message;
use serde::Deserialize;

use super::{Type, Undecodable, decode, nullable};

const STORAGE_VERSION: Type = Type("StorageVersion", "internal.apiserver.k8s.io", &["v1alpha1"]);

/// Bytes that are kept of a resource's servers. API users can write StorageVersions, and a value has room for 1 MiB.
const MOST_KEPT: usize = 16 << 10;

/// Versions that a server serves of a resource.
const MOST_VERSIONS: usize = 16;

/// The versions of a resource that one server serves. Absent servers stay listed.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(default)]
pub struct ServerVersions {
    /// ID of the server, the name of its identity Lease.
    #[prost(string, tag = "1")]
    #[serde(rename = "apiServerID", deserialize_with = "nullable")]
    pub server: String,
    /// Group versions as they are stored; as [`storage_version`] reads them, versions: each once, without malformed ones.
    /// Before Kubernetes 1.28 always empty, which proves nothing.
    #[prost(string, repeated, tag = "4")]
    #[serde(rename = "servedVersions", deserialize_with = "nullable")]
    pub served: Vec<String>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct StorageVersion {
    #[prost(message, optional, tag = "3")]
    status: Option<Status>,
}

#[derive(Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    storage_versions: Vec<ServerVersions>,
}

/// Reads the value of `storageversions/<group or core>.<resource>`.
pub fn storage_version(value: &[u8]) -> Result<Vec<ServerVersions>, Undecodable> {
    let stored: StorageVersion = decode(value, &STORAGE_VERSION)?;
    let servers = stored.status.unwrap_or_default().storage_versions;
    if servers.iter().any(|it| it.server.is_empty()) {
        return Err(Undecodable::Field("apiServerID"));
    }
    let mut room = MOST_KEPT;
    let kept = servers.into_iter().map_while(|mut it| {
        let served: BTreeSet<_> = it.served.iter().filter_map(|text| version(text)).collect();
        let served = served.into_iter().take(MOST_VERSIONS).map(str::to_owned);
        it.served = served.collect();
        let texts = it.served.iter();
        let texts: usize = texts.map(|text| text.len() + size_of::<String>()).sum();
        room = room.checked_sub(size_of::<ServerVersions>() + it.server.len() + texts)?;
        Some(it)
    });
    // Collected in place: it would have the memory of all that was read.
    let mut kept: Vec<_> = kept.collect();
    kept.shrink_to_fit();
    Ok(kept)
}

/// The version in a group version.
fn version(text: &str) -> Option<&str> {
    let (group, version) = text.split_once('/').unwrap_or(("core", text));
    let is_whole = !group.is_empty() && !version.is_empty() && !version.contains('/');
    is_whole.then_some(version)
}

/// Group and resource that the name of a StorageVersion stands for; the group is empty for `core`.
pub fn stored_resource(name: &str) -> Option<(&str, &str)> {
    let (group, resource) = name.rsplit_once('.')?;
    if group.is_empty() || resource.is_empty() {
        return None;
    }
    Some((if group == "core" { "" } else { group }, resource))
}
