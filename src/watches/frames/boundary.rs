//! Finds where frames end without parsing them, so that a stream is not cut in the middle of an event. Pure.

use super::cbor::ItemScanner;
use super::{FrameFormat, LENGTH, UnknownFrame};

/// Follows a stream's frames by their lengths alone.
#[derive(Debug)]
pub struct FrameBoundary {
    format: FrameFormat,
    /// The length prefix of a protobuf frame, as far as it was forwarded.
    length: [u8; LENGTH],
    passed: u8,
    /// Remaining bytes of the frame; 1 for a line that has not ended.
    left: usize,
    /// `Err`: the items of a CBOR sequence cannot be told apart.
    scanner: Result<ItemScanner, UnknownFrame>,
}

impl FrameBoundary {
    pub fn new(format: FrameFormat) -> Self {
        Self {
            format,
            length: [0; LENGTH],
            passed: 0,
            left: 0,
            scanner: Ok(ItemScanner::default()),
        }
    }

    /// These bytes were forwarded.
    pub fn passed(&mut self, data: &[u8]) {
        match (self.format, data.last()) {
            (_, None) => {}
            (FrameFormat::Json, Some(last)) => self.left = usize::from(*last != b'\n'),
            (FrameFormat::Protobuf, Some(_)) => self.passed_frames(data),
            (FrameFormat::Cbor, Some(_)) => self.passed_items(data),
        }
    }

    fn passed_items(&mut self, mut data: &[u8]) {
        while let Ok(scanner) = &mut self.scanner
            && !data.is_empty()
        {
            match scanner.end(data) {
                Ok(end) => data = end.and_then(|end| data.get(end..)).unwrap_or_default(),
                Err(unknown) => self.scanner = Err(unknown),
            }
        }
    }

    fn passed_frames(&mut self, mut data: &[u8]) {
        while let Some((first, rest)) = data.split_first() {
            if self.left > 0 {
                let (_, rest) = data.split_at(self.left.min(data.len()));
                self.left -= data.len() - rest.len();
                data = rest;
                continue;
            }
            self.length.rotate_left(1);
            self.length[LENGTH - 1] = *first;
            self.passed += 1;
            if usize::from(self.passed) == LENGTH {
                self.passed = 0;
                self.left = u32::from_be_bytes(self.length) as usize;
            }
            data = rest;
        }
    }

    /// Whether the bytes so far end with a frame.
    pub fn is_at_boundary(&self) -> bool {
        let between_items = self.scanner.as_ref().is_ok_and(ItemScanner::at_boundary);
        self.left == 0 && self.passed == 0 && between_items
    }
}
