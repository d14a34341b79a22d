//! Parses single values of the file. Every function is pure and takes one node; its error describes the expected value.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::Authority;
use rustls::pki_types::ServerName;

use super::duration;
use super::message::quoted;
use super::tree::Node;

/// Longest duration: a year, so that sums with times cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Longest DNS label, and longest serverID.
const LABEL_BYTES: usize = 63;

/// Text of any kind; `expected` is for the message.
pub(super) fn text<'n>(node: &'n Node, expected: &str) -> Result<&'n str, String> {
    match node {
        Node::Text(text) => Ok(text),
        Node::Number(_) | Node::Flag(_) => Err(format!(
            "expected {expected}, found {}; put it in quotes if it is meant as text",
            node.kind()
        )),
        other => Err(format!("expected {expected}, found {}", other.kind())),
    }
}

pub(super) fn flag(node: &Node) -> Result<bool, String> {
    match node {
        Node::Flag(flag) => Ok(*flag),
        other => Err(format!("expected true or false, found {}", other.kind())),
    }
}

pub(super) fn number(range: RangeInclusive<u32>) -> impl Fn(&Node) -> Result<u32, String> {
    move |node| {
        let expected = format!(
            "expected a whole number from {} to {}",
            range.start(),
            range.end()
        );
        let Node::Number(text) = node else {
            return Err(format!("{expected}, found {}", node.kind()));
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("{expected}, found {}", quoted(text)))
    }
}

/// A number from 0 to `max`.
pub(super) fn share(max: f64) -> impl Fn(&Node) -> Result<f64, String> {
    move |node| {
        let expected = format!("expected a number from 0 to {max}");
        let Node::Number(text) = node else {
            return Err(format!("{expected}, found {}", node.kind()));
        };
        let share = text.parse().ok();
        share
            .filter(|share| (0.0..=max).contains(share))
            .ok_or_else(|| format!("{expected}, found {}", quoted(text)))
    }
}

pub(super) fn exactly(wanted: &str) -> impl Fn(&Node) -> Result<(), String> {
    move |node| match text(node, wanted)? {
        found if found == wanted => Ok(()),
        found => Err(format!(
            "{} is not {wanted}, the only one that is known",
            quoted(found)
        )),
    }
}

/// One of several names.
pub(super) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Node) -> Result<T, String> {
    move |node| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let found = text(node, &expected)?;
        let chosen = choices.iter().find(|(name, _)| *name == found);
        chosen
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("{} is not {expected}", quoted(found)))
    }
}

/// A Go duration of at least `min`.
pub(super) fn duration(min: Duration) -> impl Fn(&Node) -> Result<Duration, String> {
    move |node| {
        let found = match node {
            Node::Text(found) => found,
            other => {
                return Err(format!(
                    "expected a duration such as 500ms or 1m30s, found {}",
                    other.kind()
                ));
            }
        };
        let duration = duration::parse(found).map_err(|error| {
            format!(
                "{} is no duration such as 500ms or 1m30s: {error}",
                quoted(found)
            )
        })?;
        if duration < min {
            return Err(format!("must be at least {}", duration::format(min)));
        }
        if duration > MAX_DURATION {
            return Err(format!(
                "must be at most {}",
                duration::format(MAX_DURATION)
            ));
        }
        Ok(duration)
    }
}

/// A Go duration of whole seconds, for what etcd and Kubernetes keep in seconds.
pub(super) fn whole_seconds(min: Duration) -> impl Fn(&Node) -> Result<Duration, String> {
    let duration = duration(min);
    move |node| {
        let duration = duration(node)?;
        match duration.subsec_nanos() {
            0 => Ok(duration),
            _ => Err("must be whole seconds".to_owned()),
        }
    }
}

/// An IP address without a port.
pub(super) fn ip(node: &Node) -> Result<IpAddr, String> {
    const EXPECTED: &str = "an IP address such as 10.0.0.100 or 2001:db8::11";
    let found = text(node, EXPECTED)?;
    let ip = found.parse::<IpAddr>();
    ip.map(|ip| ip.to_canonical())
        .map_err(|_| format!("{} is not {EXPECTED}", quoted(found)))
}

/// `IP:port` of one host: neither all addresses nor a group of hosts.
pub(super) fn address(node: &Node) -> Result<SocketAddr, String> {
    const EXPECTED: &str = "IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443";
    let found = text(node, EXPECTED)?;
    let address: SocketAddr = found
        .parse()
        .map_err(|_| format!("{} is not {EXPECTED}", quoted(found)))?;
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        return Err(format!(
            "{} stands for every address; name one address of this host",
            address.ip()
        ));
    }
    if ip.is_multicast() || ip == std::net::Ipv4Addr::BROADCAST {
        return Err(format!("{} is no address of one host", address.ip()));
    }
    Ok(address)
}

/// `IP:port` that can be connected to.
pub(super) fn destination(node: &Node) -> Result<SocketAddr, String> {
    let address = address(node)?;
    match address.port() {
        0 => Err("needs a port".to_owned()),
        _ => Ok(address),
    }
}

/// `IP:port` that only this host can reach.
pub(super) fn loopback(node: &Node) -> Result<SocketAddr, String> {
    let address = address(node)?;
    if address.ip().to_canonical().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{} is not a loopback address such as 127.0.0.1",
        address.ip()
    ))
}

/// `host:port`; empty means none.
pub(super) fn host_and_port(node: &Node) -> Result<Option<String>, String> {
    const EXPECTED: &str = "host:port such as localhost:4317";
    let found = text(node, EXPECTED)?;
    if found.is_empty() {
        return Ok(None);
    }
    let authority = Authority::try_from(found).ok();
    let whole = authority.filter(|it| {
        !it.host().is_empty() && it.port_u16().is_some_and(|port| port > 0) && !found.contains('@')
    });
    match whole {
        Some(_) => Ok(Some(found.to_owned())),
        None => Err(format!("{} is not {EXPECTED}", quoted(found))),
    }
}

/// A file's path; relative ones start from `base`.
pub(super) fn path(base: &Path) -> impl Fn(&Node) -> Result<PathBuf, String> {
    move |node| {
        let found = text(node, "the path of a file")?;
        if found.is_empty() {
            return Err("must not be empty".to_owned());
        }
        if found.contains(char::is_control) {
            return Err(format!("{} has a control character in it", quoted(found)));
        }
        Ok(base.join(found))
    }
}

/// The name that a TLS server's certificate must have. An empty one would disable verification.
pub(super) fn server_name(node: &Node) -> Result<String, String> {
    let found = text(node, "a DNS name or an IP address")?;
    if found.is_empty() {
        return Err(
            "must not be empty: the server's certificate is verified against it".to_owned(),
        );
    }
    match ServerName::try_from(found) {
        Ok(_) => Ok(found.to_owned()),
        Err(_) => Err(format!(
            "{} is neither a DNS name nor an IP address",
            quoted(found)
        )),
    }
}

/// The name of a Kubernetes user; it can be sent in a header.
pub(super) fn user(node: &Node) -> Result<String, String> {
    let found = text(node, "the name of a user")?;
    if found.is_empty() {
        return Err("must not be empty".to_owned());
    }
    if !found.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{} has white space or more than plain ASCII in it",
            quoted(found)
        ));
    }
    Ok(found.to_owned())
}

pub(super) fn common_name(node: &Node) -> Result<String, String> {
    let found = text(node, "a common name")?;
    if found.is_empty() || found.trim() != found || found.contains(char::is_control) {
        return Err(format!(
            "{} must not be empty, nor have control characters or white space at its ends",
            quoted(found)
        ));
    }
    Ok(found.to_owned())
}

/// The ID of a server, as a Lease name; empty means none.
pub(super) fn server_id(node: &Node) -> Result<Option<String>, String> {
    let found = text(node, "a Lease name")?;
    if found.is_empty() {
        return Ok(None);
    }
    if found.len() <= LABEL_BYTES && is_subdomain(found) {
        return Ok(Some(found.to_owned()));
    }
    Err(format!(
        "{} is no Lease name: at most {LABEL_BYTES} of a-z, 0-9, '-' and '.', with a letter or digit at both ends",
        quoted(found)
    ))
}

pub(super) fn namespace(node: &Node) -> Result<String, String> {
    let found = text(node, "a namespace")?;
    if is_label(found) {
        return Ok(found.to_owned());
    }
    Err(format!(
        "{} is no namespace: at most {LABEL_BYTES} of a-z, 0-9 and '-', starting and ending with a letter or digit",
        quoted(found)
    ))
}

/// `resource` or `resource.group`.
pub(super) fn resource(node: &Node) -> Result<String, String> {
    const EXPECTED: &str = "a resource such as events or events.events.k8s.io";
    let found = text(node, EXPECTED)?;
    if is_subdomain(found) {
        return Ok(found.to_owned());
    }
    Err(format!("{} is not {EXPECTED}", quoted(found)))
}

/// Directives for log lines. Unlike `RUST_LOG`, a directive must have a level: a misspelled level would otherwise be the
/// name of a target, and silence everything else.
pub(super) fn log_filter(node: &Node) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    const EXPECTED: &str = "levels such as info,access=off";
    let found = text(node, EXPECTED)?;
    for directive in found.split(',') {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (Some(target), level),
            None => (None, directive),
        };
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
        if target.is_some_and(|target| target.is_empty() || !target.bytes().all(letter)) {
            return Err(format!(
                "{} names no target of log lines",
                quoted(directive)
            ));
        }
        if !LEVELS.contains(&level) {
            let levels = LEVELS.join(", ");
            return Err(format!("{} is not one of {levels}", quoted(level)));
        }
    }
    Ok(found.to_owned())
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let within = !text.is_empty() && text.len() <= LABEL_BYTES;
    within && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
