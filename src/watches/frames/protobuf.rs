//! Events in protobuf: a length, and a bare `metav1.WatchEvent`, whose object is in the envelope that Kubernetes puts
//! around all objects: `k8s\0` and a `runtime.Unknown`. Only the fields that are needed are looked at, and of the object
//! nothing is copied but them.

use std::borrow::Cow;

use bytes::{Buf, Bytes};
use k8s_pb::apimachinery::pkg::apis::meta::v1::Status;
use k8s_pb::apimachinery::pkg::runtime::TypeMeta;
use prost::Message;

use super::{Event, ObjectEvent, ObjectType, UnknownFrame, kind, revision};
use crate::kube::envelope::{MAGIC, wrap_object};
use crate::kube::media_type;

/// Bytes of the length prefix of a frame.
pub(super) const LENGTH: usize = 4;
/// How an ERROR event begins, after its length: the first field of a `metav1.WatchEvent`.
pub(super) const ERROR: &[u8] = b"\x0a\x05ERROR";

/// `metav1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(message, optional, tag = "2")]
    pub(super) object: Option<RawExtension>,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) raw: Bytes,
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub(super) type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) raw: Bytes,
    #[prost(string, tag = "3")]
    pub(super) content_encoding: String,
    #[prost(string, tag = "4")]
    pub(super) content_type: String,
}

/// The first field, which all objects have in common.
#[derive(Clone, PartialEq, Message)]
struct PartialObjectMetadata {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

/// The needed fields of `metav1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "6")]
    resource_version: String,
}

pub(super) fn read(frame: &Bytes) -> Result<Event<'static>, UnknownFrame> {
    let mut frame = frame.clone();
    frame.try_get_u32().map_err(|_| UnknownFrame)?;
    let event: WatchEvent = decode(frame)?;
    let mut raw = event.object.ok_or(UnknownFrame)?.raw;
    if !raw.starts_with(MAGIC) {
        return Err(UnknownFrame);
    }
    raw.advance(MAGIC.len());
    let envelope: Envelope = decode(raw)?;
    if !envelope.content_encoding.is_empty()
        || !matches!(&*envelope.content_type, "" | media_type::PROTOBUF)
    {
        return Err(UnknownFrame);
    }
    let object_type = envelope.type_meta.ok_or(UnknownFrame)?;
    if event.kind == "ERROR" {
        let status: Status = decode(envelope.raw)?;
        let code = status.code.filter(|_| object_type.kind() == "Status");
        return Ok(Event::Error(code));
    }
    let object: PartialObjectMetadata = decode(envelope.raw)?;
    let metadata = object.metadata.ok_or(UnknownFrame)?;
    Ok(Event::Object(ObjectEvent {
        kind: kind(&event.kind)?,
        revision: revision(&metadata.resource_version).ok_or(UnknownFrame)?,
        name: Cow::Owned(metadata.name),
        api_version: Cow::Owned(object_type.api_version.unwrap_or_default()),
        object_kind: Cow::Owned(object_type.kind.unwrap_or_default()),
    }))
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, UnknownFrame> {
    M::decode(bytes).map_err(|_| UnknownFrame)
}

pub(super) fn bookmark(object_type: &ObjectType, revision: i64) -> Option<Bytes> {
    let object = PartialObjectMetadata {
        metadata: Some(ObjectMeta {
            resource_version: revision.to_string(),
            ..Default::default()
        }),
    };
    let ObjectType { api_version, kind } = object_type;
    frame("BOOKMARK", wrap_object(api_version, kind, &object).into())
}

pub(super) fn error(status: &[u8]) -> Option<Bytes> {
    let raw = Bytes::copy_from_slice(status);
    frame("ERROR", raw).filter(|_| status.starts_with(MAGIC))
}

/// `raw`: the object in its envelope.
pub(super) fn frame(kind: &str, raw: Bytes) -> Option<Bytes> {
    let event = WatchEvent {
        kind: kind.to_owned(),
        object: Some(RawExtension { raw }),
    };
    let event = event.encode_to_vec();
    let length = u32::try_from(event.len()).ok()?;
    Some([&length.to_be_bytes()[..], &event].concat().into())
}
