//! Writes a BOOKMARK event as kube-apiserver writes it. Pure.

use bytes::Bytes;
use prost::Message;
use serde_json::json;

use super::frames::{FrameFormat, protobuf};
use crate::kube::envelope;

/// A frame with a bookmark: its client has seen everything up to `revision`. `api_version`, `kind`: the objects' type.
pub fn frame(format: FrameFormat, api_version: &str, kind: &str, revision: i64) -> Bytes {
    match format {
        FrameFormat::Json => in_json(api_version, kind, revision),
        FrameFormat::Protobuf => in_protobuf(api_version, kind, revision),
    }
}

fn in_json(api_version: &str, kind: &str, revision: i64) -> Bytes {
    let metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into()
}

fn in_protobuf(api_version: &str, kind: &str, revision: i64) -> Bytes {
    let object = protobuf::PartialObjectMetadata {
        metadata: Some(protobuf::ObjectMeta {
            resource_version: revision.to_string(),
            ..Default::default()
        }),
    };
    let envelope = protobuf::Envelope {
        type_meta: Some(protobuf::WireTypeMeta {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }),
        raw: object.encode_to_vec().into(),
        ..Default::default()
    };
    let raw = envelope::wrap(&envelope).into();
    let event = protobuf::WatchEvent {
        kind: "BOOKMARK".to_owned(),
        object: Some(protobuf::RawExtension { raw }),
    };
    let event = event.encode_to_vec();
    // Never: the strings come from headers and are short.
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &event].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::frames::{EventKind, Frames};

    #[test]
    fn json_is_as_kube_apiserver_writes_it() {
        let frame = frame(FrameFormat::Json, "v1", "ConfigMap", 12);
        let text = std::str::from_utf8(&frame).unwrap();
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(text.ends_with("}\n") && text.matches('\n').count() == 1);
        assert_eq!(value["type"], "BOOKMARK");
        assert_eq!(value["object"]["metadata"]["resourceVersion"], "12");
    }

    #[test]
    fn what_is_written_can_be_read() {
        for format in [FrameFormat::Json, FrameFormat::Protobuf] {
            let frame = frame(format, "apps/v1", "Deployment", i64::MAX);
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
                        ("apps/v1", "Deployment")
                    );
                    Ok(())
                })
                .unwrap();
            assert_eq!((read, frames.at_boundary()), (1, true));
        }
    }
}
