//! Checks the certificate, key and CA files that a configuration names.

use std::path::{Path, PathBuf};

use x509_parser::time::ASN1Time;

use super::facts::Facts;
use super::problem::Problems;
use super::tree::KeyPath;
use crate::x509::pem::{self, PemError};

pub(super) const USERS_CA: &str = "serving.clientCAFile";
pub(super) const PEERS_CA: &str = "serving.requestHeaderClientCAFile";

/// Why users and peers must not have a CA in common.
pub(crate) const SHARED_AUTHORITY: &str = "has an authority that clientCAFile has too, \
     so any user could act as anyone; use another CA for peers, or fill in requestHeaderAllowedNames";

/// Reads all files and notes those that cannot be used.
pub(super) fn check(facts: &Facts, problems: &mut Problems) {
    for (key, path) in facts.all::<PathBuf>() {
        let certificates = || pem::read_certs(path);
        let usable = match key.name() {
            "certFile" | "proxyClientCertFile" => certificates().map(drop),
            "keyFile" | "proxyClientKeyFile" => check_key(facts, key, path),
            "clientCAFile" | "requestHeaderClientCAFile" => {
                certificates().and_then(|certs| pem::client_roots(&certs).map(drop))
            }
            // CAs of servers.
            _ => certificates().and_then(|certs| pem::roots(&certs).map(drop)),
        };
        if let Err(error) = usable {
            problems.add(key.clone(), format!("{}: {error}", path.display()));
        }
    }
    if any_peer(facts) {
        check_apart(facts, problems);
    }
}

/// Whether any name makes a client a peer: then only the CAs distinguish peers from users.
pub(super) fn any_peer(facts: &Facts) -> bool {
    facts.length("serving.requestHeaderAllowedNames") == Some(0)
}

/// Checks all files, and notes certificates of the proxy that are not valid now. The proxy may run with them, as
/// kube-apiserver does, and wait for new ones.
pub(super) fn check_all(facts: &Facts, problems: &mut Problems) {
    check(facts, problems);
    for (key, path) in facts.all::<PathBuf>() {
        if key.name().to_ascii_lowercase().ends_with("certfile")
            && let Some(problem) = not_valid_now(path)
        {
            problems.add(key.clone(), format!("{}: {problem}", path.display()));
        }
    }
}

/// A key belongs to the certificate beside it.
fn check_key(facts: &Facts, key: &KeyPath, path: &Path) -> Result<(), PemError> {
    let signer = pem::read_key(path).and_then(|key| pem::signing_key(&key))?;
    let cert = key.name().replace("Key", "Cert").replace("key", "cert");
    let chain = facts.at::<PathBuf>(&key.sibling(&cert));
    // One that cannot be read is noted with its own key.
    match chain.map(|path| pem::read_certs(path)) {
        Some(Ok(chain)) => pem::certified_key(chain, signer).map(drop),
        Some(Err(_)) | None => Ok(()),
    }
}

fn not_valid_now(path: &Path) -> Option<String> {
    let chain = pem::read_certs(path).ok()?;
    let leaf = pem::parsed(chain.first()?)?;
    let (validity, now) = (leaf.validity(), ASN1Time::now());
    if now > validity.not_after {
        return Some(format!("expired on {}; renew it", validity.not_after));
    }
    let begin = validity.not_before;
    (now < begin).then(|| format!("not valid before {begin}; is the clock right?"))
}

/// With a common CA any user would be a peer, and could assert any other user.
fn check_apart(facts: &Facts, problems: &mut Problems) {
    let certificates = |key| pem::read_certs(facts.get::<PathBuf>(key)?).ok();
    // Files that cannot be read are noted already, and one file for both, too.
    if facts.get::<PathBuf>(USERS_CA) != facts.get::<PathBuf>(PEERS_CA)
        && let Some((users, peers)) = certificates(USERS_CA).zip(certificates(PEERS_CA))
        && pem::have_common_authority(&users, &peers)
    {
        problems.add(KeyPath::of(PEERS_CA), SHARED_AUTHORITY);
    }
}
