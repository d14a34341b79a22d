//! Adds what peers list to a discovery document, in the format in which the local apiserver wrote it. Pure.

use super::document::{DiscoveryDocument, DocumentFormat, MergeError};
use super::peer_union::PeerUnion;
use super::{aggregated, legacy, protobuf};

/// Adds several unions, one after the other. As [`merge`].
pub fn merge_all<'a>(
    document: DiscoveryDocument<'_>,
    format: DocumentFormat,
    body: Option<&[u8]>,
    all: impl IntoIterator<Item = &'a PeerUnion>,
) -> Result<Option<Vec<u8>>, MergeError> {
    let mut merged: Option<Vec<u8>> = None;
    for others in all {
        let more = merge(document, format, merged.as_deref().or(body), others)?;
        merged = more.or(merged);
    }
    Ok(merged)
}

/// The local server's document with what it lacks; `None` where it lacks nothing, and the local bytes may pass as they
/// are. Without a local document ([`DiscoveryDocument::Group`], [`DiscoveryDocument::Resources`]) it is made from what others list fresh; `None`
/// where they do not.
pub fn merge(
    document: DiscoveryDocument<'_>,
    format: DocumentFormat,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, MergeError> {
    match format {
        DocumentFormat::Json => json(document, body, others),
        DocumentFormat::Yaml => {
            let body = body.map(from_yaml).transpose()?;
            let merged = json(document, body.as_deref(), others)?;
            Ok(merged.as_deref().map(to_yaml).transpose()?)
        }
        DocumentFormat::Protobuf => protobuf::merge(document, body, others),
    }
}

fn json(
    document: DiscoveryDocument<'_>,
    body: Option<&[u8]>,
    others: &PeerUnion,
) -> Result<Option<Vec<u8>>, MergeError> {
    Ok(match (document, body) {
        (DiscoveryDocument::Aggregated(part), Some(body)) => aggregated::merge(part, body, others)?,
        (DiscoveryDocument::Groups, Some(body)) => legacy::groups(body, others)?,
        (DiscoveryDocument::Group(name), body) => legacy::group(name, body, others)?,
        (DiscoveryDocument::Resources { group, version }, body) => {
            legacy::resources(group, version, body, others)?
        }
        (DiscoveryDocument::Aggregated(_) | DiscoveryDocument::Groups, None) => None,
    })
}

fn from_yaml(body: &[u8]) -> Result<Vec<u8>, MergeError> {
    let value: serde_json::Value = serde_yaml::from_slice(body)?;
    Ok(serde_json::to_vec(&value)?)
}

/// In the order of names, as kube-apiserver writes YAML.
fn to_yaml(body: &[u8]) -> Result<Vec<u8>, MergeError> {
    let value: serde_json::Value = serde_json::from_slice(body)?;
    Ok(serde_yaml::to_string(&value)?.into_bytes())
}
