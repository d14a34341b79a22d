//! Why certificate files cannot be used.

use crate::config::SHARED_AUTHORITY;
use crate::x509::pem::PemError;

/// A certificate, key or CA file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or parsed.
    #[error("{path}: {source}")]
    File { path: String, source: PemError },
    /// Users and peers share a CA: any user's certificate would be a peer's.
    #[error("serving.requestHeaderClientCAFile {SHARED_AUTHORITY}")]
    Shared,
    /// Key and certificate do not fit, or rustls refuses them.
    #[error("certificate and key cannot be used")]
    Rustls(#[from] rustls::Error),
}
