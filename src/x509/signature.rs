//! Keys, signatures, and whether one made the other, as Go's crypto/x509 sees it.
//!
//! An algorithm is known by its AlgorithmIdentifier, of which the content is compared. Go ignores the parameters of RSA
//! with PKCS #1 and of ECDSA in a signature.

use bytes::Bytes;
use der::Tag;
use der::asn1::{AnyRef, UintRef};
use rustls::pki_types::{AlgorithmIdentifier, alg_id};

use super::curves::{ALGORITHMS, ECDSA_P224};
use super::der::{DerReader, constructed};

/// How a certificate is signed: the content of its AlgorithmIdentifier.
#[derive(Debug, Clone)]
pub(super) struct Signing(Bytes);

/// A public key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    algorithm: Bytes,
    bits: Bytes,
}

const EC_PUBLIC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const RSA: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const RSA_PSS: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];

/// Curves that Go knows, with the bytes of a coordinate, and the cost of a verification.
const CURVES: [(AlgorithmIdentifier, usize, u32); 4] = [
    (ECDSA_P224, 28, 8),
    (alg_id::ECDSA_P256, 32, 1),
    (alg_id::ECDSA_P384, 48, 12),
    (alg_id::ECDSA_P521, 66, 16),
];

impl Signing {
    /// From an AlgorithmIdentifier's content, a part of `raw`; `None`: it cannot be read.
    pub(super) fn read(algorithm: &[u8], raw: &Bytes) -> Option<Self> {
        is_identifier(algorithm).then(|| Self(raw.slice_ref(algorithm)))
    }

    fn is(&self, id: AlgorithmIdentifier) -> bool {
        self.0.starts_with(&id) && (id != alg_id::ED25519 || self.0 == id.as_ref())
            || pss(&self.0).is_some_and(|ours| Some(ours) == pss(&id))
    }
}

/// The hash, the mask, the mask's hash and the length of the salt of RSA-PSS. Beside a hash there may be NULL or, as
/// GnuTLS writes it, nothing.
fn pss(algorithm: &[u8]) -> Option<([&[u8]; 3], i64)> {
    let mut parameters = DerReader::new(algorithm.strip_prefix(RSA_PSS)?)?.sequence()?;
    let mut field = |number| DerReader::new(parameters.expect(constructed(number))?);
    let (mut hash, mut mask) = (field(0)?.sequence()?, field(1)?.sequence()?);
    let salt = field(2)?.read()?;
    let trailer = parameters.tagged(constructed(3))?;
    let (mask, mut mask_hash) = (mask.oid()?, mask.sequence()?);
    let ids = [hash.oid()?, mask, mask_hash.oid()?];
    let without_parameters =
        |mut rest: DerReader<'_>| rest.is_empty() || rest.expect(Tag::Null) == Some(&[][..]);
    let good = [hash, mask_hash].into_iter().all(without_parameters)
        && trailer.is_none_or(|trailer| trailer == [2, 1, 1]);
    good.then_some((ids, salt))
}

/// Whether it is an object identifier and, perhaps, parameters.
fn is_identifier(algorithm: &[u8]) -> bool {
    DerReader::new(algorithm).is_some_and(|mut parts| {
        parts.oid().is_some() && parts.read::<Option<AnyRef<'_>>>().is_some()
    })
}

impl Key {
    /// From a SubjectPublicKeyInfo, a part of `raw`; `None`: Go cannot read it.
    pub(super) fn read(info: &[u8], raw: &Bytes) -> Option<Self> {
        let mut info = DerReader::new(info)?.sequence()?;
        let algorithm = info.expect(Tag::Sequence)?;
        let bits = info.bits()?.as_bytes()?;
        let key = Self {
            algorithm: raw.slice_ref(algorithm),
            bits: raw.slice_ref(bits),
        };
        let is_readable = if algorithm.starts_with(&alg_id::ED25519) {
            key.is(alg_id::ED25519) && bits.len() == 32
        } else if algorithm.starts_with(EC_PUBLIC_KEY) {
            const UNCOMPRESSED: u8 = 4;
            let (_, bytes, _) = key.curve()?;
            bits.first() == Some(&UNCOMPRESSED) && bits.len() == 1 + 2 * bytes
        } else if algorithm.starts_with(RSA) {
            key.is(alg_id::RSA_ENCRYPTION) && is_rsa(bits)
        } else {
            is_identifier(algorithm)
        };
        is_readable.then_some(key)
    }

    fn is(&self, id: AlgorithmIdentifier) -> bool {
        self.algorithm == id.as_ref()
    }

    fn curve(&self) -> Option<&'static (AlgorithmIdentifier, usize, u32)> {
        CURVES.iter().find(|(id, _, _)| self.is(*id))
    }

    /// The cost of verifying a signature with this key, where 1 is P-256 with SHA-256 (60 µs). Some take long, and anybody
    /// can present them.
    pub(super) fn cost(&self, signing: &Signing) -> u32 {
        /// Of 4096 bits, with a short exponent.
        const LARGE_RSA: usize = 4096 / 8 + 32;
        match self.curve() {
            None if self.is(alg_id::RSA_ENCRYPTION) && self.bits.len() > LARGE_RSA => 8,
            None => 1,
            Some((_, 32, _)) if signing.is(alg_id::ECDSA_SHA512) => 4,
            Some((_, _, cost)) => *cost,
        }
    }

    /// Whether this key made the signature of the bytes `signed`.
    pub(super) fn verifies(&self, signing: &Signing, signed: &[u8], signature: &[u8]) -> bool {
        let mut algorithms = ALGORITHMS.iter();
        let algorithm = algorithms
            .find(|it| self.is(it.public_key_alg_id()) && signing.is(it.signature_alg_id()));
        algorithm.is_some_and(|algorithm| {
            let verified = algorithm.verify_signature(&self.bits, signed, signature);
            verified.is_ok()
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_need_not_say_that_its_hashes_have_no_parameters() {
        const SHA256: &[u8] = &[6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];
        const MGF1: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 8];
        let of = |salt: u8, end: &[u8]| {
            let hash = [&[0xa0, 13, 0x30, 11][..], SHA256].concat();
            let mask = [&[0xa1, 26, 0x30, 24][..], MGF1, &[0x30, 11], SHA256].concat();
            let parameters = [&hash[..], &mask, &[0xa2, 3, 2, 1, salt], end].concat();
            let length = u8::try_from(parameters.len()).unwrap();
            Signing([RSA_PSS, &[0x30, length], &parameters].concat().into())
        };
        let sha256 = alg_id::RSA_PSS_SHA256;
        assert!(of(32, &[]).is(sha256));
        assert!(of(32, &[0xa3, 3, 2, 1, 1]).is(sha256));
        assert!(!of(32, &[0xa3, 3, 2, 1, 2]).is(sha256));
        assert!(!of(20, &[]).is(sha256));
        assert!(!of(32, &[]).is(alg_id::RSA_PSS_SHA384));
        assert!(!of(32, &[]).is(alg_id::RSA_PKCS1_SHA256));
    }
}
