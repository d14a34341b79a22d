//! Reads the response to a watch: one frame, one event. Pure. Everything that looks at a watch looks at it through
//! [`FrameFormat`] (what a frame says) and [`Frames`] (where frames end, and what those of a stream say); [`first_event`]
//! looks at the first one before it is passed on.
//!
//! Invariants: frames pass on as soon as they are whole, large ones as they come. The same bytes give the same events however
//! they are split. At most one frame of at most [`LIMIT`] bytes is buffered. After a frame that is too large or cannot be
//! parsed nothing more is parsed; where frames end is still known.

pub mod first_event;
mod json;
mod protobuf;

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};

use crate::kube::media_type;

/// Longest frame of which nothing is passed on before its end: where its server stops, another one can go on.
pub const HELD: usize = 64 << 10;
/// Longest frame that is read: etcd takes objects of 1.5 MiB, and Base64 and escapes make JSON longer.
pub const LIMIT: usize = 4 << 20;

/// The kind of the objects of a watch that asks for tables.
pub const TABLE: &str = "Table";
/// The kind of the objects in tables, and of a watch that asks for metadata alone.
pub const PARTIAL_METADATA: &str = "PartialObjectMetadata";

/// The framing of events. CBOR, which apiservers serve behind an alpha gate, is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameFormat {
    /// One JSON object per line.
    Json,
    /// A big-endian length of four bytes, then a protobuf `metav1.WatchEvent` of that length.
    Protobuf,
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    Object(ObjectEvent<'a>),
    /// It ends the watch. With the code of its `Status`, if that can be read: 410, if the watch is too old.
    Error(Option<i32>),
}

/// An event about an object, or about the type of the stream's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent<'a> {
    pub kind: EventKind,
    /// `metadata.resourceVersion`.
    pub revision: i64,
    /// Empty in bookmarks, and in tables without objects.
    pub name: Cow<'a, str>,
    pub api_version: Cow<'a, str>,
    pub object_kind: Cow<'a, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The object was added, modified or deleted.
    Change,
    /// All events up to the revision have been sent.
    Bookmark,
}

/// `apiVersion` and `kind` of a stream's objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectType {
    pub api_version: String,
    pub kind: String,
}

/// A frame that cannot be parsed. Nothing after it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the watch event cannot be parsed")]
pub struct UnknownFrame;

impl FrameFormat {
    /// By a response's headers; `None` for other formats and compressed bodies.
    pub fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let format = Self::of_content_type(headers.get(CONTENT_TYPE)?);
        format.filter(|_| !headers.contains_key(CONTENT_ENCODING))
    }

    /// By a response's `Content-Type` alone.
    pub fn of_content_type(content_type: &HeaderValue) -> Option<Self> {
        let mut parts = content_type.to_str().ok()?.split(';').map(str::trim);
        match parts.next()? {
            media_type::JSON => Some(FrameFormat::Json),
            media_type::PROTOBUF if parts.any(|part| part == "stream=watch") => {
                Some(FrameFormat::Protobuf)
            }
            _ => None,
        }
    }

    /// Reads a whole frame.
    fn read(self, frame: &Bytes) -> Result<Event<'_>, UnknownFrame> {
        match self {
            FrameFormat::Json => json::read(frame),
            FrameFormat::Protobuf => protobuf::read(frame),
        }
    }

    /// A frame with a bookmark, as kube-apiserver writes it: its client has seen everything up to `revision`.
    /// `object_type`: of the stream's objects. `None`: kube-apiserver sends no such objects in this format.
    pub fn bookmark(self, object_type: &ObjectType, revision: i64) -> Option<Bytes> {
        match self {
            FrameFormat::Json => Some(json::bookmark(object_type, revision)),
            FrameFormat::Protobuf if object_type.kind == TABLE => None,
            FrameFormat::Protobuf => protobuf::bookmark(object_type, revision),
        }
    }

    /// The ERROR event with the `Status` that is the body of an answer; `None`: the body has another format.
    pub fn error_event(self, status: &[u8]) -> Option<Bytes> {
        match self {
            FrameFormat::Json => json::error(status),
            FrameFormat::Protobuf => protobuf::error(status),
        }
    }

    /// The type of a stream's objects in this format if the client asked for tables or for metadata alone. `accept`: of
    /// the request.
    pub fn transformed(self, accept: Option<&HeaderValue>) -> Option<ObjectType> {
        let sub = match self {
            FrameFormat::Json => "json",
            FrameFormat::Protobuf => "vnd.kubernetes.protobuf",
        };
        let clauses = media_type::accepted(accept);
        // kube-apiserver knows both kinds for all of its resources, so it takes the first clause.
        let answered = clauses.iter().find(|clause| {
            matches!(clause.kind, "application" | "*") && (clause.sub == sub || clause.sub == "*")
        })?;
        let (kind, version) = (answered.value("as"), answered.value("v"));
        let known = [TABLE, PARTIAL_METADATA].contains(&kind)
            && answered.value("g") == "meta.k8s.io"
            && ["v1", "v1beta1"].contains(&version);
        known.then(|| ObjectType {
            api_version: format!("meta.k8s.io/{version}"),
            kind: kind.to_owned(),
        })
    }
}

/// How far a stream is in its current frame.
#[derive(Debug, Clone, Copy, Default, Hash)]
struct FrameEnd {
    /// Bytes of the length prefix so far, 0 between frames; of JSON, which has none, 1 within a line.
    begun: u8,
    /// The length, as far as its prefix has come; after that what is still to come of the frame.
    left: usize,
}

impl FrameEnd {
    /// Takes bytes up to the end of the frame. Returns how many, or `None` if it does not end in `data`.
    fn take(&mut self, format: FrameFormat, data: &[u8]) -> Option<usize> {
        match format {
            FrameFormat::Json => {
                let end = data.iter().position(|byte| *byte == b'\n');
                if !data.is_empty() {
                    self.begun = end.is_none().into();
                }
                end.map(|end| end + 1)
            }
            FrameFormat::Protobuf => {
                let mut taken = 0;
                for byte in data.iter().take(protobuf::LENGTH - usize::from(self.begun)) {
                    self.left = self.left << 8 | usize::from(*byte);
                    self.begun += 1;
                    taken += 1;
                }
                if usize::from(self.begun) < protobuf::LENGTH {
                    return None;
                }
                let there = self.left.min(data.len() - taken);
                self.left -= there;
                if self.left > 0 {
                    return None;
                }
                self.begun = 0;
                Some(taken + there)
            }
        }
    }

    /// Takes bytes that are not read.
    fn skip(&mut self, format: FrameFormat, mut data: &[u8]) {
        while let Some(end) = self.take(format, data) {
            data = data.get(end..).unwrap_or_default();
        }
    }
}

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFate {
    Passes,
    /// It is left out.
    LeftOut,
    /// It passes, and nothing after it is read.
    EndsReading,
}

/// Finds the frames of one stream and passes them on whole, up to [`HELD`] bytes. Reads them until one cannot be read; from
/// then on bytes pass as they come.
#[derive(Debug, Clone, Hash)]
pub struct Frames {
    pub format: FrameFormat,
    end: FrameEnd,
    /// The start of a frame whose end has not come yet.
    half: BytesMut,
    /// What is in `half` was passed on.
    is_half_passed: bool,
    is_read: bool,
}

impl Frames {
    pub fn new(format: FrameFormat) -> Self {
        Self {
            format,
            end: FrameEnd::default(),
            half: BytesMut::new(),
            is_half_passed: false,
            is_read: true,
        }
    }

    /// Memory of the half frame.
    pub fn kept(&self) -> usize {
        self.half.capacity()
    }

    /// Whether what was passed on ends with a frame.
    pub fn at_boundary(&self) -> bool {
        match self.half.is_empty() {
            true => self.is_read || self.end.begun == 0,
            false => !self.is_half_passed,
        }
    }

    /// Whether all frames so far were read.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// From now on only the ends of frames are found.
    pub fn stop_reading(&mut self) {
        self.is_read = false;
        if std::mem::take(&mut self.is_half_passed) {
            self.half = BytesMut::new();
        }
    }

    /// The stream goes on with the first byte of a frame, from another server: of half a frame nothing is passed on.
    pub fn begin_again(&mut self) {
        self.end = FrameEnd::default();
        self.half = BytesMut::new();
    }

    /// Takes bytes from `data`, and returns the next ones to pass on. `None`: all were taken. `hold`: no frame passes in
    /// part. `each` gets every frame that is read, once, and says what becomes of it.
    pub fn next<E>(
        &mut self,
        data: &mut Bytes,
        hold: bool,
        mut each: impl FnMut(Result<Event<'_>, UnknownFrame>) -> Result<FrameFate, E>,
    ) -> Result<Option<Bytes>, E> {
        // Whole frames at the start of `data` that pass.
        let mut run = 0;
        while self.is_read && run < data.len() {
            let before = self.end;
            let end = self
                .end
                .take(self.format, data.get(run..).unwrap_or_default());
            if run > 0 && end.is_none() {
                self.end = before;
                break;
            }
            let Some(end) = end.filter(|_| self.half.is_empty()) else {
                match self.part(data, end, hold, &mut each)? {
                    Some(passes) => return Ok(Some(passes)),
                    None => continue,
                }
            };
            match each(self.format.read(&data.slice(run..run + end)))? {
                FrameFate::Passes => run += end,
                FrameFate::EndsReading => {
                    run += end;
                    self.stop_reading();
                }
                FrameFate::LeftOut => {
                    let passes = data.split_to(run);
                    data.advance(end);
                    run = 0;
                    if !passes.is_empty() {
                        return Ok(Some(passes));
                    }
                }
            }
        }
        if run > 0 {
            return Ok(Some(data.split_to(run)));
        }
        let unread = match self.half.is_empty() || self.is_read {
            true if self.is_read => Bytes::new(),
            true => {
                self.end.skip(self.format, data);
                std::mem::take(data)
            }
            false => std::mem::take(&mut self.half).freeze(),
        };
        Ok(Some(unread).filter(|unread| !unread.is_empty()))
    }

    /// Takes a part of a frame. `end`: how much of `data` is its rest. Returns what passes of it.
    fn part<E>(
        &mut self,
        data: &mut Bytes,
        end: Option<usize>,
        hold: bool,
        each: &mut impl FnMut(Result<Event<'_>, UnknownFrame>) -> Result<FrameFate, E>,
    ) -> Result<Option<Bytes>, E> {
        let part = data.split_to(end.unwrap_or(data.len()));
        let length = self.half.len() + part.len() + self.end.left;
        self.half.extend_from_slice(&part);
        let is_part_passed = self.is_half_passed;
        if end.is_none() && length <= LIMIT + protobuf::LENGTH {
            self.is_half_passed |= !hold && self.half.len() > HELD;
            return Ok(match (is_part_passed, self.is_half_passed) {
                (true, _) => Some(part),
                (false, true) => Some(Bytes::copy_from_slice(&self.half)),
                (false, false) => None,
            });
        }
        self.is_half_passed = false;
        let frame = std::mem::take(&mut self.half).freeze();
        let event = match end.is_some() && length <= LIMIT + protobuf::LENGTH {
            true => self.format.read(&frame),
            false => Err(UnknownFrame),
        };
        let fate = each(event)?;
        if fate == FrameFate::EndsReading {
            self.stop_reading();
        }
        Ok(match fate {
            _ if is_part_passed => Some(part),
            FrameFate::LeftOut => None,
            FrameFate::Passes | FrameFate::EndsReading => Some(frame),
        })
    }
}

/// `ADDED` and the like. Other event types, but for `ERROR`, are unknown.
fn kind(name: &str) -> Result<EventKind, UnknownFrame> {
    match name {
        "ADDED" | "MODIFIED" | "DELETED" => Ok(EventKind::Change),
        "BOOKMARK" => Ok(EventKind::Bookmark),
        _ => Err(UnknownFrame),
    }
}

/// A `resourceVersion` as `strconv.ParseUint` reads it; `None` for 0.
pub fn revision(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let revision = digits.then(|| text.parse().ok())??;
    (revision > 0).then_some(revision)
}

#[cfg(test)]
mod tests;
