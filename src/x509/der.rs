//! Reads DER as strictly as Go: of several possible encodings only the canonical one is accepted.
//!
//! The crate `der` decodes values; what Go checks and `der` does not is checked here.

use der::asn1::{AnyRef, BitStringRef};
use der::{Decode, FixedTag, Reader as _, SliceReader, Tag, TagNumber, Tagged as _};

/// The bytes that are not read yet.
pub(super) struct DerReader<'a>(SliceReader<'a>);

/// Tag `[number]`, primitive.
pub(super) fn context(number: u8) -> Tag {
    TagNumber::new(number).context_specific(false)
}

/// Tag `[number]`, constructed.
pub(super) fn constructed(number: u8) -> Tag {
    TagNumber::new(number).context_specific(true)
}

impl<'a> DerReader<'a> {
    /// `None`: longer than 256 MiB.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        SliceReader::new(bytes).ok().map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn is_next(&self, tag: Tag) -> bool {
        self.0.peek_tag().is_ok_and(|next| next == tag)
    }

    /// The next value, of this type.
    pub(super) fn read<T: Decode<'a>>(&mut self) -> Option<T> {
        self.0.decode().ok()
    }

    /// The content of the next value, which must have this tag.
    pub(super) fn expect(&mut self, tag: Tag) -> Option<&'a [u8]> {
        let value: AnyRef<'_> = self.read()?;
        (value.tag() == tag).then(|| value.value())
    }

    /// The next value with tag and length; it must have this tag.
    pub(super) fn whole(&mut self, tag: Tag) -> Option<&'a [u8]> {
        self.is_next(tag).then(|| self.0.tlv_bytes().ok())?
    }

    /// A reader of the next value, a SEQUENCE.
    pub(super) fn sequence(&mut self) -> Option<Self> {
        Self::new(self.expect(Tag::Sequence)?)
    }

    /// The next value if it is of this type; `None`: it has the type's tag, but cannot be read.
    pub(super) fn optional<T: Decode<'a> + FixedTag>(&mut self) -> Option<Option<T>> {
        match self.is_next(T::TAG) {
            true => self.read().map(Some),
            false => Some(None),
        }
    }

    /// The content of the next value if it has this tag; `None`: it has the tag, but cannot be read.
    pub(super) fn tagged(&mut self, tag: Tag) -> Option<Option<&'a [u8]>> {
        match self.is_next(tag) {
            true => self.expect(tag).map(Some),
            false => Some(None),
        }
    }

    pub(super) fn oid(&mut self) -> Option<&'a [u8]> {
        self.expect(Tag::ObjectIdentifier)
    }

    /// A BIT STRING, whose unused bits must be zero.
    pub(super) fn bits(&mut self) -> Option<BitStringRef<'a>> {
        let bits: BitStringRef<'_> = self.read()?;
        let last = bits.raw_bytes().last().copied().unwrap_or(0);
        (last & ((1 << bits.unused_bits()) - 1) == 0).then_some(bits)
    }
}
