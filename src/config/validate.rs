//! Makes a [`Config`] from the file, or all of its problems: first the sections, then the rules across keys.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::effective::EffectiveValues;
use super::facts::Facts;
use super::files::{PEERS_CA, SHARED_AUTHORITY, USERS_CA, any_peer};
use super::problem::{Problem, Problems};
use super::section::{Notes, Section};
use super::tree::{KeyPath, Node};
use super::{Config, PublishLease, file, headers, values};

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
    text: &str,
    base: &Path,
    check_files: impl FnOnce(&Facts, &mut Problems),
) -> Result<(Config, EffectiveValues), Vec<Problem>> {
    let root = file::parse(text).map_err(|problem| vec![problem])?;
    if root == Node::Null {
        let message = "the file is empty; config.example.yaml is a complete one to start from";
        return Err(vec![Problem::of_file(None, message)]);
    }
    let mut notes = Notes::of_file_in(base);
    let config = Section::root(&root, &mut notes, |root| {
        let api_version = root.required("apiVersion", values::exactly(API_VERSION));
        let kind = root.required("kind", values::exactly(KIND));
        let config = Config::read(root);
        api_version.and(kind).and(config)
    });
    let (facts, mut problems) = (notes.facts, notes.problems);
    check_lists(&facts, &mut problems);
    check_addresses(&facts, &mut problems);
    check_etcd(&facts, &mut problems);
    check_lease(&facts, &mut problems);
    headers::check_collisions(&facts, &mut problems);
    check_files(&facts, &mut problems);
    match config {
        Some(config) if problems.is_empty() => Ok((config, notes.values)),
        _ => Err(problems.located(text, &root)),
    }
}

fn check_lists(facts: &Facts, problems: &mut Problems) {
    for list in [headers::USERNAME, headers::GROUP, ETCD] {
        if facts.length(list) == Some(0) {
            problems.add(KeyPath::of(list), "must not be empty");
        }
    }
    let users = facts.get::<PathBuf>(USERS_CA);
    if any_peer(facts) && users.is_some() && users == facts.get(PEERS_CA) {
        problems.add(KeyPath::of(PEERS_CA), SHARED_AUTHORITY);
    }
}

const LOOP: &str = "the proxy would send every request to itself";
const TAKEN: &str = "each needs a port of its own";

/// The addresses of each key must not be those of other keys, for these reasons.
const APART: [(&str, &[(&str, &str)]); 4] = [
    (API_SERVER, &[(SERVING, LOOP), (PEER, LOOP)]),
    (ADMIN, &[(SERVING, TAKEN), (API_SERVER, TAKEN)]),
    (
        SECURE_ADMIN,
        &[(SERVING, TAKEN), (API_SERVER, TAKEN), (ADMIN, TAKEN)],
    ),
    (
        ADDITIONAL,
        &[
            (SERVING, "remove it here"),
            (API_SERVER, LOOP),
            (ADMIN, TAKEN),
            (SECURE_ADMIN, TAKEN),
        ],
    ),
];

/// Requests must not loop, and two listeners must not have the same port.
fn check_addresses(facts: &Facts, problems: &mut Problems) {
    for (key, others) in APART {
        let key = KeyPath::of(key);
        let of_key = |(path, _): &(&KeyPath, _)| **path == key || path.is_item_of(&key);
        for (path, address) in facts.all().filter(of_key) {
            for (other, consequence) in others {
                if is_same(address, facts.get(other)) {
                    let message = format!("is the same as {other}; {consequence}");
                    problems.add(path.clone(), message);
                }
            }
        }
    }
    // In another spelling; items that are literally the same are noted where the list is read.
    for (index, (path, address)) in facts.items(ADDITIONAL).enumerate() {
        let mut earlier = facts.items(ADDITIONAL).take(index);
        if earlier.any(|(_, other)| is_same(address, Some(other))) {
            problems.add(path.clone(), "is there twice; remove one");
        }
    }
}

/// Port 0 (any free port) is never the same.
fn is_same(one: &SocketAddr, other: Option<&SocketAddr>) -> bool {
    let whole = |address: &SocketAddr| (address.ip().to_canonical(), address.port());
    one.port() != 0 && other.map(whole) == Some(whole(one))
}

/// All endpoints have TLS, and need files, or none.
fn check_etcd(facts: &Facts, problems: &mut Problems) {
    let endpoints = facts.items::<String>(ETCD);
    let https: Vec<_> = endpoints.map(|(_, it)| it.starts_with("https:")).collect();
    let Some(first) = https.first() else {
        return;
    };
    if https.contains(&!first) {
        problems.add(KeyPath::of(ETCD), "must be all https or all http");
        return;
    }
    if facts.length(ETCD) != Some(https.len()) {
        return;
    }
    for key in ["etcd.caFile", "etcd.certFile", "etcd.keyFile"] {
        let path = KeyPath::of(key);
        match (first, facts.at::<PathBuf>(&path)) {
            (true, None) if !problems.has(&path) => {
                problems.add(path, "required with https endpoints, but missing");
            }
            (false, Some(_)) => problems.add(path, "has no use with http endpoints; remove it"),
            _ => {}
        }
    }
}

fn check_lease(facts: &Facts, problems: &mut Problems) {
    let publish = facts.get::<PublishLease>("identity.publishLease");
    if publish.is_some_and(|publish| *publish != PublishLease::Never)
        && facts.length(NAMESPACES) == Some(0)
    {
        let message = "must not be empty: the first is where the Lease is kept";
        problems.add(KeyPath::of(NAMESPACES), message);
    }
    let interval = facts.get::<Duration>(RENEW);
    let duration = facts.get::<Duration>("identity.leaseDuration");
    if let (Some(renew), Some(duration)) = (interval, duration)
        && renew >= duration
    {
        problems.add(KeyPath::of(RENEW), "must be shorter than leaseDuration");
    }
}
