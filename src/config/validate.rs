//! Makes a [`Config`] from the file, or all of its problems: first the sections, then the rules across them.

use std::net::SocketAddr;
use std::path::Path;

use super::effective::EffectiveValues;
use super::facts::Facts;
use super::files::Files;
use super::problem::{Problem, Problems};
use super::section::Section;
use super::tree::{KeyPath, Node};
use super::{Config, file, headers, sections, values};

const API_VERSION: &str = "kube-interop-proxy/v1alpha1";
const KIND: &str = "ProxyConfiguration";

/// `check_files` gets the files that the configuration names.
pub(super) fn config(
    text: &str,
    base: &Path,
    check_files: impl FnOnce(&Files, &mut Problems),
) -> Result<(Config, EffectiveValues), Vec<Problem>> {
    let root = file::parse(text).map_err(|problem| vec![problem])?;
    if root == Node::Null {
        let message = "the file is empty; config.example.yaml is a complete one to start from";
        return Err(vec![Problem::of_file(None, message)]);
    }
    let mut problems = Problems::default();
    let mut facts = Facts::new(base);
    let mut values = EffectiveValues::default();
    let notes = (&mut problems, &mut values);
    let config = Section::root(&root, notes, |root| whole(root, &mut facts));
    check_addresses(&facts, &mut problems);
    check_additional_addresses(&facts, &mut problems);
    headers::check_collisions(&facts.headers, &mut problems);
    check_files(&facts.files, &mut problems);
    match config {
        Some(config) if problems.is_empty() => Ok((config, values)),
        _ => Err(problems.located(text, &root)),
    }
}

fn whole(root: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<Config> {
    // Reads all sections before the first `?`, so that all problems are noted.
    let api_version = root.required("apiVersion", values::exactly(API_VERSION));
    let kind = root.required("kind", values::exactly(KIND));
    let serving = root.section("serving", |s| sections::serving(s, facts));
    let api_server = root.section("apiServer", |s| sections::api_server(s, facts));
    let etcd = root.section("etcd", |s| sections::etcd(s, facts));
    let identity = root.section("identity", sections::identity);
    let peer = root.section("peer", |s| sections::peer(s, facts));
    let if_ready = root.section("ifReady", sections::if_ready);
    let rerouting = root.section("rerouting", sections::rerouting);
    let version_awareness = root.section("versionAwareness", |s| {
        sections::version_awareness(s, facts)
    });
    let discovery = root.section("discovery", sections::discovery);
    let watch = root.section("watch", sections::watch);
    let shutdown = root.section("shutdown", sections::shutdown);
    let admin = root.section("admin", |s| sections::admin(s, facts));
    let tracing = root.section("tracing", sections::tracing);
    let logging = root.section("logging", sections::logging);
    api_version.and(kind)?;
    Some(Config {
        serving: serving?,
        api_server: api_server?,
        etcd: etcd?,
        identity: identity?,
        peer: peer?,
        if_ready: if_ready?,
        rerouting: rerouting?,
        version_awareness: version_awareness?,
        discovery: discovery?,
        watch: watch?,
        shutdown: shutdown?,
        admin: admin?,
        tracing: tracing?,
        logging: logging?,
    })
}

const LOOP: &str = "the proxy would send every request to itself";
const TAKEN: &str = "each needs a port of its own";

/// Requests must not loop, and two listeners must not have the same port.
fn check_addresses(facts: &Facts<'_>, problems: &mut Problems) {
    let serving = ("serving.bindAddress", facts.serving);
    let peer = ("peer.advertiseAddress", facts.peer);
    let api_server = ("apiServer.address", facts.api_server);
    let admin = ("admin.bindAddress", facts.admin);
    let secure = ("admin.secureBindAddress", facts.secure_admin);
    for ((key, address), (other_key, other), consequence) in [
        (api_server, serving, LOOP),
        (api_server, peer, LOOP),
        (admin, serving, TAKEN),
        (admin, api_server, TAKEN),
        (secure, serving, TAKEN),
        (secure, api_server, TAKEN),
        (secure, admin, TAKEN),
    ] {
        if is_same(address, other) {
            problems.add(
                KeyPath::of(key),
                format!("is the same as {other_key}; {consequence}"),
            );
        }
    }
}

/// Finds further addresses that are taken: one that is there twice would get two listeners.
fn check_additional_addresses(facts: &Facts<'_>, problems: &mut Problems) {
    let additional = KeyPath::of("serving.additionalBindAddresses");
    for (index, address) in facts.additional.iter().enumerate() {
        let mut same_as = |key: &str, other, consequence| {
            if is_same(*address, other) {
                let message = format!("is the same as {key}; {consequence}");
                problems.add(additional.item(index), message);
            }
        };
        same_as("serving.bindAddress", facts.serving, "remove it here");
        same_as("apiServer.address", facts.api_server, LOOP);
        same_as("admin.bindAddress", facts.admin, TAKEN);
        same_as("admin.secureBindAddress", facts.secure_admin, TAKEN);
        // Items that are literally the same are noted where the list is read.
        let earlier = facts.additional.iter().take(index);
        let spelled_otherwise = |other: &&Option<SocketAddr>| **other != *address;
        for other in earlier.filter(spelled_otherwise) {
            if is_same(*address, *other) {
                problems.add(additional.item(index), "is there twice; remove one");
            }
        }
    }
}

/// Port 0 (any free port) is never the same.
fn is_same(one: Option<SocketAddr>, other: Option<SocketAddr>) -> bool {
    let whole = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    one.filter(|address| address.port() != 0)
        .map(whole)
        .is_some_and(|one| other.map(whole) == Some(one))
}
