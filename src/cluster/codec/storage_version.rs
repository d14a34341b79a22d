//! StorageVersions: which API versions each server serves of a resource. Pure.
//!
//! Only `servedVersions` counts, which exists since Kubernetes 1.28. `encodingVersion` and `decodableVersions` are
//! ignored on purpose: a server decodes versions that it does not serve.

use k8s_pb::api::apiserverinternal::v1alpha1 as protobuf;
use serde::Deserialize;

use super::{JsonObject, Type, Undecodable, decode};

const STORAGE_VERSION: Type = Type {
    kind: "StorageVersion",
    api_versions: &["internal.apiserver.k8s.io/v1alpha1"],
};

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

#[derive(Deserialize)]
struct StorageVersionFields {
    status: Option<JsonObject<Status>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    storage_versions: Option<Vec<JsonObject<Server>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    #[serde(rename = "apiServerID")]
    id: Option<String>,
    served_versions: Option<Vec<String>>,
}

impl TryFrom<protobuf::StorageVersion> for StorageVersionFields {
    type Error = Undecodable;

    fn try_from(stored: protobuf::StorageVersion) -> Result<Self, Undecodable> {
        let status = stored.status.map(|status| Status {
            storage_versions: Some(status.storage_versions.into_iter().map(server).collect()),
        });
        Ok(Self {
            status: status.map(JsonObject),
        })
    }
}

fn server(stored: protobuf::ServerStorageVersion) -> JsonObject<Server> {
    JsonObject(Server {
        id: stored.api_server_id,
        served_versions: Some(stored.served_versions),
    })
}

/// Reads the value of `storageversions/<group or core>.<resource>`.
pub fn storage_version(value: &[u8]) -> Result<Vec<ServerVersions>, Undecodable> {
    let form = decode::<StorageVersionFields, protobuf::StorageVersion>(value, &STORAGE_VERSION)?;
    let servers = form.status.and_then(|status| status.0.storage_versions);
    let read = |JsonObject(server): JsonObject<Server>| {
        let id = server.id.filter(|id| (1..=MAX_NAME).contains(&id.len()));
        let served = server.served_versions.unwrap_or_default();
        Ok::<_, Undecodable>(ServerVersions {
            server: id.ok_or(Undecodable::Field("apiServerID"))?,
            served: group_versions(&served),
        })
    };
    let (mut kept, mut room) = (Vec::new(), MOST_KEPT);
    for server in servers.unwrap_or_default() {
        let server = read(server)?;
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
