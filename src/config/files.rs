//! Whether the certificate, key and CA files that a configuration names can be used, now.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use x509_parser::time::ASN1Time;

use super::pem::{self, PemError};
use super::problem::{KeyPath, Problems};

/// A file and the key that names it.
pub(super) type Named = (KeyPath, PathBuf);

/// A certificate file and its key file, as far as the configuration has them.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// The chain, its own certificate first.
    pub(super) cert: Option<Named>,
    /// The private key.
    pub(super) key: Option<Named>,
}

/// The files of a configuration.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// What this proxy serves with.
    pub(super) serving: Pair,
    /// What it shows to others.
    pub(super) clients: Vec<Pair>,
    /// Authorities.
    pub(super) authorities: Vec<Named>,
    /// Authorities of users and of peers that must have nothing in common.
    pub(super) apart: Option<(Named, Named)>,
}

/// Reads all files and notes what keeps them from being used.
pub(super) fn check(files: &Files, problems: &mut Problems) {
    check_pair(&files.serving, problems);
    for pair in &files.clients {
        check_pair(pair, problems);
    }
    for (key, path) in &files.authorities {
        let roots = pem::read_certs(path).and_then(|certs| pem::roots(&certs));
        noted(roots, key, path, problems);
    }
    if let Some((users, peers)) = &files.apart {
        check_apart(users, peers, problems);
    }
}

/// The same, and whether what the proxy shows to others is valid now: nobody would believe it, but it may run and wait for
/// better, as kube-apiserver does.
pub(super) fn check_all(files: &Files, problems: &mut Problems) {
    check(files, problems);
    for pair in [&files.serving].into_iter().chain(&files.clients) {
        if let Some((key, path)) = &pair.cert
            && let Ok(chain) = pem::read_certs(path)
        {
            check_validity(&chain, (key, path), problems);
        }
    }
}

fn check_pair(pair: &Pair, problems: &mut Problems) {
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

/// Any certificate of a common authority would make its user a peer, whose word about users is believed.
fn check_apart((_, users): &Named, (key, peers): &Named, problems: &mut Problems) {
    // Files that cannot be read were noted where they were checked one by one.
    let (Ok(users), Ok(peers)) = (pem::read_certs(users), pem::read_certs(peers)) else {
        return;
    };
    if pem::have_common_authority(&users, &peers) {
        problems.add(key.clone(), SHARED_AUTHORITY);
    }
}

/// Says why users and peers must not have an authority in common.
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
