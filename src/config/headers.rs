//! Checks names of headers that carry a user's identity.
//!
//! Servers trust these headers, so none of them may have another meaning: neither a header that clients send anyway, nor
//! one of a single connection, nor one in two roles. Names are compared as kube-apiserver and intermediaries may see them:
//! ignoring case, with `_` equal to `-`.

use http::HeaderName;

use super::message::quoted;
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

/// The name of a header that has no other meaning.
pub(super) fn name(node: &Node) -> Result<HeaderName, String> {
    let found = values::text(node, "the name of a header")?;
    let name: HeaderName = found
        .parse()
        .map_err(|_| format!("{} is not the name of a header", quoted(found)))?;
    let plain = plain(name.as_str());
    if RESERVED.contains(&plain.as_str())
        || plain.starts_with(OURS)
        || client_headers::is_one(&plain)
    {
        return Err(format!(
            "{} already has a meaning; choose another header",
            quoted(found)
        ));
    }
    Ok(name)
}

/// A prefix of header names, in lower case.
pub(super) fn prefix(node: &Node) -> Result<String, String> {
    let found = values::text(
        node,
        "the start of a header's name, such as X-Remote-Extra-",
    )?;
    let name: HeaderName = found
        .parse()
        .map_err(|_| format!("{} is not the start of a header's name", quoted(found)))?;
    let plain = plain(name.as_str());
    let mut names = client_headers::NAMES.iter().chain(RESERVED);
    let taken = names.find(|reserved| reserved.starts_with(&plain));
    let overlapping =
        |reserved: &&&str| reserved.starts_with(&plain) || plain.starts_with(**reserved);
    let mut prefixes = client_headers::PREFIXES.iter().chain([&OURS]);
    if let Some(taken) = taken.or_else(|| prefixes.find(overlapping)) {
        return Err(format!(
            "{} would take in {taken}; make it longer",
            quoted(found)
        ));
    }
    Ok(name.as_str().to_owned())
}

/// A header, or a prefix, and the key that names it.
#[derive(Debug, Clone)]
pub(super) struct HeaderRole {
    key: KeyPath,
    plain: String,
    is_prefix: bool,
}

impl HeaderRole {
    pub(super) fn name(key: KeyPath, name: &HeaderName) -> Self {
        Self {
            key,
            plain: plain(name.as_str()),
            is_prefix: false,
        }
    }

    pub(super) fn prefix(key: KeyPath, prefix: &str) -> Self {
        Self {
            key,
            plain: plain(prefix),
            is_prefix: true,
        }
    }

    fn collides(&self, other: &Self) -> bool {
        let takes_in = |a: &Self, b: &Self| a.is_prefix && b.plain.starts_with(&a.plain);
        self.plain == other.plain || takes_in(self, other) || takes_in(other, self)
    }
}

/// Notes headers with two roles. Repetitions within one list are found when the list is read.
pub(super) fn check_collisions(uses: &[HeaderRole], problems: &mut Problems) {
    for (index, later) in uses.iter().enumerate() {
        let collides = |earlier: &&HeaderRole| earlier.key != later.key && earlier.collides(later);
        if let Some(earlier) = uses[..index].iter().find(collides) {
            let message = format!(
                "{} is the same header as {} in {}",
                later.plain, earlier.plain, earlier.key
            );
            problems.add(later.key.clone(), message);
        }
    }
}

fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}
