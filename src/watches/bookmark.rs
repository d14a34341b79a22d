//! Writes a BOOKMARK event as kube-apiserver writes it. Pure.

use bytes::Bytes;
use minicbor::Encoder;
use minicbor::data::Tag;
use prost::Message;
use serde_json::json;

use super::follower::ObjectType;
use super::frames::{FrameFormat, TABLE, protobuf};
use crate::kube::envelope;

/// The kind of the objects in tables, and of a watch that asks for metadata alone.
pub const PARTIAL_METADATA: &str = "PartialObjectMetadata";
/// "This is CBOR": before an event, and before the object in it.
const SELF_DESCRIBED: Tag = Tag::new(55799);

/// A frame with a bookmark: its client has seen everything up to `revision`. `object_type`: of the stream's objects.
/// `None`: kube-apiserver sends no such objects in this format.
pub fn frame(format: FrameFormat, object_type: &ObjectType, revision: i64) -> Option<Bytes> {
    let is_table = object_type.kind == TABLE;
    match format {
        FrameFormat::Json if is_table => Some(table(object_type, revision)),
        FrameFormat::Json => Some(in_json(object_type, revision)),
        _ if is_table => None,
        FrameFormat::Protobuf => in_protobuf(object_type, revision),
        FrameFormat::Cbor => in_cbor(object_type, revision),
    }
}

fn in_json(object_type: &ObjectType, revision: i64) -> Bytes {
    let ObjectType { api_version, kind } = object_type;
    let metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    line(&json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
}

/// The cells of kube-apiserver's own bookmarks are those of an empty object.
fn table(object_type: &ObjectType, revision: i64) -> Bytes {
    let ObjectType { api_version, kind } = object_type;
    let revision = revision.to_string();
    let metadata = json!({"resourceVersion": revision, "creationTimestamp": null});
    let object = json!({"kind": PARTIAL_METADATA, "apiVersion": api_version, "metadata": metadata});
    let rows = json!([{"cells": [], "object": object}]);
    line(
        &json!({"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": revision},
        "columnDefinitions": null, "rows": rows}),
    )
}

fn line(object: &serde_json::Value) -> Bytes {
    format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into()
}

fn in_protobuf(object_type: &ObjectType, revision: i64) -> Option<Bytes> {
    let ObjectType { api_version, kind } = object_type.clone();
    let object = protobuf::PartialObjectMetadata {
        metadata: Some(protobuf::ObjectMeta {
            resource_version: revision.to_string(),
            ..Default::default()
        }),
    };
    let envelope = protobuf::Envelope {
        type_meta: Some(protobuf::WireTypeMeta { api_version, kind }),
        raw: object.encode_to_vec().into(),
        ..Default::default()
    };
    let raw = envelope::wrap(&envelope).into();
    let event = protobuf::WatchEvent {
        kind: "BOOKMARK".to_owned(),
        object: Some(protobuf::RawExtension { raw }),
    };
    let event = event.encode_to_vec();
    let length = u32::try_from(event.len()).ok()?;
    Some([&length.to_be_bytes()[..], &event].concat().into())
}

fn in_cbor(object_type: &ObjectType, revision: i64) -> Option<Bytes> {
    let ObjectType { api_version, kind } = object_type;
    let revision = revision.to_string();
    let mut encoder = Encoder::new(Vec::new());
    let written = |encoder: &mut Encoder<Vec<u8>>| {
        encoder.tag(SELF_DESCRIBED)?.map(2)?;
        encoder.bytes(b"type")?.bytes(b"BOOKMARK")?;
        encoder.bytes(b"object")?.tag(SELF_DESCRIBED)?.map(3)?;
        encoder.bytes(b"kind")?.bytes(kind.as_bytes())?;
        encoder
            .bytes(b"apiVersion")?
            .bytes(api_version.as_bytes())?;
        encoder.bytes(b"metadata")?.map(1)?;
        encoder
            .bytes(b"resourceVersion")?
            .bytes(revision.as_bytes())?;
        Ok::<_, minicbor::encode::Error<std::convert::Infallible>>(())
    };
    written(&mut encoder).ok()?;
    Some(encoder.into_writer().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::frames::{EventKind, Frames};

    fn object_type(api_version: &str, kind: &str) -> ObjectType {
        ObjectType {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }
    }

    fn json_frame(object_type: &ObjectType) -> serde_json::Value {
        let frame = frame(FrameFormat::Json, object_type, 12).unwrap();
        let text = std::str::from_utf8(&frame).unwrap();
        assert!(text.ends_with("}\n") && text.matches('\n').count() == 1);
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn json_is_as_kube_apiserver_writes_it() {
        let value = json_frame(&object_type("v1", "ConfigMap"));
        assert_eq!(value["type"], "BOOKMARK");
        assert_eq!(value["object"]["metadata"]["resourceVersion"], "12");
    }

    #[test]
    fn a_table_has_one_row_whose_object_has_only_a_revision() {
        let object = &json_frame(&object_type("meta.k8s.io/v1", "Table"))["object"];
        assert_eq!(object["kind"], "Table");
        assert_eq!(object["metadata"]["resourceVersion"], "12");
        let row = &object["rows"][0]["object"];
        assert_eq!(row["kind"], "PartialObjectMetadata");
        assert_eq!(row["apiVersion"], "meta.k8s.io/v1");
        assert_eq!(row["metadata"]["resourceVersion"], "12");
        for format in [FrameFormat::Protobuf, FrameFormat::Cbor] {
            assert_eq!(
                frame(format, &object_type("meta.k8s.io/v1", "Table"), 12),
                None
            );
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for (format, api_version, kind) in [
            (FrameFormat::Json, "apps/v1", "Deployment"),
            (FrameFormat::Json, "meta.k8s.io/v1", "PartialObjectMetadata"),
            (FrameFormat::Json, "meta.k8s.io/v1", "Table"),
            (FrameFormat::Protobuf, "apps/v1", "Deployment"),
            (FrameFormat::Cbor, "apps/v1", "Deployment"),
        ] {
            let frame = frame(format, &object_type(api_version, kind), i64::MAX).unwrap();
            let mut frames = Frames::new(format);
            let mut read = 0;
            frames
                .take(&frame, |event| {
                    read += 1;
                    assert_eq!(
                        (event.kind, event.revision),
                        (EventKind::Bookmark, i64::MAX)
                    );
                    assert_eq!(
                        (&*event.api_version, &*event.object_kind),
                        (api_version, kind)
                    );
                    Ok(())
                })
                .unwrap();
            assert_eq!((read, frames.at_boundary()), (1, true), "{format:?} {kind}");
        }
    }
}
