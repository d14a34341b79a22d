//! Makes a [`Config`] from the file, or all of its problems: first the sections, then the rules across keys.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::facts::Facts;
use super::files::{PEERS_CA, SHARED_AUTHORITY, USERS_CA, any_peer};
use super::problem::{Problem, ProblemKind};
use super::section::visit;
use super::tree::{KeyPath, Node};
use super::{Config, LoadedConfig, PublishLease, file, headers, values};

const API_VERSION: &str = "kube-interop-proxy/v1alpha1";
const KIND: &str = "ProxyConfiguration";

const SERVING: &str = "serving.bindAddress";
const ADDITIONAL: &str = "serving.additionalBindAddresses";
const PEER: &str = "peer.advertiseAddress";
const API_SERVER: &str = "apiServer.address";
const ADMIN: &str = "admin.bindAddress";
const SECURE_ADMIN: &str = "admin.secureBindAddress";
const ETCD: &str = "etcd.endpoints";
const NAMESPACES: &str = "identity.leaseNamespaces";
const RENEW: &str = "identity.renewInterval";

/// `check_files` gets the files that the configuration names.
pub(super) fn config(
    path: &Path,
    text: String,
    check_files: impl FnOnce(&mut Facts),
) -> Result<LoadedConfig, Vec<Problem>> {
    let root = file::parse(&text)?;
    if root == Node::Null {
        let message = "the file is empty; config.example.yaml is a complete one to start from";
        return Err(Problem::of_file(ProblemKind::Yaml, None, message));
    }
    let mut facts = Facts::default();
    // Relative paths start there.
    let base = path.parent().unwrap_or(Path::new(""));
    let root_path = KeyPath::default();
    let config = visit(root_path, Some(&root), false, base, &mut facts, |root| {
        let api_version = root.required("apiVersion", values::exactly(API_VERSION));
        let kind = root.required("kind", values::exactly(KIND));
        let config = Config::read(root);
        api_version.and(kind).and(config)
    });
    check_lists(&mut facts);
    check_addresses(&mut facts);
    check_etcd(&mut facts);
    check_lease(&mut facts);
    headers::check_collisions(&mut facts);
    check_files(&mut facts);
    let values = std::mem::take(&mut facts.values);
    let problems = facts.into_problems(|indices| file::line_of(&text, indices));
    match config {
        Some(config) if problems.is_empty() => Ok(LoadedConfig {
            config,
            values,
            text,
        }),
        _ => Err(problems),
    }
}

fn check_lists(facts: &mut Facts) {
    for list in [headers::USERNAME, headers::GROUP, ETCD] {
        if facts.is_empty(list) {
            facts.missing(list, "must not be empty");
        }
    }
    let users = facts.get::<PathBuf>(USERS_CA);
    if any_peer(facts) && users.is_some() && users == facts.get(PEERS_CA) {
        facts.contradiction(PEERS_CA, SHARED_AUTHORITY);
    }
}

/// No two of them are the same: requests must not loop, and listeners need ports of their own. Nor may the apiserver's be
/// [`PEER`], where other proxies reach this one.
const ADDRESSES: [&str; 5] = [SERVING, API_SERVER, ADMIN, SECURE_ADMIN, ADDITIONAL];

/// Port 0 (any free port) is never the same.
fn check_addresses(facts: &mut Facts) {
    let mut same = Vec::new();
    for (index, key) in ADDRESSES.iter().enumerate() {
        let peer = [PEER].into_iter().filter(|_| *key == API_SERVER);
        for other in ADDRESSES.into_iter().take(index).chain(peer) {
            let addresses = facts.each::<SocketAddr>(key);
            let equal = addresses.filter(|(_, it)| it.port() != 0 && facts.get(other) == Some(*it));
            same.extend(equal.map(|(path, _)| (path.clone(), other)));
        }
    }
    for (path, other) in same {
        let message = format!("is the same as {other}; each needs an address of its own");
        facts.add(path, ProblemKind::Contradiction, message);
    }
}

/// All endpoints have TLS, and need files, or none.
fn check_etcd(facts: &mut Facts) {
    let endpoints = facts.each::<String>(ETCD);
    let https: Vec<_> = endpoints.map(|(_, it)| it.starts_with("https:")).collect();
    let Some(first) = https.first() else {
        return;
    };
    if https.contains(&!first) {
        return facts.contradiction(ETCD, "must be all https or all http");
    }
    if facts.get(ETCD) != Some(&https.len()) {
        return;
    }
    for key in ["etcd.caFile", "etcd.certFile", "etcd.keyFile"] {
        match (first, facts.get::<PathBuf>(key)) {
            (true, None) if !facts.has_problem(key) => {
                facts.missing(key, "required with https endpoints, but missing");
            }
            (false, Some(_)) => {
                facts.contradiction(key, "has no use with http endpoints; remove it");
            }
            _ => {}
        }
    }
}

fn check_lease(facts: &mut Facts) {
    let publish = facts.get::<PublishLease>("identity.publishLease");
    let publishes = publish.is_some_and(|publish| *publish != PublishLease::Never);
    if publishes && facts.is_empty(NAMESPACES) {
        let message = "must not be empty: the first is where the Lease is kept";
        facts.missing(NAMESPACES, message);
    }
    let interval = facts.get::<Duration>(RENEW);
    let duration = facts.get::<Duration>("identity.leaseDuration");
    if duration.is_some() && interval >= duration {
        facts.contradiction(RENEW, "must be shorter than leaseDuration");
    }
}
