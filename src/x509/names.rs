//! Subjects and issuers.

use der::asn1::AnyRef;
use der::{Tag, Tagged as _};

use super::der::DerReader;

/// An attribute of a subject or issuer.
pub struct Attribute<'a> {
    /// Its type: the content of an object identifier.
    pub id: &'a [u8],
    value: AnyRef<'a>,
}

impl<'a> Attribute<'a> {
    /// `None`: in an encoding other than UTF-8 or ASCII.
    pub fn text(&self) -> Option<&'a str> {
        match self.value.tag() {
            Tag::TeletexString | Tag::BmpString => None,
            _ => std::str::from_utf8(self.value.value()).ok(),
        }
    }
}

/// The attributes of a subject or issuer; `None`: Go cannot parse them all (`parseName`, `parseASN1String`).
pub(super) fn attributes(name: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut name = DerReader::new(name)?.sequence()?;
    let mut attributes = Vec::new();
    while !name.is_empty() {
        let mut set = DerReader::new(name.expect(Tag::Set)?)?;
        while !set.is_empty() {
            let mut attribute = set.sequence()?;
            let (id, value) = (attribute.oid()?, attribute.read()?);
            is_text(value).then(|| attributes.push(Attribute { id, value }))?;
        }
    }
    Some(attributes)
}

fn is_text(value: AnyRef<'_>) -> bool {
    let bytes = value.value();
    match value.tag() {
        Tag::Utf8String => std::str::from_utf8(bytes).is_ok(),
        Tag::NumericString => bytes.iter().all(|b| b.is_ascii_digit() || *b == b' '),
        Tag::PrintableString => bytes.iter().all(|b| is_printable(*b)),
        Tag::TeletexString => true,
        Tag::Ia5String => bytes.is_ascii(),
        Tag::BmpString => bytes.len().is_multiple_of(2),
        _ => false,
    }
}

/// `*` and `&` are not allowed by ASN.1, but some CAs write them.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\''..=b')' | b'+'..=b'/' | b' ' | b':' | b'=' | b'?' | b'*' | b'&')
}
