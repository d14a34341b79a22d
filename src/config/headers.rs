//! Checks names of headers that carry a user's identity.
//!
//! Servers trust these headers, so none of them may have another meaning: neither a header that clients send anyway, nor
//! one of a single connection, nor one in two roles. Names are compared as kube-apiserver and intermediaries may see them:
//! ignoring case, with `_` equal to `-`.

use http::HeaderName;

use super::facts::Facts;
use super::tree::Node;
use super::values;
use crate::kube::client_headers;
use crate::kube::requestheader::NameList;

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

/// The key of the names of this list.
pub(crate) fn key(list: NameList) -> &'static str {
    match list {
        NameList::Username => USERNAME,
        NameList::Uid => UID,
        NameList::Group => GROUP,
        NameList::Extra => EXTRA,
    }
}

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
    let expected = "the start of a header's name, such as X-Remote-Extra-";
    let found = values::text(node, expected)?;
    let Ok(name) = found.parse::<HeaderName>() else {
        return values::refused(node, "is not the start of a header's name");
    };
    let plain = plain(name.as_str());
    let mut names = client_headers::NAMES.iter().chain(RESERVED);
    let mut prefixes = client_headers::PREFIXES.iter().chain([&OURS]);
    let overlaps = |prefix: &&str| prefix.starts_with(&plain) || plain.starts_with(prefix);
    match names.any(|name| name.starts_with(&plain)) || prefixes.any(overlaps) {
        true => values::refused(node, "would take in headers with a meaning; make it longer"),
        false => Ok(name.as_str().to_owned()),
    }
}

/// Notes headers with two roles. Repetitions within one list are found when the list is read.
pub(super) fn check_collisions(facts: &mut Facts) {
    let names = [USERNAME, UID, GROUP, VERSION].into_iter().flat_map(|key| {
        let names = facts.each::<HeaderName>(key);
        names.map(move |(_, name)| (key, plain(name.as_str())))
    });
    let names: Vec<_> = names.collect();
    let prefixes = facts.each::<String>(EXTRA);
    let prefixes: Vec<_> = prefixes.map(|(_, prefix)| plain(prefix)).collect();
    for (index, (key, name)) in names.iter().enumerate() {
        let mut earlier = names.iter().take(index);
        if let Some((other, _)) = earlier.find(|(other, it)| other != key && it == name) {
            facts.contradiction(key, format!("{name} is the same header as in {other}"));
        }
        if let Some(prefix) = prefixes.iter().find(|prefix| name.starts_with(*prefix)) {
            let later = if *key == VERSION { VERSION } else { EXTRA };
            let message = format!("{prefix} of {EXTRA} takes in {name} of {key}");
            facts.contradiction(later, message);
        }
    }
}

fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}
