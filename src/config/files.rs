//! Whether the certificate, key and CA files that a configuration names can be used, now.

use std::collections::HashSet;
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

/// Reads all files and notes what is wrong with them.
pub(super) fn check(files: &Files, problems: &mut Problems) {
    if let (Some(chain), Some((key, path))) =
        (check_pair(&files.serving, problems), &files.serving.cert)
    {
        check_validity(&chain, (key, path), problems);
    }
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

/// Returns the chain if there is a good one, whatever its key is like.
fn check_pair(pair: &Pair, problems: &mut Problems) -> Option<Vec<CertificateDer<'static>>> {
    let chain = (pair.cert.as_ref())
        .and_then(|(key, path)| noted(pem::read_certs(path), key, path, problems));
    let signer = pair.key.as_ref().and_then(|(key, path)| {
        let signer = pem::read_key(path).and_then(|key| pem::signing_key(&key));
        noted(signer, key, path, problems)
    });
    if let (Some(chain), Some(signer), Some((key, path))) = (&chain, signer, &pair.key) {
        noted(
            pem::certified_key(chain.clone(), signer),
            key,
            path,
            problems,
        );
    }
    chain
}

/// An expired serving certificate keeps everybody out. The others only cost their part, so the program may run
/// with them.
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
    let users: HashSet<_> = users.iter().filter_map(authority).collect();
    if peers
        .iter()
        .filter_map(authority)
        .any(|peer| users.contains(&peer))
    {
        problems.add(key.clone(), SHARED_AUTHORITY);
    }
}

/// Says why users and peers must not have an authority in common.
pub(super) const SHARED_AUTHORITY: &str = "has an authority that clientCAFile has too, \
     so any user could act as anyone; use another CA for peers, or fill in requestHeaderAllowedNames";

/// Subject and public key make an authority; the certificate around them may be renewed.
fn authority<'c>(cert: &'c CertificateDer<'_>) -> Option<(&'c [u8], &'c [u8])> {
    let cert = pem::parsed(cert)?;
    Some((
        cert.tbs_certificate.subject.as_raw(),
        cert.tbs_certificate.subject_pki.raw,
    ))
}

fn noted<T>(
    result: Result<T, PemError>,
    key: &KeyPath,
    path: &Path,
    problems: &mut Problems,
) -> Option<T> {
    let note = |error| problems.add(key.clone(), format!("{}: {error}", path.display()));
    result.map_err(note).ok()
}
