//! Parses an event in JSON. Only the needed fields are parsed; the rest of the object is skipped.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ObjectEvent, TABLE, UnknownFrame, kind, revision};

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
    /// Of a `Table`. Other kinds may have a field of this name too.
    #[serde(borrow)]
    rows: Option<&'a RawValue>,
}

/// A row of a `Table`; without an object if the client asked for none.
#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, default)]
    object: Option<RowObject<'a>>,
}

#[derive(Deserialize)]
struct RowObject<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
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
        rows,
    } = line.object;
    let revision = revision(&metadata.resource_version)?;
    let named = match rows.filter(|_| object_kind == TABLE) {
        Some(rows) => row_metadata(rows)?,
        None => metadata,
    };
    Ok(ObjectEvent {
        kind: kind(&line.kind)?,
        revision,
        namespace: named.namespace,
        name: named.name,
        api_version,
        object_kind,
    })
}

/// What the one row of an event's table says of its object.
fn row_metadata(rows: &RawValue) -> Result<Metadata<'_>, UnknownFrame> {
    let rows: [Row<'_>; 1] = serde_json::from_str(rows.get()).map_err(|_| UnknownFrame)?;
    let [row] = rows;
    Ok(row.object.map(|object| object.metadata).unwrap_or_default())
}
