//! Parses the certificates that Go's crypto/x509 parses (`parseCertificate`, Go 1.19), and no others.
//!
//! Parts are slices of one copy of the certificate, so CAs are parsed only once.

use std::ops::RangeInclusive;

use bytes::Bytes;
use der::Tag;
use der::asn1::{GeneralizedTime, IntRef, UtcTime};

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
    pub(super) subject: Bytes,
    /// Unix seconds.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
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
    /// `None`: Go would not parse it.
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
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
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
            not_before,
            not_after,
            key: Key::read(key_info, &raw)?,
            key_info: part(key_info),
            signed: part(signed),
            signing: Signing::read(algorithm)?,
            signature: part(certificate.bits()?.as_bytes()?),
            extensions,
            raw: raw.clone(),
        })
    }

    /// `now`: Unix seconds.
    pub(super) fn is_valid_at(&self, now: u64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Unix seconds around `now` in which it neither becomes valid nor expires.
    pub(super) fn unchanged(&self, now: u64) -> RangeInclusive<u64> {
        let changes = [self.not_before, self.not_after + 1];
        let from = changes.iter().filter(|change| **change <= now).max();
        let next = changes.iter().filter(|change| **change > now).min();
        from.copied().unwrap_or(0)..=next.map_or(u64::MAX, |next| next - 1)
    }
}

/// A UTCTime or a GeneralizedTime, in Unix seconds.
fn time(content: &mut DerReader<'_>) -> Option<u64> {
    let time = match content.is_next(Tag::UtcTime) {
        true => content.read::<UtcTime>()?.to_unix_duration(),
        false => content.read::<GeneralizedTime>()?.to_unix_duration(),
    };
    Some(time.as_secs())
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
