//! Reads certificates and keys from PEM files.
//!
//! Used by the checks of a configuration and by everything that loads its files later. The results are usable:
//! certificates have been parsed, keys are of a supported type, pairs match. No error contains parts of a file.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::x509::Roots;

/// Largest file that is read, in bytes: a bundle with all public CAs has a quarter of it.
const MAX_BYTES: u64 = 1024 * 1024;

/// Most bytes of a chain: TLS, rustls and Go take no message of 64 KiB. The rest of the message is far below 1 KiB.
const MAX_CHAIN: usize = (64 << 10) - (1 << 10);

/// Why a PEM file cannot be used; without the path, which the caller knows.
#[derive(Debug, Clone, Hash, Error)]
#[error("{0}")]
pub struct PemError(Cow<'static, str>);

impl From<&'static str> for PemError {
    fn from(why: &'static str) -> Self {
        Self(why.into())
    }
}

impl From<io::Error> for PemError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => "no such file".into(),
            io::ErrorKind::PermissionDenied => {
                "permission denied; the proxy's user must be able to read it".into()
            }
            _ => Self(format!("cannot be read: {error}").into()),
        }
    }
}

/// About the certificate at this index in the file.
fn certificate(index: usize, cannot: &str) -> PemError {
    PemError(format!("certificate {} in it cannot be {cannot}", index + 1).into())
}

/// The library's messages contain parts of the file.
const DAMAGED: &str = "damaged PEM: a section has no end, or is no base64";
const NO_CERTIFICATE: &str = "no certificate in it (expected -----BEGIN CERTIFICATE-----)";

/// Reads all certificates of a file, in its order. At least one.
pub fn read_certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    parse_certs(&read(path)?)
}

/// Parses all certificates of a PEM text, in its order. At least one.
pub fn parse_certs(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let certs: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|_| DAMAGED)?;
    match certs.iter().position(|cert| parsed(cert).is_none()) {
        Some(bad) => Err(certificate(bad, "parsed")),
        None if certs.is_empty() => Err(NO_CERTIFICATE.into()),
        None => Ok(certs),
    }
}

/// Parses the first private key of a PEM text.
pub fn parse_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            "no private key in it (PKCS#8, PKCS#1 or SEC1; an encrypted one cannot be used)".into()
        }
        _ => DAMAGED.into(),
    })
}

/// Makes a private key ready for use.
pub fn signing_key(key: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, PemError> {
    let unusable = "its private key cannot be used (RSA of 2048 to 4096 bits, ECDSA P-256 or P-384, or Ed25519)";
    rustls::crypto::ring::sign::any_supported_type(key).map_err(|_| unusable.into())
}

/// Whether a chain fits into a handshake.
pub fn check_chain(chain: &[CertificateDer<'_>]) -> Result<(), PemError> {
    // Each has a length and extensions beside it.
    let length: usize = chain.iter().map(|cert| 5 + cert.len()).sum();
    match length <= MAX_CHAIN {
        true => Ok(()),
        false => Err("no TLS handshake succeeds with such a long chain; use a shorter one".into()),
    }
}

/// Joins a chain, its own certificate first, with the key of that certificate.
pub fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<CertifiedKey, PemError> {
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        Ok(()) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err("the key does not belong to the certificate".into())
        }
        Err(_) => Err(certificate(0, "parsed")),
    }
}

/// CAs for client certificates: kube-apiserver accepts any certificate that it can parse.
pub fn client_roots(certs: &[CertificateDer<'_>]) -> Result<Roots, PemError> {
    Roots::new(certs).map_err(|index| certificate(index, "used as an authority"))
}

/// CAs for server certificates.
pub fn roots(certs: &[CertificateDer<'_>]) -> Result<RootCertStore, PemError> {
    let mut store = RootCertStore::empty();
    for (index, cert) in certs.iter().enumerate() {
        let added = store.add(cert.clone());
        added.map_err(|_| certificate(index, "used as an authority"))?;
    }
    Ok(store)
}

/// The contents of a certificate; `None` for any other block.
#[must_use]
pub fn parsed<'c>(cert: &'c CertificateDer<'_>) -> Option<X509Certificate<'c>> {
    match X509Certificate::from_der(cert) {
        Ok(([], parsed)) => Some(parsed),
        _ => None,
    }
}

/// Reads a regular file up to the size limit.
pub fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    // Before opening: opening a pipe waits for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        0..=MAX_BYTES => Ok(bytes),
        _ => Err("larger than 1048576 bytes; this cannot be right".into()),
    }
}
