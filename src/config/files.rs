//! Checks the certificate, key and CA files that a configuration names.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use x509_parser::time::ASN1Time;

use super::problem::Problems;
use super::tree::KeyPath;
use crate::x509::pem::{self, PemError};

/// A configuration key and the file that it names.
pub(super) type KeyedFile = (KeyPath, PathBuf);

/// A certificate file and its key file; `None` if the configuration lacks it.
#[derive(Debug, Default)]
pub(super) struct CertAndKey {
    pub(super) cert: Option<KeyedFile>,
    pub(super) key: Option<KeyedFile>,
}

#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) serving: CertAndKey,
    /// Serving certificates for further names.
    pub(super) sni: Vec<CertAndKey>,
    /// Client certificates of the proxy.
    pub(super) clients: Vec<CertAndKey>,
    /// CAs of servers.
    pub(super) authorities: Vec<KeyedFile>,
    /// CAs of clients.
    pub(super) client_authorities: Vec<KeyedFile>,
    /// CAs of users and of peers that must not have a CA in common.
    pub(super) apart: Option<(KeyedFile, KeyedFile)>,
}

impl Files {
    /// All certificates of the proxy.
    fn pairs(&self) -> impl Iterator<Item = &CertAndKey> {
        let serving = [&self.serving].into_iter().chain(&self.sni);
        serving.chain(&self.clients)
    }
}

/// Reads all files and notes those that cannot be used.
pub(super) fn check(files: &Files, problems: &mut Problems) {
    for pair in files.pairs() {
        check_pair(pair, problems);
    }
    for (key, path) in &files.authorities {
        let roots = pem::read_certs(path).and_then(|certs| pem::roots(&certs));
        noted(roots, key, path, problems);
    }
    for (key, path) in &files.client_authorities {
        let roots = pem::read_certs(path).and_then(|certs| pem::client_roots(&certs));
        noted(roots, key, path, problems);
    }
    if let Some((users, peers)) = &files.apart {
        check_apart(users, peers, problems);
    }
}

/// Checks all files, and notes certificates of the proxy that are not valid now. The proxy may run with them, as
/// kube-apiserver does, and wait for new ones.
pub(super) fn check_all(files: &Files, problems: &mut Problems) {
    check(files, problems);
    for pair in files.pairs() {
        if let Some((key, path)) = &pair.cert
            && let Ok(chain) = pem::read_certs(path)
        {
            check_validity(&chain, (key, path), problems);
        }
    }
}

fn check_pair(pair: &CertAndKey, problems: &mut Problems) {
    let chain = (pair.cert.as_ref())
        .and_then(|(key, path)| noted(pem::read_certs(path), key, path, problems));
    let signer = pair.key.as_ref().and_then(|(key, path)| {
        let signer = pem::read_key(path).and_then(|key| pem::signing_key(&key));
        noted(signer, key, path, problems)
    });
    if let (Some(chain), Some(signer), Some((key, path))) = (chain, signer, &pair.key) {
        noted(pem::certified_key(chain, signer), key, path, problems);
    }
}

fn check_validity(
    chain: &[CertificateDer<'_>],
    (key, path): (&KeyPath, &PathBuf),
    problems: &mut Problems,
) {
    let Some(leaf) = chain.first().and_then(pem::parsed) else {
        return;
    };
    let (validity, now) = (leaf.validity(), ASN1Time::now());
    let path = path.display();
    if now > validity.not_after {
        let message = format!("{path}: expired on {}; renew it", validity.not_after);
        problems.add(key.clone(), message);
    } else if now < validity.not_before {
        let message = format!(
            "{path}: not valid before {}; is the clock right?",
            validity.not_before
        );
        problems.add(key.clone(), message);
    }
}

/// With a common CA any user would be a peer, and could assert any other user.
fn check_apart((_, users): &KeyedFile, (key, peers): &KeyedFile, problems: &mut Problems) {
    // Files that cannot be read are noted already.
    let (Ok(users), Ok(peers)) = (pem::read_certs(users), pem::read_certs(peers)) else {
        return;
    };
    if pem::have_common_authority(&users, &peers) {
        problems.add(key.clone(), SHARED_AUTHORITY);
    }
}

/// Why users and peers must not have a CA in common.
pub(crate) const SHARED_AUTHORITY: &str = "has an authority that clientCAFile has too, \
     so any user could act as anyone; use another CA for peers, or fill in requestHeaderAllowedNames";

fn noted<T>(
    result: Result<T, PemError>,
    key: &KeyPath,
    path: &Path,
    problems: &mut Problems,
) -> Option<T> {
    let note = |error| problems.add(key.clone(), format!("{}: {error}", path.display()));
    result.map_err(note).ok()
}
