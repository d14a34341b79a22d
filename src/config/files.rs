//! Checks the certificate, key and CA files that a configuration names.

use std::path::{Path, PathBuf};

use x509_parser::time::ASN1Time;

use super::facts::Facts;
use super::problem::ProblemKind;
use super::tree::KeyPath;
use crate::x509::pem::{self, PemError};

pub(super) const USERS_CA: &str = "serving.clientCAFile";
pub(super) const PEERS_CA: &str = "serving.requestHeaderClientCAFile";

/// Why users and peers must not have a CA in common.
pub(crate) const SHARED_AUTHORITY: &str = "has an authority that clientCAFile has too, \
     so any user could act as anyone; use another CA for peers, or fill in requestHeaderAllowedNames";

/// Reads all files and notes those that cannot be used.
pub(super) fn check(facts: &mut Facts) {
    note(facts, |facts, key, path| {
        let certificates = || pem::read_certs(path);
        let usable = match name(key) {
            "certFile" | "proxyClientCertFile" => {
                certificates().and_then(|chain| pem::check_chain(&chain))
            }
            "keyFile" | "proxyClientKeyFile" => check_key(facts, key, path),
            "clientCAFile" | "requestHeaderClientCAFile" => {
                certificates().and_then(|certs| pem::client_roots(&certs).map(drop))
            }
            // CAs of servers.
            _ => certificates().and_then(|certs| pem::roots(&certs).map(drop)),
        };
        usable.err().map(|error| error.to_string())
    });
    // With a common CA any user would be a peer, and could assert any other user. Files that cannot be read are noted
    // already, and one file for both, too.
    let roots = |key| {
        let certificates = pem::read_certs(facts.get::<PathBuf>(key)?).ok()?;
        pem::client_roots(&certificates).ok()
    };
    if any_peer(facts)
        && facts.get::<PathBuf>(USERS_CA) != facts.get::<PathBuf>(PEERS_CA)
        && let Some((users, peers)) = roots(USERS_CA).zip(roots(PEERS_CA))
        && users.shares_authority(&peers)
    {
        facts.contradiction(PEERS_CA, SHARED_AUTHORITY);
    }
}

/// Notes the problems that `look` finds with files.
fn note(facts: &mut Facts, look: impl Fn(&Facts, &KeyPath, &Path) -> Option<String>) {
    let problems = facts.all::<PathBuf>().filter_map(|(key, path)| {
        let problem = look(facts, key, path)?;
        Some((key.clone(), format!("{}: {problem}", path.display())))
    });
    let problems: Vec<_> = problems.collect();
    for (key, problem) in problems {
        facts.add(key, ProblemKind::Credentials, problem);
    }
}

/// The key itself, without its section.
fn name(key: &KeyPath) -> &str {
    key.name.rsplit('.').next().unwrap_or_default()
}

/// Whether any name makes a client a peer: then only the CAs distinguish peers from users.
pub(super) fn any_peer(facts: &Facts) -> bool {
    facts.is_empty("serving.requestHeaderAllowedNames")
}

/// Checks all files, and notes certificates of the proxy that are not valid now. The proxy may run with them, as
/// kube-apiserver does, and wait for new ones.
pub(super) fn check_all(facts: &mut Facts) {
    check(facts);
    note(facts, |_, key, path| {
        let is_own = name(key).to_ascii_lowercase().ends_with("certfile");
        is_own.then(|| not_valid_now(path)).flatten()
    });
}

/// A key belongs to the certificate beside it.
fn check_key(facts: &Facts, key: &KeyPath, path: &Path) -> Result<(), PemError> {
    let signer = pem::signing_key(&pem::parse_key(&pem::read(path)?)?)?;
    let cert = name(key).replace("Key", "Cert").replace("key", "cert");
    let chain = facts.get::<PathBuf>(&key.name.replace(name(key), &cert));
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
