//! Where frames end, without reading them: what is cut off there is not half an event. Pure.

use super::{Format, LENGTH};

/// Follows a stream's frames by their lengths alone.
#[derive(Debug)]
pub struct Border {
    format: Format,
    /// Of a protobuf frame's length, as far as it has passed.
    length: [u8; LENGTH],
    passed: usize,
    /// Bytes of the frame that are still to come; 1 of a line that has not ended.
    left: usize,
}

impl Border {
    /// At the beginning of a stream.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            length: [0; LENGTH],
            passed: 0,
            left: 0,
        }
    }

    /// This was passed on.
    pub fn passed(&mut self, data: &[u8]) {
        match (self.format, data.last()) {
            (_, None) => {}
            (Format::Json, Some(last)) => self.left = usize::from(*last != b'\n'),
            (Format::Protobuf, Some(_)) => self.passed_frames(data),
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
            if self.passed == LENGTH {
                self.passed = 0;
                self.left = u32::from_be_bytes(self.length) as usize;
            }
            data = rest;
        }
    }

    /// Whether what passed so far ends with a frame.
    pub fn is_here(&self) -> bool {
        self.left == 0 && self.passed == 0
    }
}
