//! Verification of client certificates: the handshake accepts any that can be parsed; each request verifies the chain.
//!
//! kube-apiserver does not fail a handshake over an unknown client certificate, it answers 401 (or authenticates the
//! bearer token). So the handshake only proves possession of the key. For each request [`ClientCas`] decides whom the
//! chain belongs to, from the chain, the time and the current CAs ([`crate::x509`]).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use webpki::RawPublicKeyEntity;

use super::store::ALGORITHMS;
use crate::x509::{Certificate, Roots, pem};

/// Accepts every client certificate that can be parsed; requests one, requires none.
#[derive(Debug)]
pub struct AcceptParsable {
    hints: Vec<DistinguishedName>,
}

impl AcceptParsable {
    /// Clients are sent the names of `cas`, so that those with several certificates choose a suitable one.
    pub fn new(cas: &ClientCas) -> Self {
        let subjects = cas.certificates().map(|it| &it.subject[..]);
        Self {
            hints: hints(&subjects.collect()),
        }
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
        // Go fails it too, but for a few (docs/compatibility.md).
        pem::parsed(end_entity).ok_or(CertificateError::BadEncoding)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = key(cert)?;
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        // Of any curve: a TLS 1.2 signature scheme names only the hash.
        let fitting = ALGORITHMS.mapping.iter();
        let fitting = fitting.filter(|(scheme, _)| *scheme == dss.scheme);
        let mut fitting = fitting.flat_map(|(_, algorithms)| *algorithms);
        match fitting.any(|it| key.verify_signature(*it, message, dss.signature()).is_ok()) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &key(cert)?, dss, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

/// Only the public key matters here: the certificate may be X.509 v1, or a CA's.
fn key<'c>(cert: &'c CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'c>, rustls::Error> {
    let certificate = pem::parsed(cert).ok_or(CertificateError::BadEncoding)?;
    Ok(certificate.tbs_certificate.subject_pki.raw.into())
}

/// Most bytes of CA names in a certificate request, with their lengths. TLS allows 65,535 for the names, in version 1.3
/// for all extensions; rustls and Go take no longer message. The rest of the message is far below 1 KiB.
const HINTS: usize = (64 << 10) - (1 << 10);

/// All names, or none: a client whose CA is missing in a list may present no certificate, and without a list it may present
/// any.
fn hints(subjects: &BTreeSet<&[u8]>) -> Vec<DistinguishedName> {
    let length: usize = subjects.iter().map(|subject| 2 + subject.len()).sum();
    let sent = subjects.iter().filter(|_| length <= HINTS);
    sent.map(|subject| subject.to_vec().into()).collect()
}

/// The CAs that client certificates are verified against.
#[derive(Debug)]
pub struct ClientCas {
    /// Users: `serving.clientCAFile`.
    pub users: Roots,
    /// Peers: `serving.requestHeaderClientCAFile`.
    pub peers: Roots,
}

impl ClientCas {
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.users.certificates().chain(self.peers.certificates())
    }
}

/// The Unix seconds in which a certificate is valid; `None`: it cannot be parsed, or never is.
pub fn validity(cert: &CertificateDer<'_>) -> Option<RangeInclusive<u64>> {
    let certificate = pem::parsed(cert)?;
    let validity = certificate.validity();
    let from = u64::try_from(validity.not_before.timestamp()).unwrap_or(0);
    let until = u64::try_from(validity.not_after.timestamp()).ok()?;
    (from <= until).then_some(from..=until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sent_if_all_fit() {
        let sent = |lengths: &[usize]| {
            let names: Vec<_> = lengths.iter().map(|length| vec![b'x'; *length]).collect();
            hints(&names.iter().map(Vec::as_slice).collect()).len()
        };
        assert_eq!(sent(&[]), 0);
        // Two CAs may have one name.
        assert_eq!(sent(&[100, 100, 50]), 2);
        assert_eq!(sent(&[HINTS - 2]), 1);
        assert_eq!(sent(&[HINTS - 2, 1]), 0);
        assert_eq!(sent(&[70_000]), 0);
    }
}
