//! Signature algorithms that are accepted: ring's and those of [`crate::x509::curves`], the same set as in Go's crypto/tls
//! and crypto/x509.
//!
//! Except SHA-1: Go accepts it in TLS 1.2 handshakes from clients that offer nothing else.

use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P256_SHA384, ECDSA_P384_SHA256, ECDSA_P384_SHA384, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
    RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    RSA_PSS_2048_8192_SHA256_LEGACY_KEY, RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
};

use crate::x509::curves::{
    ECDSA_P224_SHA256, ECDSA_P224_SHA384, ECDSA_P224_SHA512, ECDSA_P256_SHA512, ECDSA_P384_SHA512,
    ECDSA_P521_SHA256, ECDSA_P521_SHA384, ECDSA_P521_SHA512,
};

/// ring's provider, which verifies with [`ALGORITHMS`].
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        signature_verification_algorithms: ALGORITHMS,
        ..rustls::crypto::ring::default_provider()
    }
}

/// For certificates and for handshake signatures.
pub static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        ECDSA_P256_SHA256,
        ECDSA_P256_SHA384,
        ECDSA_P256_SHA512,
        ECDSA_P384_SHA256,
        ECDSA_P384_SHA384,
        ECDSA_P384_SHA512,
        ECDSA_P521_SHA256,
        ECDSA_P521_SHA384,
        ECDSA_P521_SHA512,
        ECDSA_P224_SHA256,
        ECDSA_P224_SHA384,
        ECDSA_P224_SHA512,
        ED25519,
        RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        RSA_PKCS1_2048_8192_SHA256,
        RSA_PKCS1_2048_8192_SHA384,
        RSA_PKCS1_2048_8192_SHA512,
        RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
        RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
        RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    ],
    // First the curve that the scheme names: TLS 1.3 uses the first algorithm only, TLS 1.2 any.
    mapping: &[
        (
            SignatureScheme::ECDSA_NISTP384_SHA384,
            &[
                ECDSA_P384_SHA384,
                ECDSA_P256_SHA384,
                ECDSA_P521_SHA384,
                ECDSA_P224_SHA384,
            ],
        ),
        (
            SignatureScheme::ECDSA_NISTP256_SHA256,
            &[
                ECDSA_P256_SHA256,
                ECDSA_P384_SHA256,
                ECDSA_P521_SHA256,
                ECDSA_P224_SHA256,
            ],
        ),
        (SignatureScheme::ED25519, &[ED25519]),
        // Without it a client with such a key cannot sign in TLS 1.3, and presents no certificate.
        (
            SignatureScheme::ECDSA_NISTP521_SHA512,
            &[
                ECDSA_P521_SHA512,
                ECDSA_P256_SHA512,
                ECDSA_P384_SHA512,
                ECDSA_P224_SHA512,
            ],
        ),
        (
            SignatureScheme::RSA_PSS_SHA512,
            &[RSA_PSS_2048_8192_SHA512_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA384,
            &[RSA_PSS_2048_8192_SHA384_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PSS_SHA256,
            &[RSA_PSS_2048_8192_SHA256_LEGACY_KEY],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA512,
            &[RSA_PKCS1_2048_8192_SHA512],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA384,
            &[RSA_PKCS1_2048_8192_SHA384],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA256,
            &[RSA_PKCS1_2048_8192_SHA256],
        ),
    ],
};
