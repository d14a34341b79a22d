//! Makes rustls configurations from certificate files.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::algorithms;
use super::error::TlsError;
use super::files::{ChainAndKey, FileSnapshot};
use super::verify::{AcceptParsable, ClientCas};
use crate::config::ServingConfig;
use crate::x509::pem;

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

/// The rustls configuration of the TLS port, and the CAs that client certificates are verified against.
pub fn serving(
    config: &ServingConfig,
    reading: &FileSnapshot<'_>,
) -> Result<(Arc<ServerConfig>, ClientCas), TlsError> {
    let provider = provider();
    let users = reading.client_authorities(&config.client_ca_file)?;
    let peers = reading.client_authorities(&config.request_header_client_ca_file)?;
    if config.request_header_allowed_names.is_empty() && pem::have_common_authority(&users, &peers)
    {
        return Err(TlsError::Shared);
    }
    let cas = ClientCas::new(&users, &peers)?;
    let (chain, key) = reading.pair(&config.tls)?;
    let verifier = Arc::new(AcceptParsable::new(cas.hints()));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(server), cas))
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
