//! The crypto provider, and rustls configurations of clients.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{AlgorithmIdentifier, alg_id};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, SignatureScheme};

use super::error::TlsError;
use crate::x509::curves;

/// The one crypto provider of this process: ring's, which verifies with [`ALGORITHMS`].
pub static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        signature_verification_algorithms: *ALGORITHMS,
        ..ring::default_provider()
    })
});

/// Makes it the process's default provider; the first thing `main` does. Calling it again changes nothing.
pub fn install_provider() {
    // An error says that a default is installed already. It is this one: no provider but ring is compiled in.
    let _ = CryptoProvider::clone(&PROVIDER).install_default();
}

/// The schemes of handshakes with which curves that ring lacks are verified, behind ring's. Without a scheme for P-521 a
/// client with such a key cannot sign in TLS 1.3, and presents no certificate.
const SCHEMES: [(SignatureScheme, AlgorithmIdentifier); 3] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, alg_id::ECDSA_SHA256),
    (SignatureScheme::ECDSA_NISTP384_SHA384, alg_id::ECDSA_SHA384),
    (SignatureScheme::ECDSA_NISTP521_SHA512, alg_id::ECDSA_SHA512),
];

/// For certificates and for handshake signatures: ring's and those of [`crate::x509::curves`], the same set as in Go's
/// crypto/tls and crypto/x509. Except SHA-1: Go accepts it in TLS 1.2 handshakes from clients that offer nothing else.
pub static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let of_ring = ring::default_provider().signature_verification_algorithms;
    let mut mapping = of_ring.mapping.to_vec();
    for (scheme, signature) in SCHEMES {
        let ours = curves::OURS.into_iter();
        let ours = ours.filter(|algorithm| algorithm.signature_alg_id() == signature);
        let ours: Vec<_> = ours.collect();
        match mapping.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, algorithms)) => *algorithms = [algorithms, &ours[..]].concat().leak(),
            None => mapping.push((scheme, ours.leak())),
        }
    }
    WebPkiSupportedAlgorithms {
        all: &curves::ALGORITHMS,
        mapping: mapping.leak(),
    }
});

/// A client configuration that verifies against `roots` and, if given, presents `identity`.
pub fn client(
    roots: Arc<RootCertStore>,
    identity: Option<CertifiedKey>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match identity {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        None => builder.with_no_client_auth(),
    })
}
