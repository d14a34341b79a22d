//! Checks names of headers that carry a user's identity.
//!
//! Servers trust these headers, so none of them may have another meaning: neither a header that clients send anyway, nor
//! one of a single connection, nor one in two roles. Names are compared as kube-apiserver and intermediaries may see them:
//! ignoring case, with `_` equal to `-`.

use http::HeaderName;

use super::facts::Facts;
use super::problem::Problems;
use super::tree::{KeyPath, Node};
use super::values;
use crate::kube::client_headers;

/// Headers with another meaning that clients have no need to send.
const RESERVED: &[&str] = &[
    "etag",
    "location",
    "proxy-authenticate",
    "proxy-authorization",
    "retry-after",
    "vary",
    "warning",
    "x-kubernetes-apiserver-rerouted",
    "x-kubernetes-peer-proxied",
    "x-kubernetes-ready",
];

/// The prefix of headers between proxies.
const OURS: &str = "x-kube-interop-proxy-";

pub(super) const USERNAME: &str = "serving.requestHeaderUsernameHeaders";
pub(super) const GROUP: &str = "serving.requestHeaderGroupHeaders";
const UID: &str = "serving.requestHeaderUidHeaders";
const EXTRA: &str = "serving.requestHeaderExtraHeaderPrefixes";
const VERSION: &str = "versionAwareness.header";

/// The name of a header that has no other meaning.
pub(super) fn name(node: &Node) -> Result<HeaderName, String> {
    let name = values::parsed::<HeaderName>(node, "the name of a header")?;
    let plain = plain(name.as_str());
    if RESERVED.contains(&plain.as_str())
        || plain.starts_with(OURS)
        || client_headers::is_one(&plain)
    {
        return values::refused(node, "already has a meaning; choose another header");
    }
    Ok(name)
}

/// A prefix of header names, in lower case.
pub(super) fn prefix(node: &Node) -> Result<String, String> {
    let found = values::text(
        node,
        "the start of a header's name, such as X-Remote-Extra-",
    )?;
    let Ok(name) = found.parse::<HeaderName>() else {
        return values::refused(node, "is not the start of a header's name");
    };
    let plain = plain(name.as_str());
    let mut names = client_headers::NAMES.iter().chain(RESERVED);
    let taken = names.find(|reserved| reserved.starts_with(&plain));
    let overlapping =
        |reserved: &&&str| reserved.starts_with(&plain) || plain.starts_with(**reserved);
    let mut prefixes = client_headers::PREFIXES.iter().chain([&OURS]);
    match taken.or_else(|| prefixes.find(overlapping)) {
        Some(taken) => values::refused(node, &format!("would take in {taken}; make it longer")),
        None => Ok(name.as_str().to_owned()),
    }
}

/// A header, or a prefix, and the key that names it.
struct HeaderRole {
    key: &'static str,
    plain: String,
    is_prefix: bool,
}

impl HeaderRole {
    /// Of all keys, in their order.
    fn all(facts: &Facts) -> Vec<Self> {
        let role = |key, name: &str, is_prefix| Self {
            key,
            plain: plain(name),
            is_prefix,
        };
        let mut roles = Vec::new();
        for key in [USERNAME, UID, GROUP] {
            let names = facts.items::<HeaderName>(key);
            roles.extend(names.map(|(_, name)| role(key, name.as_str(), false)));
        }
        let prefixes = facts.items::<String>(EXTRA);
        roles.extend(prefixes.map(|(_, prefix)| role(EXTRA, prefix, true)));
        let version = facts.get::<HeaderName>(VERSION);
        roles.extend(version.map(|name| role(VERSION, name.as_str(), false)));
        roles
    }

    fn collides(&self, other: &Self) -> bool {
        let takes_in = |a: &Self, b: &Self| a.is_prefix && b.plain.starts_with(&a.plain);
        self.plain == other.plain || takes_in(self, other) || takes_in(other, self)
    }
}

/// Notes headers with two roles. Repetitions within one list are found when the list is read.
pub(super) fn check_collisions(facts: &Facts, problems: &mut Problems) {
    let roles = HeaderRole::all(facts);
    for (index, later) in roles.iter().enumerate() {
        let collides = |earlier: &&HeaderRole| earlier.key != later.key && earlier.collides(later);
        if let Some(earlier) = roles[..index].iter().find(collides) {
            let message = format!(
                "{} is the same header as {} in {}",
                later.plain, earlier.plain, earlier.key
            );
            problems.add(KeyPath::of(later.key), message);
        }
    }
}

fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}
