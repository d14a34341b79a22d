//! Certificate files, made into what serving needs.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::reading::{Pair, Reading};
use super::verify::{AcceptParsable, ClientCas, UnusableCas};
use crate::config::pem::{self, PemError};
use crate::config::{SHARED_AUTHORITY, Serving};

/// A certificate, key or CA file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or parsed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Arc<PemError>,
    },
    /// Authorities that anybody's certificate would make a peer.
    #[error("serving.requestHeaderClientCAFile {SHARED_AUTHORITY}")]
    Shared,
    /// An empty chain.
    #[error("no certificate")]
    NoCertificate,
    /// A client CA bundle without a usable certificate.
    #[error(transparent)]
    Cas(#[from] UnusableCas),
    /// Key and certificate do not fit, or rustls refuses them.
    #[error("certificate and key cannot be used")]
    Rustls(#[from] rustls::Error),
}

/// The one crypto provider of this process.
pub fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}

/// Makes ring the process's default provider; the first thing `main` does. Calling it again changes nothing.
pub fn install_provider() {
    // An error says that a default is installed already: the same one, ring is the only provider compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What the TLS port needs: its rustls configuration, and the CAs that requests are judged by.
pub fn serving(
    config: &Serving,
    reading: &Reading<'_>,
) -> Result<(Arc<ServerConfig>, ClientCas), TlsError> {
    let provider = provider();
    let users = reading.authorities(&config.client_ca_file)?;
    let peers = reading.authorities(&config.request_header_client_ca_file)?;
    if config.request_header_allowed_names.is_empty() && pem::have_common_authority(&users, &peers)
    {
        return Err(TlsError::Shared);
    }
    let cas = ClientCas::new(&provider, &users, &peers)?;
    let (chain, key) = reading.pair(&config.tls)?;
    let verifier = Arc::new(AcceptParsable::new(provider.clone(), cas.hints()));
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
    identity: Option<Pair>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(cas));
    Ok(match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    })
}

/// Of certificates that can be authorities.
fn roots(cas: &[CertificateDer<'_>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(cas.iter().map(|ca| ca.clone().into_owned()));
    roots
}
