//! Splits the response to a watch into events while it is forwarded: one frame, one event. Pure.
//!
//! Invariants: forwarding is never delayed, the bytes are copies. The same bytes give the same events however they are
//! split. At most one frame of at most [`LIMIT`] bytes is buffered. After a frame that is too large or cannot be parsed
//! nothing more is parsed: the start of the next frame cannot be found reliably.

mod boundary;
mod cbor;
pub mod first_event;
mod json;
pub(in crate::watches) mod protobuf;

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};

use self::cbor::ItemScanner;
use crate::kube::media_type;

/// Longest frame that is read: etcd takes objects of 1.5 MiB, and Base64 and escapes make JSON longer.
pub const LIMIT: usize = 4 << 20;

/// The kind of the objects of a watch that asks for tables.
pub const TABLE: &str = "Table";

pub use boundary::FrameBoundary;

/// The framing of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFormat {
    /// One JSON object per line.
    Json,
    /// A big-endian length of four bytes, then a protobuf `metav1.WatchEvent` of that length.
    Protobuf,
    /// One CBOR item after the other.
    Cbor,
}

impl FrameFormat {
    /// By a response's headers; `None` for other formats and compressed bodies.
    pub fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let format = Self::of_content_type(headers.get(CONTENT_TYPE)?);
        format.filter(|_| !headers.contains_key(CONTENT_ENCODING))
    }

    /// By a response's `Content-Type` alone.
    pub fn of_content_type(content_type: &HeaderValue) -> Option<Self> {
        Self::of(content_type.to_str().ok()?)
    }

    fn of(content_type: &str) -> Option<Self> {
        let mut parts = content_type.split(';').map(str::trim);
        match parts.next()? {
            media_type::JSON => Some(FrameFormat::Json),
            media_type::PROTOBUF if parts.any(|part| part == "stream=watch") => {
                Some(FrameFormat::Protobuf)
            }
            media_type::CBOR_SEQUENCE => Some(FrameFormat::Cbor),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The object was added, modified or deleted.
    Change,
    /// All events up to the revision have been sent.
    Bookmark,
}

/// The event in one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent<'a> {
    pub kind: EventKind,
    /// `metadata.resourceVersion`.
    pub revision: i64,
    /// Empty for cluster-scoped objects.
    pub namespace: Cow<'a, str>,
    /// Empty in bookmarks, and in tables without objects.
    pub name: Cow<'a, str>,
    pub api_version: Cow<'a, str>,
    pub object_kind: Cow<'a, str>,
}

/// A frame that cannot be parsed. Nothing after it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the watch event cannot be parsed")]
pub struct UnknownFrame;

/// Parses the frames of one stream.
#[derive(Debug)]
pub struct Frames {
    format: FrameFormat,
    /// The start of a frame whose end was not forwarded yet.
    half: BytesMut,
    scanner: ItemScanner,
}

impl Frames {
    pub fn new(format: FrameFormat) -> Self {
        Self {
            format,
            half: BytesMut::new(),
            scanner: ItemScanner::default(),
        }
    }

    /// Memory of the half frame.
    pub fn kept(&self) -> usize {
        self.half.capacity()
    }

    /// Whether the bytes so far end with a frame.
    pub fn at_boundary(&self) -> bool {
        self.half.is_empty()
    }

    /// Takes the next bytes of the stream; `each` gets the event of every frame that they complete.
    pub fn take(
        &mut self,
        data: &Bytes,
        mut each: impl FnMut(ObjectEvent<'_>) -> Result<(), UnknownFrame>,
    ) -> Result<(), UnknownFrame> {
        let mut rest = data.clone();
        if !self.half.is_empty() && !self.complete(&mut rest, &mut each)? {
            return Ok(());
        }
        while let Some(length) = self.format.frame(&mut self.scanner, &rest, 0)? {
            let frame = rest.split_to(length);
            self.format.read(&frame, &mut each)?;
        }
        self.half = BytesMut::from(rest.chunk());
        Ok(())
    }

    /// Moves bytes from `rest` to the half frame until it is complete, then reads it. Returns whether it is complete.
    fn complete(
        &mut self,
        rest: &mut Bytes,
        each: &mut impl FnMut(ObjectEvent<'_>) -> Result<(), UnknownFrame>,
    ) -> Result<bool, UnknownFrame> {
        let before = self.half.len();
        // The length prefix may be cut too: the end of the frame is known only after it.
        self.half.extend_from_slice(rest);
        let frame = self.format.frame(&mut self.scanner, &self.half, before)?;
        let Some(length) = frame else {
            return Ok(false);
        };
        let frame = std::mem::take(&mut self.half).split_to(length).freeze();
        rest.advance(length.saturating_sub(before).min(rest.len()));
        self.format.read(&frame, each)?;
        Ok(true)
    }
}

impl FrameFormat {
    /// The length of the first frame of `data`, if it is complete. No frame ends in the first `before` bytes, which
    /// `scanner` has seen.
    fn frame(
        self,
        scanner: &mut ItemScanner,
        data: &[u8],
        before: usize,
    ) -> Result<Option<usize>, UnknownFrame> {
        let length = match self {
            FrameFormat::Cbor => {
                let end = scanner.end(data.get(before..).unwrap_or_default())?;
                end.map(|end| before + end)
            }
            FrameFormat::Json => {
                let rest = data.get(before..).unwrap_or_default();
                let end = rest.iter().position(|byte| *byte == b'\n');
                end.map(|end| before + end + 1)
            }
            FrameFormat::Protobuf => match data.first_chunk() {
                None => None,
                Some(length) => {
                    let length = u32::from_be_bytes(*length) as usize;
                    if length > LIMIT {
                        return Err(UnknownFrame);
                    }
                    Some(length + LENGTH).filter(|length| *length <= data.len())
                }
            },
        };
        match length.unwrap_or(data.len()) > LIMIT + LENGTH {
            true => Err(UnknownFrame),
            false => Ok(length),
        }
    }

    fn read(
        self,
        frame: &Bytes,
        each: &mut impl FnMut(ObjectEvent<'_>) -> Result<(), UnknownFrame>,
    ) -> Result<(), UnknownFrame> {
        match self {
            FrameFormat::Json => each(json::read(frame)?),
            FrameFormat::Protobuf => each(protobuf::read(&frame.slice(LENGTH..))?.event()?),
            FrameFormat::Cbor => each(cbor::read(frame)?),
        }
    }
}

/// Bytes of the length prefix of a protobuf frame.
const LENGTH: usize = 4;

/// `ERROR` ends a watch. Other event types are unknown.
fn kind(name: &str) -> Result<EventKind, UnknownFrame> {
    match name {
        "ADDED" | "MODIFIED" | "DELETED" => Ok(EventKind::Change),
        "BOOKMARK" => Ok(EventKind::Bookmark),
        _ => Err(UnknownFrame),
    }
}

pub(in crate::watches) fn revision(text: &str) -> Result<i64, UnknownFrame> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let revision = text.parse().ok().filter(|revision| digits && *revision > 0);
    revision.ok_or(UnknownFrame)
}

#[cfg(test)]
mod tests;
