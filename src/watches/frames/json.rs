//! Events in JSON. Only the needed fields are parsed; the rest of the object is skipped.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{
    Event, ObjectEvent, ObjectType, PARTIAL_METADATA, TABLE, UnknownFrame, kind, revision,
};

/// How an ERROR event begins.
pub(super) const ERROR: &[u8] = br#"{"type":"ERROR""#;

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
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    /// Of a `Table`. Other kinds may have a field of this name too.
    #[serde(borrow)]
    rows: Option<&'a RawValue>,
    /// Of a `Status`; as `rows`.
    #[serde(borrow)]
    code: Option<&'a RawValue>,
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
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

pub(super) fn read(line: &[u8]) -> Result<Event<'_>, UnknownFrame> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| UnknownFrame)?;
    let object = line.object;
    if line.kind == "ERROR" {
        let code = object.code.filter(|_| object.kind == "Status");
        let code = code.and_then(|code| serde_json::from_str(code.get()).ok());
        return Ok(Event::Error(code));
    }
    let revision = revision(&object.metadata.resource_version).ok_or(UnknownFrame)?;
    let name = match object.rows.filter(|_| object.kind == TABLE) {
        Some(rows) => name_in_row(rows)?,
        None => object.metadata.name,
    };
    Ok(Event::Object(ObjectEvent {
        kind: kind(&line.kind)?,
        revision,
        name,
        api_version: object.api_version,
        object_kind: object.kind,
    }))
}

/// The name that the one row of an event's table has.
fn name_in_row(rows: &RawValue) -> Result<Cow<'_, str>, UnknownFrame> {
    let [row]: [Row<'_>; 1] = serde_json::from_str(rows.get()).map_err(|_| UnknownFrame)?;
    let name = row.object.map(|object| object.metadata.name);
    Ok(name.unwrap_or_default())
}

pub(super) fn bookmark(ObjectType { api_version, kind }: &ObjectType, revision: i64) -> Bytes {
    let revision = revision.to_string();
    let metadata = json!({"resourceVersion": revision, "creationTimestamp": null});
    let object =
        |kind: &str| json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    if kind != TABLE {
        return line("BOOKMARK", &object(kind));
    }
    // The cells of kube-apiserver's own bookmarks are those of an empty object.
    let rows = json!([{"cells": [], "object": object(PARTIAL_METADATA)}]);
    line(
        "BOOKMARK",
        &json!({"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": revision},
        "columnDefinitions": null, "rows": rows}),
    )
}

/// `status` may have more than one line.
pub(super) fn error(status: &[u8]) -> Option<Bytes> {
    Some(line("ERROR", &serde_json::from_slice(status).ok()?))
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}
