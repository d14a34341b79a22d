//! TLS for the tests' own clients.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

/// All certificates of a PEM file.
pub fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub fn private_key(file: &Path) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub fn roots(file: &Path) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file) {
        roots
            .add(certificate)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    roots
}

/// A client that trusts `ca` and shows the certificate and key in `identity`, if any.
pub fn client_config(
    ca: &Path,
    identity: Option<(&Path, &Path)>,
    alpn: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("TLS versions")
        .with_root_certificates(roots(ca));
    let mut config = match identity {
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate), private_key(key))
            .unwrap_or_else(|error| panic!("{}: {error}", certificate.display())),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}
