//! An event in protobuf: a bare `metav1.WatchEvent`, whose object is in the envelope that Kubernetes puts around all
//! objects: `k8s\0` and a `runtime.Unknown`. Only the fields that are needed are looked at, and of the object nothing
//! is copied but them.

use std::borrow::Cow;

use bytes::{Buf, Bytes};
use prost::Message;

use super::{ObjectEvent, UnknownFrame, kind, revision};
use crate::kube::envelope::MAGIC;
use crate::kube::media_type;

/// `metav1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct WatchEvent {
    #[prost(string, tag = "1")]
    pub(in crate::watches) kind: String,
    #[prost(message, optional, tag = "2")]
    pub(in crate::watches) object: Option<RawExtension>,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(in crate::watches) raw: Bytes,
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub(in crate::watches) type_meta: Option<WireTypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(in crate::watches) raw: Bytes,
    #[prost(string, tag = "3")]
    pub(in crate::watches) content_encoding: String,
    #[prost(string, tag = "4")]
    pub(in crate::watches) content_type: String,
}

/// `runtime.WireTypeMeta`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct WireTypeMeta {
    #[prost(string, tag = "1")]
    pub(in crate::watches) api_version: String,
    #[prost(string, tag = "2")]
    pub(in crate::watches) kind: String,
}

/// The first field, which all objects have in common.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct PartialObjectMetadata {
    #[prost(message, optional, tag = "1")]
    pub(in crate::watches) metadata: Option<ObjectMeta>,
}

/// The needed fields of `metav1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::watches) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(in crate::watches) name: String,
    #[prost(string, tag = "3")]
    pub(in crate::watches) namespace: String,
    #[prost(string, tag = "6")]
    pub(in crate::watches) resource_version: String,
}

pub(super) struct DecodedEvent {
    kind: String,
    type_meta: WireTypeMeta,
    metadata: ObjectMeta,
}

/// Reads a frame without its length prefix.
pub(super) fn read(frame: &Bytes) -> Result<DecodedEvent, UnknownFrame> {
    let event: WatchEvent = decode(frame.clone())?;
    let mut raw = event.object.ok_or(UnknownFrame)?.raw;
    if !raw.starts_with(MAGIC) {
        return Err(UnknownFrame);
    }
    raw.advance(MAGIC.len());
    let envelope: Envelope = decode(raw)?;
    if !envelope.content_encoding.is_empty() || !is_protobuf(&envelope.content_type) {
        return Err(UnknownFrame);
    }
    let object: PartialObjectMetadata = decode(envelope.raw)?;
    Ok(DecodedEvent {
        kind: event.kind,
        type_meta: envelope.type_meta.ok_or(UnknownFrame)?,
        metadata: object.metadata.ok_or(UnknownFrame)?,
    })
}

impl DecodedEvent {
    pub(super) fn event(&self) -> Result<ObjectEvent<'_>, UnknownFrame> {
        Ok(ObjectEvent {
            kind: kind(&self.kind)?,
            revision: revision(&self.metadata.resource_version)?,
            namespace: Cow::Borrowed(&self.metadata.namespace),
            name: Cow::Borrowed(&self.metadata.name),
            api_version: Cow::Borrowed(&self.type_meta.api_version),
            object_kind: Cow::Borrowed(&self.type_meta.kind),
        })
    }
}

fn is_protobuf(content_type: &str) -> bool {
    matches!(content_type, "" | media_type::PROTOBUF)
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, UnknownFrame> {
    M::decode(bytes).map_err(|_| UnknownFrame)
}
