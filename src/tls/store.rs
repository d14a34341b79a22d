//! Certificate files, read and made into what serving needs.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::verify::{AcceptParsable, ClientCas, UnusableCas};
use crate::config::pem;
use crate::config::{KeyPair, Serving};

/// A certificate, key or CA file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or parsed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: pem::PemError,
    },
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
pub fn serving(config: &Serving) -> Result<(Arc<ServerConfig>, ClientCas), TlsError> {
    let provider = provider();
    let cas = ClientCas::new(
        &provider,
        &certs(&config.client_ca_file)?,
        &certs(&config.request_header_client_ca_file)?,
    )?;
    let (chain, key) = key_pair(&config.tls)?;
    let verifier = Arc::new(AcceptParsable::new(provider.clone(), cas.hints()));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(server), cas))
}

/// A client configuration that verifies against `ca_file` and, if given, presents `identity`.
pub fn client(ca_file: &Path, identity: Option<&KeyPair>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(ca_file)?);
    Ok(match identity {
        Some(pair) => {
            let (chain, key) = key_pair(pair)?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    pem::roots(&certs(path)?).map_err(|source| file_error(path, source))
}

type Pair = (
    Vec<CertificateDer<'static>>,
    rustls::pki_types::PrivateKeyDer<'static>,
);

fn key_pair(pair: &KeyPair) -> Result<Pair, TlsError> {
    let key = pem::read_key(&pair.key_file).map_err(|source| file_error(&pair.key_file, source))?;
    Ok((certs(&pair.cert_file)?, key))
}

fn certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    pem::read_certs(path).map_err(|source| file_error(path, source))
}

fn file_error(path: &Path, source: pem::PemError) -> TlsError {
    TlsError::File {
        path: path.display().to_string(),
        source,
    }
}
