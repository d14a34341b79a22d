//! Takes the answer to a watch apart while it passes: one frame, one event. Pure.
//!
//! Invariants: no byte is held up, these are copies. The same bytes give the same events however they were split. At
//! most one frame of at most [`LIMIT`] bytes is kept. What is too large or cannot be read makes everything after it
//! unknown: there is no way to find the next frame's beginning again that could be relied on.

mod border;
mod json;
pub(in crate::watches) mod protobuf;

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

/// Longest frame that is read: etcd takes objects of 1.5 MiB, and Base64 and escapes make JSON longer.
pub const LIMIT: usize = 4 << 20;

pub use border::Border;

/// How events are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// A big-endian length of four bytes, and so many bytes of a protobuf `metav1.WatchEvent`.
    Protobuf,
}

impl Format {
    /// By an answer's headers; none if it is in another format, CBOR for example, or compressed.
    pub fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        Self::of(content_type).filter(|_| !headers.contains_key(CONTENT_ENCODING))
    }

    fn of(content_type: &str) -> Option<Self> {
        let mut parts = content_type.split(';').map(str::trim);
        match parts.next()? {
            "application/json" => Some(Format::Json),
            "application/vnd.kubernetes.protobuf" if parts.any(|part| part == "stream=watch") => {
                Some(Format::Protobuf)
            }
            _ => None,
        }
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It was added, modified or deleted.
    Change,
    /// Nothing: everything up to the revision has been said.
    Bookmark,
}

/// What one frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// What happened.
    pub kind: Kind,
    /// The object's `metadata.resourceVersion`.
    pub revision: i64,
    /// The object's namespace; empty if it has none.
    pub namespace: Cow<'a, str>,
    /// The object's name; empty in bookmarks.
    pub name: Cow<'a, str>,
    /// The object's `apiVersion`.
    pub api_version: Cow<'a, str>,
    /// The object's `kind`.
    pub object_kind: Cow<'a, str>,
}

/// Something that is not understood; so is everything after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a watch event that is understood")]
pub struct Unknown;

/// The frames of one stream.
#[derive(Debug)]
pub struct Frames {
    format: Format,
    /// The beginning of a frame whose end has not passed yet.
    half: BytesMut,
}

impl Frames {
    /// At the beginning of a stream.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            half: BytesMut::new(),
        }
    }

    /// Whether what passed so far ends with a frame.
    pub fn at_border(&self) -> bool {
        self.half.is_empty()
    }

    /// Takes what just passed; `each` gets the event of every frame that it completes.
    pub fn take(
        &mut self,
        data: &Bytes,
        mut each: impl FnMut(Event<'_>) -> Result<(), Unknown>,
    ) -> Result<(), Unknown> {
        let mut rest = data.clone();
        if !self.half.is_empty() && !self.complete(&mut rest, &mut each)? {
            return Ok(());
        }
        while let Some(length) = self.format.frame(&rest, 0)? {
            let frame = rest.split_to(length);
            self.format.read(&frame, &mut each)?;
        }
        self.half = BytesMut::from(rest.chunk());
        Ok(())
    }

    /// Adds of `rest` what belongs to the half frame; whether that is a whole one now, and was read.
    fn complete(
        &mut self,
        rest: &mut Bytes,
        each: &mut impl FnMut(Event<'_>) -> Result<(), Unknown>,
    ) -> Result<bool, Unknown> {
        let before = self.half.len();
        // Of the announcement of a length too: where the frame ends is known only after that.
        self.half.extend_from_slice(rest);
        let Some(length) = self.format.frame(&self.half, before)? else {
            return Ok(false);
        };
        let frame = std::mem::take(&mut self.half).split_to(length).freeze();
        rest.advance(length.saturating_sub(before).min(rest.len()));
        self.format.read(&frame, each)?;
        Ok(true)
    }
}

impl Format {
    /// The length of the first frame of `data`, if it is whole; there was none in the first `before` bytes.
    fn frame(self, data: &[u8], before: usize) -> Result<Option<usize>, Unknown> {
        let length = match self {
            Format::Json => {
                let rest = data.get(before..).unwrap_or_default();
                let end = rest.iter().position(|byte| *byte == b'\n');
                end.map(|end| before + end + 1)
            }
            Format::Protobuf => match data.first_chunk() {
                None => None,
                Some(length) => {
                    let length = u32::from_be_bytes(*length) as usize;
                    if length > LIMIT {
                        return Err(Unknown);
                    }
                    Some(length + LENGTH).filter(|length| *length <= data.len())
                }
            },
        };
        match length.unwrap_or(data.len()) > LIMIT + LENGTH {
            true => Err(Unknown),
            false => Ok(length),
        }
    }

    fn read(
        self,
        frame: &Bytes,
        each: &mut impl FnMut(Event<'_>) -> Result<(), Unknown>,
    ) -> Result<(), Unknown> {
        match self {
            Format::Json => each(json::read(frame)?),
            Format::Protobuf => each(protobuf::read(&frame.slice(LENGTH..))?.event()?),
        }
    }
}

/// Bytes that announce the length of a protobuf frame.
const LENGTH: usize = 4;

/// `ERROR` ends a watch; what a type means that is not known is not known either.
fn kind(name: &str) -> Result<Kind, Unknown> {
    match name {
        "ADDED" | "MODIFIED" | "DELETED" => Ok(Kind::Change),
        "BOOKMARK" => Ok(Kind::Bookmark),
        _ => Err(Unknown),
    }
}

pub(in crate::watches) fn revision(text: &str) -> Result<i64, Unknown> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let revision = text.parse().ok().filter(|revision| digits && *revision > 0);
    revision.ok_or(Unknown)
}

#[cfg(test)]
mod tests;
