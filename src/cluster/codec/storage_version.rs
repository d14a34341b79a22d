//! StorageVersions: which API versions each server serves of a resource. Pure.
//!
//! Only `servedVersions` counts, which exists since Kubernetes 1.28. `encodingVersion` and `decodableVersions` are
//! ignored on purpose: a server decodes versions that it does not serve.

use prost::Message;
use serde::Deserialize;

use super::{Type, Undecodable, decode, json};

const STORAGE_VERSION: Type = Type("StorageVersion", &["internal.apiserver.k8s.io/v1alpha1"]);

/// Longest name of a Lease, and so of a server ID.
const MAX_NAME: usize = 253;

/// Longest group version: a group of 253 bytes, and a version of 63.
const MAX_GROUP_VERSION: usize = 253 + 1 + 63;

/// Bytes that are kept of a resource's servers. API users can write StorageVersions, and a value has room for 1 MiB.
const MOST_KEPT: usize = 16 << 10;

/// Versions that a server serves of a resource.
const MOST_VERSIONS: usize = 16;

/// The versions of a resource that one server serves. Servers that are gone stay listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersions {
    /// ID of the server, the name of its identity Lease.
    pub server: String,
    /// Group and version of each served version once, without malformed ones. Before Kubernetes 1.28 always empty, which
    /// proves nothing.
    pub served: Vec<(String, String)>,
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
    #[serde(deserialize_with = "json::or_default")]
    storage_versions: Vec<Server>,
}

#[derive(Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Server {
    #[prost(string, optional, tag = "1")]
    #[serde(rename = "apiServerID")]
    id: Option<String>,
    #[prost(string, repeated, tag = "4")]
    #[serde(deserialize_with = "json::or_default")]
    served_versions: Vec<String>,
}

/// Reads the value of `storageversions/<group or core>.<resource>`.
pub fn storage_version(value: &[u8]) -> Result<Vec<ServerVersions>, Undecodable> {
    let stored: StorageVersion = decode(value, &STORAGE_VERSION)?;
    let servers = stored.status.map(|status| status.storage_versions);
    let (mut kept, mut room) = (Vec::new(), MOST_KEPT);
    for server in servers.unwrap_or_default() {
        let id = server.id.filter(|id| (1..=MAX_NAME).contains(&id.len()));
        let server = ServerVersions {
            server: id.ok_or(Undecodable::Field("apiServerID"))?,
            served: group_versions(&server.served_versions),
        };
        let Some(left) = room.checked_sub(memory(&server)) else {
            break;
        };
        room = left;
        kept.push(server);
    }
    Ok(kept)
}

fn memory(versions: &ServerVersions) -> usize {
    let served = versions.served.iter();
    let texts = served.map(|both| both.0.len() + both.1.len() + size_of_val(both));
    size_of_val(versions) + versions.server.len() + texts.sum::<usize>()
}

/// A malformed one is ignored; the others still count.
fn group_versions(texts: &[String]) -> Vec<(String, String)> {
    let mut read = Vec::new();
    for one in texts.iter().filter_map(|text| group_version(text)) {
        if !read.contains(&one) {
            read.push(one);
        }
        if read.len() == MOST_VERSIONS {
            break;
        }
    }
    read
}

fn group_version(text: &str) -> Option<(String, String)> {
    let (group, version) = match text.split_once('/') {
        Some(("", _)) => return None,
        Some(both) => both,
        None => ("", text),
    };
    let whole = !version.is_empty() && !version.contains('/') && text.len() <= MAX_GROUP_VERSION;
    whole.then(|| (group.to_owned(), version.to_owned()))
}

/// Group and resource that the name of a StorageVersion stands for; the group is empty for `core`.
pub fn stored_resource(name: &str) -> Option<(&str, &str)> {
    let (group, resource) = name.rsplit_once('.')?;
    if group.is_empty() || resource.is_empty() {
        return None;
    }
    Some((if group == "core" { "" } else { group }, resource))
}
