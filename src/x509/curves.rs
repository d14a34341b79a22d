//! ECDSA that Go verifies and ring does not: P-521 and P-224, and P-256 and P-384 with SHA-512.
//!
//! All values are public, so nothing here needs constant time. ring computes the hashes.

use std::sync::LazyLock;

use ecdsa::hazmat::VerifyPrimitive as _;
use ring::digest;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};

/// `id-ecPublicKey` with `secp224r1`.
pub(super) const ECDSA_P224: AlgorithmIdentifier = AlgorithmIdentifier::from_slice(&[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x21,
]);

/// ECDSA with the keys of one curve and one hash.
#[derive(Debug)]
struct Ecdsa(AlgorithmIdentifier, Hash, Verify);

/// ECDSA with a hash, and the hash.
type Hash = (AlgorithmIdentifier, &'static digest::Algorithm);

const SHA256: Hash = (alg_id::ECDSA_SHA256, &digest::SHA256);
const SHA384: Hash = (alg_id::ECDSA_SHA384, &digest::SHA384);
const SHA512: Hash = (alg_id::ECDSA_SHA512, &digest::SHA512);

/// `None`: the key (an uncompressed point) has not made the signature (DER) of the hash.
type Verify = fn(key: &[u8], hash: &[u8], signature: &[u8]) -> Option<()>;

impl SignatureVerificationAlgorithm for Ecdsa {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.0
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.1.0
    }

    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        const UNCOMPRESSED: u8 = 4;
        let Self(_, (_, hash), verify) = self;
        if public_key.first() != Some(&UNCOMPRESSED) {
            return Err(InvalidSignature);
        }
        let hash = digest::digest(hash, message);
        verify(public_key, hash.as_ref(), signature).ok_or(InvalidSignature)
    }
}

/// The number that ECDSA signs, with as many bytes as the curve's order: a longer hash is cut off, a shorter one gets
/// leading zeros.
fn write_number(hash: &[u8], number: &mut [u8]) {
    let (zeros, rest) = number.split_at_mut(number.len().saturating_sub(hash.len()));
    zeros.fill(0);
    let taken = rest.len();
    rest.copy_from_slice(&hash[..taken]);
}

macro_rules! verify {
    ($curve:ident) => {
        fn $curve(key: &[u8], hash: &[u8], signature: &[u8]) -> Option<()> {
            let key = $curve::PublicKey::from_sec1_bytes(key).ok()?;
            let signature = $curve::ecdsa::Signature::from_der(signature).ok()?;
            let mut number = $curve::FieldBytes::default();
            write_number(hash, &mut number);
            key.as_affine().verify_prehashed(&number, &signature).ok()
        }
    };
}

verify!(p224);
verify!(p256);
verify!(p384);
verify!(p521);

/// Those that ring lacks. For each hash P-521 comes first: TLS 1.3 uses the first algorithm of a scheme only.
pub const OURS: [&dyn SignatureVerificationAlgorithm; 8] = [
    &Ecdsa(alg_id::ECDSA_P521, SHA256, p521),
    &Ecdsa(alg_id::ECDSA_P521, SHA384, p521),
    &Ecdsa(alg_id::ECDSA_P521, SHA512, p521),
    &Ecdsa(alg_id::ECDSA_P256, SHA512, p256),
    &Ecdsa(alg_id::ECDSA_P384, SHA512, p384),
    &Ecdsa(ECDSA_P224, SHA256, p224),
    &Ecdsa(ECDSA_P224, SHA384, p224),
    &Ecdsa(ECDSA_P224, SHA512, p224),
];

/// All that Go has: ring's, and those of this file.
pub static ALGORITHMS: LazyLock<Vec<&dyn SignatureVerificationAlgorithm>> = LazyLock::new(|| {
    let of_ring = default_provider().signature_verification_algorithms;
    [of_ring.all, &OURS].concat()
});
