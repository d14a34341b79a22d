//! Parses an event in JSON. Only the needed fields are parsed; the rest of the object is skipped.

use std::borrow::Cow;

use serde::Deserialize;

use super::{ObjectEvent, UnknownFrame, kind, revision};

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

pub(super) fn read(line: &[u8]) -> Result<ObjectEvent<'_>, UnknownFrame> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| UnknownFrame)?;
    let Object {
        api_version,
        kind: object_kind,
        metadata,
    } = line.object;
    Ok(ObjectEvent {
        kind: kind(&line.kind)?,
        revision: revision(&metadata.resource_version)?,
        namespace: metadata.namespace,
        name: metadata.name,
        api_version,
        object_kind,
    })
}
