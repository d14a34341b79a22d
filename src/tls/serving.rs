//! The rustls configurations of the TLS port, made from its options and one snapshot of its files.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedCipherSuite};

use super::error::TlsError;
use super::files::FileSnapshot;
use super::sni::Selection;
use super::store;
use super::verify::{AcceptParsable, ClientCas};
use crate::config::{KeyPair, MinTlsVersion, ServingConfig};

/// What connections are accepted with.
pub struct ServingTls {
    default: Arc<ServerConfig>,
    /// For addresses with a certificate of their own.
    by_address: HashMap<IpAddr, Arc<ServerConfig>>,
}

impl ServingTls {
    /// From the files of `config`; also the CAs that client certificates are verified against.
    pub fn read(
        config: &ServingConfig,
        reading: &FileSnapshot<'_>,
    ) -> Result<(Self, ClientCas), TlsError> {
        let cas = ClientCas {
            users: reading.client_roots(&config.client_ca_file)?,
            peers: reading.client_roots(&config.request_header_client_ca_file)?,
        };
        if config.request_header_allowed_names.is_empty() && cas.users.shares_authority(&cas.peers)
        {
            return Err(TlsError::Shared);
        }
        let verifier = Arc::new(AcceptParsable::new(&cas));
        let provider = provider(config);
        let selection = selection(config, reading, &provider.cipher_suites)?;
        let versions = match config.min_tls_version {
            MinTlsVersion::VersionTLS12 => &[&TLS13, &TLS12][..],
            MinTlsVersion::VersionTLS13 => &[&TLS13],
        };
        let server = |selection: Selection| {
            let mut server = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions)?
                .with_client_cert_verifier(verifier.clone())
                .with_cert_resolver(Arc::new(selection));
            server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            Ok::<_, TlsError>(Arc::new(server))
        };
        let by_address = selection.by_address.keys();
        let by_address = by_address.map(|address| Ok((*address, server(selection.at(*address))?)));
        let tls = Self {
            by_address: by_address.collect::<Result<_, TlsError>>()?,
            default: server(selection)?,
        };
        Ok((tls, cas))
    }

    /// The configuration for a connection to this address of the proxy.
    pub fn at(&self, address: Option<IpAddr>) -> &Arc<ServerConfig> {
        let address = address.map(|address| address.to_canonical());
        let own = address.and_then(|address| self.by_address.get(&address));
        own.unwrap_or(&self.default)
    }
}

/// The certificate that clients get who ask for `name`, or without a name for `address`.
pub fn certificate_for<'c>(
    config: &'c ServingConfig,
    reading: &FileSnapshot<'_>,
    name: Option<&str>,
    address: IpAddr,
) -> Result<&'c KeyPair, TlsError> {
    let selection = selection(config, reading, &[])?.at(address.to_canonical());
    let chosen = selection.choose(name, |_| true);
    let named = chosen
        .checked_sub(1)
        .and_then(|index| config.sni_certificates.get(index));
    Ok(named.map_or(&config.tls, |certificate| &certificate.pair))
}

fn selection(
    config: &ServingConfig,
    reading: &FileSnapshot<'_>,
    suites: &[SupportedCipherSuite],
) -> Result<Selection, TlsError> {
    let named = config.sni_certificates.iter().map(|certificate| {
        let key = reading.certified_key(&certificate.pair)?;
        Ok((key, &certificate.names[..]))
    });
    let named = named.collect::<Result<_, TlsError>>()?;
    let default = reading.certified_key(&config.tls)?;
    Ok(Selection::new(default, named, suites))
}

/// The provider with the cipher suites that `config` names.
///
/// Go cannot choose among those of TLS 1.3: a list without one leaves them all in use. So does this.
fn provider(config: &ServingConfig) -> Arc<CryptoProvider> {
    let named = &config.cipher_suites;
    if named.is_empty() {
        return store::PROVIDER.clone();
    }
    let is_named = |suite: &SupportedCipherSuite| named.contains(&suite.suite());
    let is_tls13 = |suite: &SupportedCipherSuite| suite.tls13().is_some();
    let mut provider = CryptoProvider::clone(&store::PROVIDER);
    let suites = &mut provider.cipher_suites;
    let chooses_tls13 = suites.iter().any(|it| is_tls13(it) && is_named(it));
    suites.retain(|suite| is_named(suite) || is_tls13(suite) && !chooses_tls13);
    Arc::new(provider)
}
