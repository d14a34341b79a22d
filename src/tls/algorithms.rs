//! Signature algorithms that are accepted: ring's and those of [`crate::x509::curves`], the same set as in Go's crypto/tls
//! and crypto/x509.
//!
//! Except SHA-1: Go accepts it in TLS 1.2 handshakes from clients that offer nothing else.

use std::sync::LazyLock;

use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::SignatureVerificationAlgorithm;

use crate::x509::curves::{
    ECDSA_P224_SHA256, ECDSA_P224_SHA384, ECDSA_P224_SHA512, ECDSA_P256_SHA512, ECDSA_P384_SHA512,
    ECDSA_P521_SHA256, ECDSA_P521_SHA384, ECDSA_P521_SHA512,
};

type Algorithms = &'static [&'static dyn SignatureVerificationAlgorithm];

/// Those that ring lacks, behind ring's: TLS 1.3 uses the first algorithm of a scheme only, TLS 1.2 any. Without a scheme
/// for P-521 a client with such a key cannot sign in TLS 1.3, and presents no certificate.
const MORE: [(SignatureScheme, Algorithms); 3] = [
    (
        SignatureScheme::ECDSA_NISTP256_SHA256,
        &[ECDSA_P521_SHA256, ECDSA_P224_SHA256],
    ),
    (
        SignatureScheme::ECDSA_NISTP384_SHA384,
        &[ECDSA_P521_SHA384, ECDSA_P224_SHA384],
    ),
    (
        SignatureScheme::ECDSA_NISTP521_SHA512,
        &[
            ECDSA_P521_SHA512,
            ECDSA_P256_SHA512,
            ECDSA_P384_SHA512,
            ECDSA_P224_SHA512,
        ],
    ),
];

/// ring's provider, which verifies with [`ALGORITHMS`].
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        signature_verification_algorithms: *ALGORITHMS,
        ..ring::default_provider()
    }
}

/// For certificates and for handshake signatures.
pub static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let of_ring = ring::default_provider().signature_verification_algorithms;
    let mut mapping = of_ring.mapping.to_vec();
    for (scheme, more) in MORE {
        match mapping.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, algorithms)) => *algorithms = [algorithms, more].concat().leak(),
            None => mapping.push((scheme, more)),
        }
    }
    let more = MORE.iter().flat_map(|(_, more)| *more);
    let all: Vec<_> = of_ring.all.iter().chain(more).copied().collect();
    WebPkiSupportedAlgorithms {
        all: all.leak(),
        mapping: mapping.leak(),
    }
});
