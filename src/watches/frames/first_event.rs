//! Looks at the first event of a watch before it is passed on: an ERROR may say that the watch begins at a revision that
//! is too old. Pure.
//!
//! Bytes that cannot begin an ERROR event pass at once and are not copied. The bytes of an ERROR are kept until its frame
//! is complete, at most [`LIMIT`] of them and those of one more piece.

use bytes::{Bytes, BytesMut};
use k8s_pb::apimachinery::pkg::apis::meta::v1::Status;
use prost::Message;
use serde::Deserialize;

use super::cbor::{self, ItemScanner};
use super::{FrameFormat, LENGTH, protobuf};
use crate::kube::envelope;

/// Longest ERROR event that is read. kube-apiserver's own are below 1 KiB.
pub const LIMIT: usize = 64 << 10;

/// How an ERROR event begins in JSON.
const JSON: &[u8] = br#"{"type":"ERROR""#;
/// How an ERROR event begins in protobuf, after its length: the first field of a `metav1.WatchEvent`.
const PROTOBUF: &[u8] = b"\x0a\x05ERROR";

/// How an ERROR event may begin in CBOR: its fields come in any order.
const CBOR: [&[u8]; 2] = [
    b"\xd9\xd9\xf7\xa2\x44type\x45ERROR",
    b"\xd9\xd9\xf7\xa2\x46object",
];

/// Looks at the first event of one stream.
#[derive(Debug)]
pub struct FirstEvent {
    format: FrameFormat,
    kept: BytesMut,
    scanner: ItemScanner,
}

/// What the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstLook {
    /// The next bytes decide.
    Undecided,
    /// No ERROR event; all bytes so far.
    NoError(Bytes),
    /// An ERROR event with the code of its status, if that can be read; all bytes so far.
    Error(Option<i32>, Bytes),
}

impl FirstEvent {
    pub fn new(format: FrameFormat) -> Self {
        Self {
            format,
            kept: BytesMut::new(),
            scanner: ItemScanner::default(),
        }
    }

    /// Whether bytes are kept.
    pub fn is_begun(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes the kept bytes.
    fn take_kept(&mut self) -> Bytes {
        std::mem::take(&mut self.kept).freeze()
    }

    /// Takes the next bytes of the stream. To be called until they are decided.
    pub fn look(&mut self, data: Bytes) -> FirstLook {
        if !self.is_begun() && !self.format.may_begin_error(&data) {
            return FirstLook::NoError(data);
        }
        let before = self.kept.len();
        self.kept.extend_from_slice(&data);
        if !self.format.may_begin_error(&self.kept) {
            return FirstLook::NoError(self.take_kept());
        }
        let frame = self.format.frame(&mut self.scanner, &self.kept, before);
        let error = match frame {
            Ok(None) if self.kept.len() <= LIMIT => return FirstLook::Undecided,
            Ok(Some(length)) if length <= LIMIT => {
                let frame = self.kept.get(..length).unwrap_or_default();
                self.format.error(frame)
            }
            // It may still turn out to be no ERROR.
            Ok(_) | Err(_) if !self.format.shows_type(&self.kept) => return FirstLook::Undecided,
            Ok(_) | Err(_) => self.format.unread_error(),
        };
        self.decided(error)
    }

    /// What the kept bytes are if no others come.
    pub fn give_up(&mut self) -> FirstLook {
        let error = self.format.unread_error();
        self.decided(error)
    }

    fn decided(&mut self, error: Option<Option<i32>>) -> FirstLook {
        match error {
            Some(code) => FirstLook::Error(code, self.take_kept()),
            None => FirstLook::NoError(self.take_kept()),
        }
    }
}

impl FrameFormat {
    /// Whether a stream that begins with `data` may begin with an ERROR event.
    fn may_begin_error(self, data: &[u8]) -> bool {
        match self {
            FrameFormat::Json => is_prefix(data, JSON),
            FrameFormat::Protobuf => is_prefix(data.get(LENGTH..).unwrap_or_default(), PROTOBUF),
            FrameFormat::Cbor => CBOR.iter().any(|beginning| is_prefix(data, beginning)),
        }
    }

    /// Whether a frame that begins with `data`, as an ERROR event may, shows its type.
    fn shows_type(self, data: &[u8]) -> bool {
        self != FrameFormat::Protobuf || data.len() >= LENGTH + PROTOBUF.len()
    }

    /// The ERROR event with the `Status` that is the body of an answer; `None`: the body has another format.
    pub fn error_event(self, status: &[u8]) -> Option<Bytes> {
        match self {
            FrameFormat::Json => {
                // One line, whatever it was before.
                let status: serde_json::Value = serde_json::from_slice(status).ok()?;
                Some(format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n").into())
            }
            FrameFormat::Protobuf if status.starts_with(envelope::MAGIC) => {
                let raw = Bytes::copy_from_slice(status);
                let event = protobuf::WatchEvent {
                    kind: "ERROR".to_owned(),
                    object: Some(protobuf::RawExtension { raw }),
                };
                let event = event.encode_to_vec();
                let length = u32::try_from(event.len()).ok()?;
                Some([&length.to_be_bytes()[..], &event].concat().into())
            }
            FrameFormat::Cbor if status.starts_with(cbor::SELF_DESCRIBED) => {
                Some([CBOR[0], b"\x46object", status].concat().into())
            }
            FrameFormat::Protobuf | FrameFormat::Cbor => None,
        }
    }

    /// The code of the status in an ERROR event; `None`: the event is no ERROR.
    fn error(self, frame: &[u8]) -> Option<Option<i32>> {
        match self {
            FrameFormat::Json => Some(code_of_json(frame)),
            FrameFormat::Protobuf => {
                let event = frame.get(LENGTH..).unwrap_or_default();
                // The frame may be shorter than what was looked at.
                let is_error = event.starts_with(PROTOBUF);
                is_error.then(|| code_of_protobuf(event))
            }
            FrameFormat::Cbor => cbor::error(frame),
        }
    }

    /// What an event is that cannot be read, as [`Self::error`] says it. Other events begin like an ERROR in CBOR.
    fn unread_error(self) -> Option<Option<i32>> {
        (self != FrameFormat::Cbor).then_some(None)
    }
}

/// Whether the shorter of both begins the longer.
fn is_prefix(data: &[u8], beginning: &[u8]) -> bool {
    data.iter().zip(beginning).all(|(a, b)| a == b)
}

#[derive(Deserialize)]
struct Line {
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    kind: String,
    code: i32,
}

fn code_of_json(line: &[u8]) -> Option<i32> {
    let Line { object } = serde_json::from_slice(line).ok()?;
    (object.kind == "Status").then_some(object.code)
}

fn code_of_protobuf(frame: &[u8]) -> Option<i32> {
    let event = protobuf::WatchEvent::decode(frame).ok()?;
    let unknown = envelope::unwrap(&event.object?.raw).ok()?;
    let is_status = unknown.type_meta?.kind? == "Status";
    let status = Status::decode(unknown.raw?.as_slice()).ok()?;
    status.code.filter(|_| is_status)
}

#[cfg(test)]
mod tests;
