//! Keys, signatures, and whether one made the other, as Go's crypto/x509 sees it.

use bytes::Bytes;
use der::asn1::{AnyRef, UintRef};
use der::{Tag, Tagged as _};
use rustls::pki_types::SignatureVerificationAlgorithm;
use webpki::ring as webpki_ring;

use super::der::{DerReader, constructed};
use crate::x509::curves;

/// How a certificate is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signing {
    Rsa(Hash),
    RsaPss(Hash),
    Ecdsa(Hash),
    Ed25519,
    /// An algorithm that Go does not verify: SHA-1, MD5, DSA, odd parameters.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// A public key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    kind: Kind,
    bits: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P224,
    P256,
    P384,
    P521,
    Ed25519,
    /// DSA, or unknown.
    Other,
}

const PKCS1: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
const ECDSA_WITH_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2];

impl Signing {
    /// From an AlgorithmIdentifier; `None`: it cannot be read.
    pub(super) fn read(algorithm: &[u8]) -> Option<Self> {
        let (id, parameters) = identifier(algorithm)?;
        if id == ED25519 {
            return Some(match parameters {
                None => Self::Ed25519,
                Some(_) => Self::Unknown,
            });
        }
        let known = match (id.strip_prefix(PKCS1), id.strip_prefix(ECDSA_WITH_SHA2)) {
            (Some([11]), _) => Self::Rsa(Hash::Sha256),
            (Some([12]), _) => Self::Rsa(Hash::Sha384),
            (Some([13]), _) => Self::Rsa(Hash::Sha512),
            (Some([10]), _) => parameters.and_then(pss).map_or(Self::Unknown, Self::RsaPss),
            (_, Some([2])) => Self::Ecdsa(Hash::Sha256),
            (_, Some([3])) => Self::Ecdsa(Hash::Sha384),
            (_, Some([4])) => Self::Ecdsa(Hash::Sha512),
            _ => Self::Unknown,
        };
        Some(known)
    }
}

/// An object identifier and its parameters.
fn identifier(algorithm: &[u8]) -> Option<(&[u8], Option<AnyRef<'_>>)> {
    let mut algorithm = DerReader::new(algorithm)?;
    Some((algorithm.oid()?, algorithm.read()?))
}

/// The content of a value, which must have this tag.
fn content(value: AnyRef<'_>, tag: Tag) -> Option<&[u8]> {
    (value.tag() == tag).then(|| value.value())
}

/// Only those with one hash throughout, and a salt of its length.
fn pss(parameters: AnyRef<'_>) -> Option<Hash> {
    let mut parameters = DerReader::new(content(parameters, Tag::Sequence)?)?;
    let mut field = |number| DerReader::new(parameters.expect(constructed(number))?);
    let hash = field(0)?.expect(Tag::Sequence)?;
    let mask = field(1)?.expect(Tag::Sequence)?;
    let salt: i64 = field(2)?.read()?;
    let trailer: i64 = match parameters.tagged(constructed(3))? {
        Some(trailer) => DerReader::new(trailer)?.read()?,
        None => 1,
    };
    let (mask, mask_hash) = identifier(mask)?;
    let mask_hash = content(mask_hash?, Tag::Sequence)?;
    let [(hash, nothing), (mask_hash, nothing_either)] =
        [identifier(hash)?, identifier(mask_hash)?];
    let (hash, length) = match hash.strip_prefix(SHA2)? {
        [1] if mask_hash == hash => (Hash::Sha256, 32),
        [2] if mask_hash == hash => (Hash::Sha384, 48),
        [3] if mask_hash == hash => (Hash::Sha512, 64),
        _ => return None,
    };
    let good = mask.strip_prefix(PKCS1) == Some(&[8])
        && [nothing, nothing_either]
            .iter()
            .all(|it| it.is_none_or(AnyRef::is_null))
        && salt == length
        && trailer == 1;
    good.then_some(hash)
}

impl Key {
    /// From a SubjectPublicKeyInfo, a part of `raw`; `None`: Go cannot read it.
    pub(super) fn read(info: &[u8], raw: &Bytes) -> Option<Self> {
        let mut info = DerReader::new(info)?.sequence()?;
        let (id, parameters) = identifier(info.expect(Tag::Sequence)?)?;
        let bits = info.bits()?.as_bytes()?;
        let kind = if id == ED25519 {
            (parameters.is_none() && bits.len() == 32).then_some(Kind::Ed25519)?
        } else if id == EC_PUBLIC_KEY {
            curve(parameters?, bits)?
        } else if id.strip_prefix(PKCS1) == Some(&[1]) {
            (parameters.is_some_and(AnyRef::is_null) && is_rsa(bits)).then_some(Kind::Rsa)?
        } else {
            Kind::Other
        };
        Some(Self {
            kind,
            bits: raw.slice_ref(bits),
        })
    }

    /// The cost of verifying a signature with this key, where 1 is P-256 with SHA-256 (60 µs). Some take long, and anybody
    /// can present them.
    pub(super) fn cost(&self, signing: Signing) -> u32 {
        /// Of 4096 bits, with a short exponent.
        const LARGE_RSA: usize = 4096 / 8 + 32;
        match self.kind {
            Kind::Rsa if self.bits.len() > LARGE_RSA => 8,
            Kind::P256 if signing == Signing::Ecdsa(Hash::Sha512) => 4,
            Kind::Rsa | Kind::P256 | Kind::Ed25519 | Kind::Other => 1,
            Kind::P224 => 8,
            Kind::P384 => 12,
            Kind::P521 => 16,
        }
    }

    /// Whether this key made the signature of the bytes `signed`.
    pub(super) fn verifies(&self, signing: Signing, signed: &[u8], signature: &[u8]) -> bool {
        algorithm(signing, self.kind).is_some_and(|algorithm| {
            let verified = algorithm.verify_signature(&self.bits, signed, signature);
            verified.is_ok()
        })
    }
}

fn curve(parameters: AnyRef<'_>, point: &[u8]) -> Option<Kind> {
    const CERTICOM: &[u8] = &[0x2b, 0x81, 4, 0];
    let id = content(parameters, Tag::ObjectIdentifier)?;
    let (kind, bytes) = match id.strip_prefix(CERTICOM) {
        Some([33]) => (Kind::P224, 28),
        Some([34]) => (Kind::P384, 48),
        Some([35]) => (Kind::P521, 66),
        _ if id == [0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7] => (Kind::P256, 32),
        _ => return None,
    };
    const UNCOMPRESSED: u8 = 4;
    let whole = point.first() == Some(&UNCOMPRESSED) && point.len() == 1 + 2 * bytes;
    whole.then_some(kind)
}

/// Whether these are a modulus and an exponent.
fn is_rsa(bits: &[u8]) -> bool {
    let numbers = || {
        let mut key = DerReader::new(bits)?.sequence()?;
        let (modulus, exponent): (UintRef<'_>, i64) = (key.read()?, key.read()?);
        Some(modulus.as_bytes() != [0] && exponent > 0)
    };
    numbers().unwrap_or(false)
}

fn algorithm(signing: Signing, key: Kind) -> Option<&'static dyn SignatureVerificationAlgorithm> {
    use Hash::{Sha256, Sha384, Sha512};
    Some(match (signing, key) {
        (Signing::Rsa(Sha256), Kind::Rsa) => webpki_ring::RSA_PKCS1_2048_8192_SHA256,
        (Signing::Rsa(Sha384), Kind::Rsa) => webpki_ring::RSA_PKCS1_2048_8192_SHA384,
        (Signing::Rsa(Sha512), Kind::Rsa) => webpki_ring::RSA_PKCS1_2048_8192_SHA512,
        (Signing::RsaPss(Sha256), Kind::Rsa) => webpki_ring::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        (Signing::RsaPss(Sha384), Kind::Rsa) => webpki_ring::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        (Signing::RsaPss(Sha512), Kind::Rsa) => webpki_ring::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        (Signing::Ecdsa(Sha256), Kind::P224) => curves::ECDSA_P224_SHA256,
        (Signing::Ecdsa(Sha384), Kind::P224) => curves::ECDSA_P224_SHA384,
        (Signing::Ecdsa(Sha512), Kind::P224) => curves::ECDSA_P224_SHA512,
        (Signing::Ecdsa(Sha256), Kind::P256) => webpki_ring::ECDSA_P256_SHA256,
        (Signing::Ecdsa(Sha384), Kind::P256) => webpki_ring::ECDSA_P256_SHA384,
        (Signing::Ecdsa(Sha512), Kind::P256) => curves::ECDSA_P256_SHA512,
        (Signing::Ecdsa(Sha256), Kind::P384) => webpki_ring::ECDSA_P384_SHA256,
        (Signing::Ecdsa(Sha384), Kind::P384) => webpki_ring::ECDSA_P384_SHA384,
        (Signing::Ecdsa(Sha512), Kind::P384) => curves::ECDSA_P384_SHA512,
        (Signing::Ecdsa(Sha256), Kind::P521) => curves::ECDSA_P521_SHA256,
        (Signing::Ecdsa(Sha384), Kind::P521) => curves::ECDSA_P521_SHA384,
        (Signing::Ecdsa(Sha512), Kind::P521) => curves::ECDSA_P521_SHA512,
        (Signing::Ed25519, Kind::Ed25519) => webpki_ring::ED25519,
        _ => return None,
    })
}
