//! Looks at the first event of a watch before it is passed on: an ERROR may say that the watch begins at a revision that
//! is too old. Pure.
//!
//! Bytes that cannot begin an ERROR event pass at once and are not copied. The bytes of an ERROR are kept until its frame
//! is complete, at most [`LIMIT`] of them and those of one more piece.

use bytes::{Bytes, BytesMut};

use super::{Event, FrameEnd, FrameFormat, json, protobuf};

/// Longest ERROR event that is read. kube-apiserver's own are below 1 KiB.
pub const LIMIT: usize = 64 << 10;

/// Looks at the first event of one stream.
#[derive(Debug)]
pub struct FirstEvent {
    format: FrameFormat,
    end: FrameEnd,
    kept: BytesMut,
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
            end: FrameEnd::default(),
            kept: BytesMut::new(),
        }
    }

    /// Whether bytes are kept.
    pub fn is_begun(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes the kept bytes.
    pub fn take_kept(&mut self) -> Bytes {
        std::mem::take(&mut self.kept).freeze()
    }

    /// Takes the next bytes of the stream. To be called until they are decided.
    pub fn look(&mut self, data: Bytes) -> FirstLook {
        if !self.is_begun() && !self.may_begin_error(&data) {
            return FirstLook::NoError(data);
        }
        let end = self.end.take(self.format, &data);
        let length = end.map(|end| self.kept.len() + end);
        self.kept.extend_from_slice(&data);
        if !self.may_begin_error(&self.kept) {
            return FirstLook::NoError(self.take_kept());
        }
        if length.is_none() && self.kept.len() <= LIMIT {
            return FirstLook::Undecided;
        }
        let kept = self.take_kept();
        let Some(length) = length.filter(|length| *length <= LIMIT) else {
            return FirstLook::Error(None, kept);
        };
        match self.format.read(&kept.slice(..length)) {
            Ok(Event::Error(code)) => FirstLook::Error(code, kept),
            // The frame may be shorter than what was looked at.
            _ if length < self.beginning().0 + self.beginning().1.len() => FirstLook::NoError(kept),
            _ => FirstLook::Error(None, kept),
        }
    }

    /// Whether a stream that begins with `data` may begin with an ERROR event.
    fn may_begin_error(&self, data: &[u8]) -> bool {
        let (at, beginning) = self.beginning();
        let data = data.get(at..).unwrap_or_default();
        data.iter().zip(beginning).all(|(a, b)| a == b)
    }

    /// How an ERROR event begins, and after how many bytes.
    fn beginning(&self) -> (usize, &'static [u8]) {
        match self.format {
            FrameFormat::Json => (0, json::ERROR),
            FrameFormat::Protobuf => (protobuf::LENGTH, protobuf::ERROR),
        }
    }
}

#[cfg(test)]
mod tests;
