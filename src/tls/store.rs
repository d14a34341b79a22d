//! The crypto provider, and rustls configurations of clients.

use std::sync::{Arc, LazyLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{AlgorithmIdentifier, CertificateDer, ServerName, UnixTime, alg_id};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::error::TlsError;
use crate::x509::{curves, pem};

/// The one crypto provider of this process: ring's, which verifies with [`ALGORITHMS`].
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        signature_verification_algorithms: *ALGORITHMS,
        ..ring::default_provider()
    })
});

pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}

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
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ReadableServers(verifier)));
    Ok(match identity {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        None => builder.with_no_client_auth(),
    })
}

/// Verifies servers as rustls does, but none whose certificate x509-parser cannot read: pingora reads serial and
/// organization with it and panics where that fails.
#[derive(Debug)]
struct ReadableServers(Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for ReadableServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        pem::parsed(end_entity).ok_or(CertificateError::BadEncoding)?;
        let (leaf, chain) = (end_entity, intermediates);
        self.0
            .verify_server_cert(leaf, chain, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct AcceptAny;

    impl ServerCertVerifier for AcceptAny {
        fn verify_server_cert(
            &self,
            _end_entity: &CertificateDer<'_>,
            _intermediates: &[CertificateDer<'_>],
            _server_name: &ServerName<'_>,
            _ocsp_response: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    }

    #[test]
    fn a_server_whose_certificate_pingora_cannot_read_fails_the_handshake() {
        let good = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        let good = good.cert.der().to_vec();
        let trailing = [&good[..], &[0]].concat();
        let verifier = ReadableServers(Arc::new(AcceptAny));
        let name = ServerName::try_from("x").unwrap();
        for (der, is_readable) in [(good, true), (trailing, false), (vec![0x30, 0], false)] {
            let (der, now) = (CertificateDer::from(der), UnixTime::now());
            let verified = verifier.verify_server_cert(&der, &[], &name, &[], now);
            assert_eq!(verified.is_ok(), is_readable, "{der:?}");
        }
    }
}
