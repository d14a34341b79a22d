//! Adds the paths that peers serve to OpenAPI documents. Pure.
//!
//! The local document stays as it is. What it lacks is taken from the first peer that has it. Only two parts grow, `paths`
//! and `definitions`; everything else (`info`, `securityDefinitions`, …) is local. Nothing is parsed deeper than these two:
//! a document has megabytes.
//!
//! A path that somebody else serves counts only if it is wanted, so that custom resources that were deleted since the
//! peer's document was read do not linger. A peer that gives a path gives all definitions that are lacking. Following
//! the references of its paths would leave some out that nobody refers to, which do no harm, and could miss one, which
//! does: for one dangling reference kubectl rejects the whole document.
//!
//! A definition that both have stays local, even if the peer's version knows more fields: then what is added is
//! described as far as the local server could describe it.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::value::{RawValue, to_raw_value};

use crate::log_throttle::chain;

/// The OpenAPI documents that are merged, by endpoint and format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpenApiFormat {
    /// `/openapi/v2` in JSON.
    V2Json,
    /// `/openapi/v2` in protobuf.
    V2Protobuf,
    /// `/openapi/v3`: where the document of each group version is. Those documents are not merged.
    V3Index,
}

impl OpenApiFormat {
    /// That of an `/openapi/v2` that comes as `content_type`, most probably: old releases call JSON text, and everything
    /// else bytes.
    pub fn of_v2(content_type: &str) -> Self {
        match content_type.starts_with("text/") || content_type.contains("json") {
            true => OpenApiFormat::V2Json,
            false => OpenApiFormat::V2Protobuf,
        }
    }
}

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    #[error("the OpenAPI document cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the OpenAPI document cannot be read: {0}")]
    Protobuf(#[from] prost::DecodeError),
}

/// Adds to the local document what it lacks of the peers' documents, which are in the same form, the best first.
/// `None`: nothing, the local bytes pass as they are. A peer's document that cannot be read is left out. `wanted`: group and
/// version, which is empty for what describes the group.
pub fn merge(
    format: OpenApiFormat,
    local: &[u8],
    peers: &[&[u8]],
    wanted: impl Fn(&str, &str) -> bool,
) -> Result<Option<Vec<u8>>, OpenApiError> {
    let wanted = |path: &str| match group_version(path) {
        // What describes a group and nothing in it has a v3 document too, but is not found at peers.
        Some((_, "")) if format == OpenApiFormat::V3Index => false,
        Some((group, version)) => wanted(group, version),
        None => false,
    };
    match format {
        OpenApiFormat::V2Json | OpenApiFormat::V3Index => {
            let mut members: Members<'_> = serde_json::from_slice(local)?;
            let mut parts = json_parts(&members)?;
            let peers = readable(peers, |peer| json_parts(&serde_json::from_slice(peer)?));
            let Some(added) = parts.lacking(peers, wanted) else {
                return Ok(None);
            };
            parts.paths.extend(added.paths);
            parts.definitions.extend(added.definitions);
            let paths = to_raw_value(&parts.paths)?;
            let definitions = to_raw_value(&parts.definitions)?;
            members.insert(PATHS.to_owned(), &paths);
            if format == OpenApiFormat::V2Json {
                members.insert(DEFINITIONS.to_owned(), &definitions);
            }
            Ok(Some(serde_json::to_vec(&members)?))
        }
        OpenApiFormat::V2Protobuf => {
            let peers = readable(peers, read_protobuf);
            let added = read_protobuf(local)?.lacking(peers, wanted);
            // Readers join several fields of one message.
            Ok(added.map(|added| [local, &write_protobuf(added)].concat()))
        }
    }
}

fn readable<'a, T>(
    peers: &[&'a [u8]],
    mut read: impl FnMut(&'a [u8]) -> Result<T, OpenApiError>,
) -> Vec<T> {
    let read = peers.iter().map(|peer| read(peer));
    let readable = read.filter_map(|parts| {
        let warn = |error: &OpenApiError| {
            let error = chain(error);
            tracing::warn!(error, "a peer's OpenAPI document is left out");
        };
        parts.inspect_err(warn).ok()
    });
    readable.collect()
}

/// The group and version of `/apis/apps/v1/namespaces/{namespace}/deployments`, or of the `apis/apps/v1` of the v3 index.
/// `None`: the path is of no API group (`/version/`, `/logs/`, …), or of all (`/apis/`).
fn group_version(path: &str) -> Option<(&str, &str)> {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let group = match segments.next()? {
        "api" => "",
        "apis" => segments.next()?,
        _ => return None,
    };
    Some((group, segments.next().unwrap_or_default()))
}

/// The parts of a document that grow: what is described, by name.
struct Parts<T> {
    paths: BTreeMap<String, T>,
    definitions: BTreeMap<String, T>,
}

impl<T> Parts<T> {
    /// What of the others' entries is missing here. `None`: nothing. Definitions only come with paths.
    fn lacking(&self, others: Vec<Self>, wanted: impl Fn(&str) -> bool) -> Option<Self> {
        let (mut paths, mut definitions) = (BTreeMap::new(), BTreeMap::new());
        for other in others {
            let before = paths.len();
            for (path, item) in other.paths {
                if wanted(&path) && !self.paths.contains_key(&path) {
                    paths.entry(path).or_insert(item);
                }
            }
            let gives_definitions = paths.len() > before;
            for (name, schema) in other.definitions {
                if gives_definitions && !self.definitions.contains_key(&name) {
                    definitions.entry(name).or_insert(schema);
                }
            }
        }
        (!paths.is_empty()).then_some(Self { paths, definitions })
    }
}

/// The members of a JSON object, in the order in which Go writes them.
type Members<'a> = BTreeMap<String, &'a RawValue>;

const PATHS: &str = "paths";
const DEFINITIONS: &str = "definitions";

/// `members`: of the document.
fn json_parts<'a>(members: &Members<'a>) -> Result<Parts<&'a RawValue>, OpenApiError> {
    let part = |name: &str| {
        let part = members.get(name).map(|part| part.get());
        let part = part.map(serde_json::from_str::<Option<Members<'a>>>);
        Ok::<_, OpenApiError>(part.transpose()?.flatten().unwrap_or_default())
    };
    Ok(Parts {
        paths: part(PATHS)?,
        definitions: part(DEFINITIONS)?,
    })
}

/// The parts of gnostic's `openapi.v2.Document` that grow.
#[derive(Clone, PartialEq, Message)]
struct ProtobufDocument {
    #[prost(message, optional, tag = "8")]
    paths: Option<ProtobufPaths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<ProtobufDefinitions>,
}

/// Its entries are `NamedPathItem`s, which are written as those of a map.
#[derive(Clone, PartialEq, Message)]
struct ProtobufPaths {
    #[prost(btree_map = "string, bytes", tag = "2")]
    path: BTreeMap<String, Vec<u8>>,
}

/// As [`ProtobufPaths`], of `NamedSchema`s.
#[derive(Clone, PartialEq, Message)]
struct ProtobufDefinitions {
    #[prost(btree_map = "string, bytes", tag = "1")]
    additional_properties: BTreeMap<String, Vec<u8>>,
}

fn read_protobuf(body: &[u8]) -> Result<Parts<Vec<u8>>, OpenApiError> {
    let document = ProtobufDocument::decode(body)?;
    let definitions = document.definitions.unwrap_or_default();
    Ok(Parts {
        paths: document.paths.unwrap_or_default().path,
        definitions: definitions.additional_properties,
    })
}

fn write_protobuf(parts: Parts<Vec<u8>>) -> Vec<u8> {
    let document = ProtobufDocument {
        paths: Some(ProtobufPaths { path: parts.paths }),
        definitions: Some(ProtobufDefinitions {
            additional_properties: parts.definitions,
        }),
    };
    document.encode_to_vec()
}

#[cfg(test)]
mod tests;
