//! Reads DER as strictly as Go: of several possible encodings only the canonical one is accepted.

/// The bytes that are not read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerReader<'a>(&'a [u8]);

pub(super) struct DerValue<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// The content with tag and length.
    pub(super) whole: &'a [u8],
}

pub(super) const BOOLEAN: u8 = 1;
pub(super) const INTEGER: u8 = 2;
pub(super) const BIT_STRING: u8 = 3;
pub(super) const OCTET_STRING: u8 = 4;
pub(super) const OID: u8 = 6;
pub(super) const UTC_TIME: u8 = 23;
pub(super) const GENERALIZED_TIME: u8 = 24;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Tag `[number]`, primitive.
pub(super) const fn context(number: u8) -> u8 {
    0x80 | number
}

/// Tag `[number]`, constructed.
pub(super) const fn constructed(number: u8) -> u8 {
    0xa0 | number
}

impl<'a> DerReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_next(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The next value, of any tag.
    pub(super) fn value(&mut self) -> Option<DerValue<'a>> {
        const LONG_TAG: u8 = 0x1f;
        let (&tag, after) = self.0.split_first()?;
        let (&first, after) = after.split_first()?;
        if tag & LONG_TAG == LONG_TAG {
            return None;
        }
        let (length, content) = match first {
            0..0x80 => (usize::from(first), after),
            _ => long_length(usize::from(first & 0x7f), after)?,
        };
        let content = content.get(..length)?;
        let header = self.0.len() - after.len() + lengths_length(first);
        let (whole, rest) = self.0.split_at_checked(header + length)?;
        self.0 = rest;
        Some(DerValue {
            tag,
            content,
            whole,
        })
    }

    /// The content of the next value, which must have this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.whole(tag).map(|value| value.content)
    }

    /// The next value, which must have this tag.
    pub(super) fn whole(&mut self, tag: u8) -> Option<DerValue<'a>> {
        self.value().filter(|value| value.tag == tag)
    }

    /// A reader of the next value, a SEQUENCE.
    pub(super) fn sequence(&mut self) -> Option<DerReader<'a>> {
        self.sequence_content().map(DerReader::new)
    }

    /// The content of the next value, a SEQUENCE.
    pub(super) fn sequence_content(&mut self) -> Option<&'a [u8]> {
        self.expect(SEQUENCE)
    }

    /// The content of the next value if it has this tag; `None`: it has the tag, but cannot be read.
    pub(super) fn optional(&mut self, tag: u8) -> Option<Option<&'a [u8]>> {
        match self.is_next(tag) {
            true => self.expect(tag).map(Some),
            false => Some(None),
        }
    }

    pub(super) fn oid(&mut self) -> Option<&'a [u8]> {
        self.expect(OID).filter(|content| is_oid(content))
    }

    /// An INTEGER of any size.
    pub(super) fn integer(&mut self) -> Option<&'a [u8]> {
        self.expect(INTEGER).filter(|content| is_integer(content))
    }

    /// An INTEGER of 64 bits at most.
    pub(super) fn small_integer(&mut self) -> Option<i64> {
        let content = self.integer().filter(|content| content.len() <= 8)?;
        let negative = content.first()? & 0x80 != 0;
        let begin = if negative { -1 } else { 0 };
        let number = content
            .iter()
            .fold(begin, |number: i64, byte| (number << 8) | i64::from(*byte));
        Some(number)
    }

    pub(super) fn boolean(&mut self) -> Option<bool> {
        match self.expect(BOOLEAN)? {
            [0] => Some(false),
            [0xff] => Some(true),
            _ => None,
        }
    }

    /// A BIT STRING, and the number of unused bits in its last byte.
    pub(super) fn bits(&mut self) -> Option<(&'a [u8], u8)> {
        let (&unused, bytes) = self.expect(BIT_STRING)?.split_first()?;
        let last = bytes.last().copied();
        let good = match last {
            None => unused == 0,
            Some(last) => unused <= 7 && last & ((1 << unused) - 1) == 0,
        };
        good.then_some((bytes, unused))
    }

    /// A BIT STRING of whole bytes.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.bits()? {
            (bytes, 0) => Some(bytes),
            _ => None,
        }
    }
}

/// Number of bytes of a length after its first one.
fn lengths_length(first: u8) -> usize {
    match first {
        0..0x80 => 0,
        _ => usize::from(first & 0x7f),
    }
}

fn long_length(bytes: usize, after: &[u8]) -> Option<(usize, &[u8])> {
    if !(1..=4).contains(&bytes) {
        return None;
    }
    let (written, rest) = after.split_at_checked(bytes)?;
    let length = written
        .iter()
        .fold(0_u32, |length, byte| (length << 8) | u32::from(*byte));
    let shortest = length >= 0x80 && written.first() != Some(&0);
    shortest.then_some((usize::try_from(length).ok()?, rest))
}

fn is_integer(content: &[u8]) -> bool {
    match content {
        [] => false,
        [0, next, ..] => next & 0x80 != 0,
        [0xff, next, ..] => next & 0x80 == 0,
        _ => true,
    }
}

/// Go accepts parts of an object identifier up to 31 bits.
fn is_oid(content: &[u8]) -> bool {
    let mut part = 0_u32;
    let mut inside = false;
    for &byte in content {
        if (!inside && byte == 0x80) || part >= 1 << (31 - 7) {
            return false;
        }
        part = (part << 7) | u32::from(byte & 0x7f);
        inside = byte & 0x80 != 0;
        if !inside {
            part = 0;
        }
    }
    !content.is_empty() && !inside
}
