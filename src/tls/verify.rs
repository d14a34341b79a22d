//! Client certificates: anything that parses is let through the handshake, and judged later.
//!
//! kube-apiserver does not fail a handshake over an unknown client certificate, it answers 401 (or authenticates the
//! bearer token). So the handshake only proves possession of the key; whom the chain belongs to is decided for each
//! request by [`ClientCas`], from the chain, the clock and the CAs of that moment.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

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

/// The CAs that client certificates are judged by, as Go's crypto/x509 judges them for kube-apiserver.
#[derive(Debug)]
pub struct ClientCas {
    provider: Arc<CryptoProvider>,
    /// Users: `serving.clientCAFile`.
    users: Vec<Root>,
    /// Peers: `serving.requestHeaderClientCAFile`.
    peers: Vec<Root>,
}

/// One certificate of a CA file.
#[derive(Debug)]
struct Root {
    anchor: TrustAnchor<'static>,
    /// Unix seconds. webpki takes a root for good at any time, Go does not.
    validity: RangeInclusive<u64>,
}

/// What a certificate must be for, if it says what it is for: clients, or anything (anyExtendedKeyUsage).
const USAGES: [KeyUsage; 2] = [
    KeyUsage::client_auth(),
    KeyUsage::required_if_present(&[0x55, 0x1d, 0x25, 0x00]),
];

/// Most certificates between a client's and a CA that are looked at, in the order in which they came. webpki tries every
/// order of those with one name, and anybody can present a hundred of them: that is seconds of work for each request.
const MOST_BETWEEN: usize = 5;

/// A CA bundle holds a certificate that cannot be a trust anchor.
#[derive(Debug, thiserror::Error)]
#[error("unusable client CA bundle")]
pub struct UnusableCas(#[source] webpki::Error);

impl ClientCas {
    /// `users` and `peers` are the bundles of the two CA files.
    pub fn new(
        provider: &Arc<CryptoProvider>,
        users: &[CertificateDer<'_>],
        peers: &[CertificateDer<'_>],
    ) -> Result<Self, UnusableCas> {
        let roots =
            |certs: &[CertificateDer<'_>]| certs.iter().map(Root::new).collect::<Result<_, _>>();
        Ok(Self {
            provider: provider.clone(),
            users: roots(users)?,
            peers: roots(peers)?,
        })
    }

    /// Subjects of all CAs, for the handshake's certificate request.
    pub fn hints(&self) -> Vec<DistinguishedName> {
        let roots = self.users.iter().chain(&self.peers);
        roots
            .map(|root| DistinguishedName::in_sequence(root.anchor.subject.as_ref()))
            .collect()
    }

    /// Whether the chain is a user's: it ends at `clientCAFile`, is valid now and may be used by clients.
    pub fn is_user(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        self.verifies(&self.users, chain, now)
    }

    /// Whether the chain ends at `requestHeaderClientCAFile`, is valid now and may be used by clients.
    pub fn is_peer(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        self.verifies(&self.peers, chain, now)
    }

    /// Unix seconds around `now` in which no root begins or ceases to be valid.
    pub fn unchanged(&self, now: u64) -> RangeInclusive<u64> {
        let (mut from, mut until) = (0, u64::MAX);
        for root in self.users.iter().chain(&self.peers) {
            let (start, end) = (*root.validity.start(), *root.validity.end());
            for first in [start, end.saturating_add(1)] {
                match first <= now {
                    true => from = from.max(first),
                    false => until = until.min(first - 1),
                }
            }
        }
        from..=until
    }

    fn verifies(&self, roots: &[Root], chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return false;
        };
        let Ok(leaf) = EndEntityCert::try_from(leaf) else {
            return false;
        };
        let between = intermediates.get(..MOST_BETWEEN).unwrap_or(intermediates);
        let anchors: Vec<_> = roots
            .iter()
            .filter(|root| root.validity.contains(&now.as_secs()))
            .map(|root| root.anchor.clone())
            .collect();
        let algorithms = self.provider.signature_verification_algorithms.all;
        USAGES.into_iter().any(|usage| {
            leaf.verify_for_usage(algorithms, &anchors, between, now, usage, None, None)
                .is_ok()
        })
    }
}

impl Root {
    fn new(cert: &CertificateDer<'_>) -> Result<Self, UnusableCas> {
        let unusable = UnusableCas;
        Ok(Self {
            anchor: webpki::anchor_from_trusted_cert(cert)
                .map_err(unusable)?
                .to_owned(),
            validity: validity(cert).ok_or(UnusableCas(webpki::Error::BadDer))?,
        })
    }
}

/// The Unix seconds in which a certificate is valid; `None`: it cannot be parsed, or never is.
pub fn validity(cert: &CertificateDer<'_>) -> Option<RangeInclusive<u64>> {
    let validity = x509_parser::parse_x509_certificate(cert)
        .ok()?
        .1
        .validity()
        .clone();
    let from = u64::try_from(validity.not_before.timestamp()).unwrap_or(0);
    let until = u64::try_from(validity.not_after.timestamp()).ok()?;
    (from <= until).then_some(from..=until)
}
