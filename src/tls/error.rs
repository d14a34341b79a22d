//! Why certificate files cannot be used.

use std::sync::Arc;

use crate::config::SHARED_AUTHORITY;
use crate::x509::UnparsableCertificate;
use crate::x509::pem::PemError;

/// A certificate, key or CA file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or parsed.
    #[error("{path}: {source}")]
    File { path: String, source: Arc<PemError> },
    /// Users and peers share a CA: any user's certificate would be a peer's.
    #[error("serving.requestHeaderClientCAFile {SHARED_AUTHORITY}")]
    Shared,
    /// An empty chain.
    #[error("no certificate")]
    NoCertificate,
    /// A client CA bundle without a usable certificate.
    #[error(transparent)]
    Cas(#[from] UnparsableCertificate),
    /// Key and certificate do not fit, or rustls refuses them.
    #[error("certificate and key cannot be used")]
    Rustls(#[from] rustls::Error),
    /// Each file is right, but no handshake succeeds with all of them.
    #[error(
        "no TLS handshake succeeds with the files of serving; is a chain or a bundle very long? ({0})"
    )]
    Handshake(#[source] rustls::Error),
}
