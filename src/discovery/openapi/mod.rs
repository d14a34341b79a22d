//! Adds the paths that peers serve to OpenAPI documents. Pure.
//!
//! The local document stays as it is, entry for entry and in its order. What it lacks comes after it: from peers, the
//! first one that has an entry gives it. Only two parts grow, `paths` and `definitions`; everything else (`info`,
//! `securityDefinitions`, …) is local. Nothing is parsed deeper than these two: a document has megabytes.
//!
//! A path that somebody else serves counts only if it is wanted, so that custom resources that were deleted since the
//! peer's document was read do not linger. A peer that gives a path gives all definitions that are lacking. Following
//! the references of its paths would leave some out that nobody refers to, which do no harm, and could miss one, which
//! does: for one dangling reference kubectl rejects the whole document.
//!
//! A definition that both have stays local, even if the peer's version knows more fields: then what is added is
//! described as far as the local server could describe it.

mod json;
mod parts;
mod path;
mod protobuf;
#[cfg(test)]
mod tests;

pub use path::OpenApiPath;

/// The OpenAPI documents that are merged, by endpoint and format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
pub enum OpenApiReadError {
    /// Not JSON, or no object where there should be one.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Not protobuf.
    #[error("{0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A field is cut off or of a kind that the format does not have.
    #[error("not a field of an OpenAPI document")]
    Field,
}

/// Which document cannot be read, and why.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiMergeError {
    /// The local one: nothing can be added to it.
    #[error("the local OpenAPI document cannot be read: {0}")]
    Local(#[source] OpenApiReadError),
    /// That of this peer, counted from 0; without it the others' could still be added.
    #[error("a peer's OpenAPI document cannot be read: {1}")]
    Peer(usize, #[source] OpenApiReadError),
}

/// Adds to the local document what it lacks of the peers' documents, which are in the same form, the best first.
/// `None`: nothing, the local bytes pass as they are.
pub fn merge(
    format: OpenApiFormat,
    local: &[u8],
    peers: &[&[u8]],
    wanted: impl Fn(OpenApiPath<'_>) -> bool,
) -> Result<Option<Vec<u8>>, OpenApiMergeError> {
    let wanted = |path: &str| match OpenApiPath::parse(path) {
        // What describes a group and nothing in it has a v3 document too, but is not found at peers.
        Some(place) if format == OpenApiFormat::V3Index && place.version.is_empty() => false,
        Some(place) => wanted(place),
        None => false,
    };
    match format {
        OpenApiFormat::V2Json | OpenApiFormat::V3Index => {
            let document = json::JsonDocument::read(local).map_err(OpenApiMergeError::Local)?;
            let peers = read_all(peers, |peer| Ok(json::JsonDocument::read(peer)?.parts))?;
            let added = document.parts.lacking(&peers, wanted);
            let merged = added.map(|added| document.with(&added)).transpose();
            merged.map_err(OpenApiMergeError::Local)
        }
        OpenApiFormat::V2Protobuf => {
            let document =
                protobuf::ProtobufDocument::read(local).map_err(OpenApiMergeError::Local)?;
            let peers = read_all(peers, |peer| {
                Ok(protobuf::ProtobufDocument::read(peer)?.parts)
            })?;
            let added = document.parts.lacking(&peers, wanted);
            Ok(added.map(|added| document.with(&added)))
        }
    }
}

fn read_all<'a, T>(
    peers: &[&'a [u8]],
    read: impl Fn(&'a [u8]) -> Result<T, OpenApiReadError>,
) -> Result<Vec<T>, OpenApiMergeError> {
    let numbered = peers.iter().enumerate();
    numbered
        .map(|(index, peer)| read(peer).map_err(|error| OpenApiMergeError::Peer(index, error)))
        .collect()
}
