//! Parses certificates as Go's crypto/x509 does (`parseCertificate`, Go 1.19), as far as it decides something.
//!
//! Parts are slices of one copy of the certificate, so CAs are parsed only once.

use bytes::Bytes;
use der::Tag;
use der::asn1::IntRef;
use x509_parser::prelude::{ASN1Time, FromDer as _};

use super::der::{DerReader, constructed, context};
use super::extensions::{self, Extensions};
use super::names;
use super::signature::{Key, Signing};

/// The parts of a certificate that verification needs.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The whole certificate.
    pub(super) raw: Bytes,
    pub(super) version: i64,
    pub(super) issuer: Bytes,
    pub subject: Bytes,
    /// Unix seconds.
    pub(super) not_before: i64,
    pub(super) not_after: i64,
    /// SubjectPublicKeyInfo, encoded, then decoded.
    pub(super) key_info: Bytes,
    pub(super) key: Key,
    /// The signed bytes, the algorithm, and the signature.
    pub(super) signed: Bytes,
    pub(super) signing: Signing,
    pub(super) signature: Bytes,
    pub(super) extensions: Extensions,
}

impl Certificate {
    /// `None`: it cannot be read.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let raw = Bytes::copy_from_slice(der);
        let mut outer = DerReader::new(&raw)?;
        let mut certificate = outer.sequence().filter(|_| outer.is_empty())?;
        let signed = certificate.whole(Tag::Sequence)?;
        let mut content = DerReader::new(signed)?.sequence()?;
        let version = version(&mut content)?;
        let _serial: IntRef<'_> = content.read()?;
        let algorithm = content.expect(Tag::Sequence)?;
        if certificate.expect(Tag::Sequence)? != algorithm {
            return None;
        }
        let issuer = content.whole(Tag::Sequence)?;
        let mut validity = content.sequence()?;
        let subject = content.whole(Tag::Sequence)?;
        names::attributes(issuer)?;
        names::attributes(subject)?;
        let key_info = content.whole(Tag::Sequence)?;
        let extensions = match version {
            3 => extensions(&raw, &mut content)?,
            _ => Extensions::default(),
        };
        let part = |part: &[u8]| raw.slice_ref(part);
        Some(Self {
            version,
            issuer: part(issuer),
            subject: part(subject),
            not_before: time(&mut validity)?,
            not_after: time(&mut validity)?,
            key: Key::read(key_info, &raw)?,
            key_info: part(key_info),
            signed: part(signed),
            signing: Signing::read(algorithm, &raw)?,
            signature: part(certificate.bits()?.as_bytes()?),
            extensions,
            raw: raw.clone(),
        })
    }

    /// What identifies a CA.
    pub(super) fn authority(&self) -> (&[u8], &[u8]) {
        (&self.subject, &self.key_info)
    }

    /// `now`: Unix seconds.
    pub(super) fn is_valid_at(&self, now: u64) -> bool {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// A UTCTime or a GeneralizedTime of DER, in Unix seconds: with seconds, without a fraction or an offset.
fn time(content: &mut DerReader<'_>) -> Option<i64> {
    let (encoded, digits) = match content.whole(Tag::UtcTime) {
        Some(encoded) => (encoded, 12),
        None => (content.whole(Tag::GeneralizedTime)?, 14),
    };
    let text = encoded.get(2..)?.strip_suffix(b"Z")?;
    let is_der = text.len() == digits && text.iter().all(u8::is_ascii_digit);
    let (_, time) = ASN1Time::from_der(encoded).ok().filter(|_| is_der)?;
    Some(time.timestamp())
}

/// 1, 2 or 3.
fn version(content: &mut DerReader<'_>) -> Option<i64> {
    let Some(tagged) = content.tagged(constructed(0))? else {
        return Some(1);
    };
    let mut tagged = DerReader::new(tagged)?;
    let version: i64 = tagged.read().filter(|_| tagged.is_empty())?;
    (0..=2).contains(&version).then_some(version + 1)
}

fn extensions(raw: &Bytes, content: &mut DerReader<'_>) -> Option<Extensions> {
    content.tagged(context(1))?;
    content.tagged(context(2))?;
    match content.tagged(constructed(3))? {
        Some(list) => extensions::read(raw, DerReader::new(list)?.sequence()?),
        None => Some(Extensions::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_der_also_before_1970() {
        let read = |tag: Tag, text: &str| {
            let mut der = vec![tag.octet(), u8::try_from(text.len()).unwrap()];
            der.extend(text.bytes());
            time(&mut DerReader::new(&der)?)
        };
        for (text, seconds) in [
            ("700101000000Z", Some(0)),
            ("691231235959Z", Some(-1)),
            ("500101000000Z", Some(-631_152_000)),
            ("491231235959Z", Some(2_524_607_999)),
            ("240229000000Z", Some(1_709_164_800)),
            ("260229000000Z", None),
            ("2611220930Z", None),
            ("261122093000+0130", None),
            ("261122093000", None),
            ("261122093000.5Z", None),
            ("261122246000Z", None),
            ("+61122093000Z", None),
            ("Z", None),
        ] {
            assert_eq!(read(Tag::UtcTime, text), seconds, "{text}");
        }
        for (text, seconds) in [
            ("20500101000000Z", Some(2_524_608_000)),
            ("99991231235959Z", Some(253_402_300_799)),
            ("00000301000000Z", Some(-62_162_035_200)),
            ("205001010000Z", None),
        ] {
            assert_eq!(read(Tag::GeneralizedTime, text), seconds, "{text}");
        }
        assert_eq!(read(Tag::OctetString, "700101000000Z"), None);
    }
}
