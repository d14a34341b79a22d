//! Client certificates: anything that parses is let through the handshake, and judged later.
//!
//! kube-apiserver does not fail a handshake over an unknown client certificate, it answers 401 (or authenticates the
//! bearer token). So the handshake only proves possession of the key; whom the chain belongs to is decided for each
//! request by [`ClientCas`], from the chain, the clock and the CAs of that moment.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};

/// Accepts every client certificate that can be parsed; requests one, requires none.
#[derive(Debug)]
pub struct AcceptParsable {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl AcceptParsable {
    /// `hints`: the CA names told to clients, so that those with several certificates pick a fitting one.
    pub fn new(provider: Arc<CryptoProvider>, hints: Vec<DistinguishedName>) -> Self {
        Self { provider, hints }
    }
}

impl ClientCertVerifier for AcceptParsable {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // pingora reads serial and organization with x509-parser and panics where that fails.
        match x509_parser::parse_x509_certificate(end_entity) {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(_) => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The CAs that client certificates are judged by.
#[derive(Debug)]
pub struct ClientCas {
    /// Users: `serving.clientCAFile`.
    users: Arc<dyn ClientCertVerifier>,
    /// Peers: `serving.requestHeaderClientCAFile`.
    peers: Arc<dyn ClientCertVerifier>,
    hints: Vec<DistinguishedName>,
}

/// A CA bundle holds no certificate that can be a trust anchor.
#[derive(Debug, thiserror::Error)]
#[error("unusable client CA bundle")]
pub struct UnusableCas(#[source] rustls::server::VerifierBuilderError);

impl ClientCas {
    /// Builds both verifiers; `users` and `peers` are the bundles of the two CA files.
    pub fn new(
        provider: &Arc<CryptoProvider>,
        users: RootCertStore,
        peers: RootCertStore,
    ) -> Result<Self, UnusableCas> {
        let mut hints = users.subjects();
        hints.extend(peers.subjects());
        let build = |roots: RootCertStore| {
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(UnusableCas)
        };
        Ok(Self {
            users: build(users)?,
            peers: build(peers)?,
            hints,
        })
    }

    /// Subjects of all CAs, for the handshake's certificate request.
    pub fn hints(&self) -> Vec<DistinguishedName> {
        self.hints.clone()
    }

    /// Whether the chain is a user's: it ends at `clientCAFile`, is valid now and may be used by clients.
    pub fn is_user(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        verifies(&*self.users, chain, now)
    }

    /// Whether the chain ends at `requestHeaderClientCAFile`, is valid now and may be used by clients.
    pub fn is_peer(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        verifies(&*self.peers, chain, now)
    }
}

fn verifies(
    verifier: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> bool {
    chain.split_first().is_some_and(|(leaf, intermediates)| {
        verifier
            .verify_client_cert(leaf, intermediates, now)
            .is_ok()
    })
}
