//! The crypto provider, and rustls configurations of clients.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use super::algorithms;
use super::error::TlsError;
use super::files::ChainAndKey;

/// The one crypto provider of this process.
pub fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(algorithms::provider()))
}

/// Makes it the process's default provider; the first thing `main` does. Calling it again changes nothing.
pub fn install_provider() {
    // An error says that a default is installed already: the same one, ring is the only provider compiled in.
    let _ = algorithms::provider().install_default();
}

/// A client configuration that verifies against `cas` and, if given, presents `identity`.
pub fn client(
    cas: &[CertificateDer<'_>],
    identity: Option<ChainAndKey>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(cas));
    Ok(match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    })
}

/// Certificates that cannot be CAs are left out.
fn roots(cas: &[CertificateDer<'_>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(cas.iter().map(|ca| ca.clone().into_owned()));
    roots
}
