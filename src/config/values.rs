//! Parses single values of the file. Every function is pure and takes one node; its error describes the expected value.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::uri::Authority;
use rustls::CipherSuite;
use rustls::crypto::ring::ALL_CIPHER_SUITES;
use rustls::pki_types::ServerName;

use super::SniName;
use super::duration;
use super::tree::{Node, joined, quoted};

/// Longest duration: a year, so that sums with times cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Prefix of the proxies' keys; the apiservers' keys must not be below it.
const OWN_KEYS: &str = "/kube-interop-proxy";

/// Longest DNS label, and longest serverID.
const LABEL_BYTES: usize = 63;

/// Text of any kind; `expected` is for the message.
pub(super) fn text<'n>(node: &'n Node, expected: &str) -> Result<&'n str, String> {
    match node {
        Node::Text(text) => Ok(text),
        other => Err(format!("expected {expected}, found {}", other.kind())),
    }
}

/// Text that can be parsed as `T`.
pub(super) fn parsed<T: FromStr>(node: &Node, expected: &str) -> Result<T, String> {
    read(node, expected, |found| found.parse().ok())
}

/// Text that `read` takes.
pub(super) fn read<'n, T>(
    node: &'n Node,
    expected: &str,
    read: impl FnOnce(&'n str) -> Option<T>,
) -> Result<T, String> {
    let found = text(node, expected)?;
    read(found).ok_or_else(|| format!("{} is not {expected}", quoted(found)))
}

/// The text that `is_good`.
fn checked(node: &Node, expected: &str, is_good: impl Fn(&str) -> bool) -> Result<String, String> {
    let good = |found: &str| is_good(found).then(|| found.to_owned());
    read(node, expected, good)
}

/// An error that repeats the text.
pub(super) fn refused<T>(node: &Node, why: &str) -> Result<T, String> {
    Err(format!("{} {why}", quoted(text(node, "text")?)))
}

/// A number in the range; `kind` is for the message.
pub(super) fn numeric<T: FromStr + PartialOrd + Display>(
    kind: &str,
    range: RangeInclusive<T>,
) -> impl Fn(&Node) -> Result<T, String> {
    let expected = format!("{kind} from {} to {}", range.start(), range.end());
    move |node| {
        let Node::Number(text) = node else {
            return Err(format!("expected {expected}, found {}", node.kind()));
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected {expected}, found {}", quoted(text)))
    }
}

pub(super) fn flag(node: &Node) -> Result<bool, String> {
    match node {
        Node::Flag(flag) => Ok(*flag),
        other => Err(format!("expected true or false, found {}", other.kind())),
    }
}

pub(super) fn exactly(wanted: &str) -> impl Fn(&Node) -> Result<(), String> {
    move |node| checked(node, wanted, |found| found == wanted).map(drop)
}

/// One of several names.
pub(super) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Node) -> Result<T, String> {
    let names = joined(choices.iter().map(|(name, _)| name), ", ");
    let named = |found: &str| choices.iter().find(|(name, _)| *name == found);
    move |node| Ok(read(node, &format!("one of {names}"), named)?.1)
}

/// A Go duration of at least `min`.
pub(super) fn duration(min: Duration) -> impl Fn(&Node) -> Result<Duration, String> {
    move |node| match read(node, "a duration such as 500ms or 1m30s", duration::parse)? {
        short if short < min => Err(format!("must be at least {min:?}")),
        long if long > MAX_DURATION => Err("must be at most 8760h".to_owned()),
        duration => Ok(duration),
    }
}

/// A Go duration of whole seconds, for what etcd and Kubernetes keep in seconds.
pub(super) fn whole_seconds(min: Duration) -> impl Fn(&Node) -> Result<Duration, String> {
    let duration = duration(min);
    move |node| match duration(node)? {
        whole if whole.subsec_nanos() == 0 => Ok(whole),
        _ => Err("must be whole seconds".to_owned()),
    }
}

/// An IP address without a port.
pub(super) fn ip(node: &Node) -> Result<IpAddr, String> {
    let ip = parsed::<IpAddr>(node, "an IP address such as 10.0.0.100 or 2001:db8::11")?;
    Ok(ip.to_canonical())
}

/// `IP:port` of one host: neither all addresses nor a group of hosts.
pub(super) fn address(node: &Node) -> Result<SocketAddr, String> {
    const EXPECTED: &str = "IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443";
    let mut address = parsed::<SocketAddr>(node, EXPECTED)?;
    let (written, ip) = (address.ip(), address.ip().to_canonical());
    address.set_ip(ip);
    let why = match ip {
        _ if ip.is_unspecified() => "stands for every address; name one address of this host",
        _ if ip.is_multicast() || ip == Ipv4Addr::BROADCAST => "is no address of one host",
        _ => return Ok(address),
    };
    Err(format!("{written} {why}"))
}

/// `IP:port` that can be connected to.
pub(super) fn destination(node: &Node) -> Result<SocketAddr, String> {
    match address(node)? {
        address if address.port() == 0 => Err("needs a port".to_owned()),
        address => Ok(address),
    }
}

/// `IP:port` that only this host can reach.
pub(super) fn loopback(node: &Node) -> Result<SocketAddr, String> {
    let address = address(node)?;
    let ip = address.ip();
    let why = || format!("{ip} is not a loopback address such as 127.0.0.1");
    ip.is_loopback().then_some(address).ok_or_else(why)
}

/// `host:port`; empty means none.
pub(super) fn host_and_port(node: &Node) -> Result<Option<String>, String> {
    let is_it = |found: &str| found.is_empty() || is_host_and_port(found);
    checked(node, "host:port such as localhost:4317", is_it).map(some)
}

/// Whether the text is `host:port` and nothing else.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    let is_whole =
        |it: Authority| !it.host().is_empty() && it.port_u16().is_some_and(|port| port > 0);
    !text.contains('@') && text.parse().is_ok_and(is_whole)
}

/// A file's path; relative ones start from `base`.
pub(super) fn path(base: &Path) -> impl Fn(&Node) -> Result<PathBuf, String> {
    move |node| {
        let is_path = |found: &str| !found.is_empty() && !found.contains(char::is_control);
        checked(node, "the path of a file", is_path).map(|found| base.join(found))
    }
}

/// The name that a TLS server's certificate must have. An empty one would disable verification.
pub(super) fn server_name(node: &Node) -> Result<String, String> {
    let is_name = |found: &str| ServerName::try_from(found).is_ok();
    checked(node, "a DNS name or an IP address", is_name)
}

/// The name of a Kubernetes user; it can be sent in a header.
pub(super) fn user(node: &Node) -> Result<String, String> {
    let is_plain = |found: &str| !found.is_empty() && found.bytes().all(|b| b.is_ascii_graphic());
    let expected = "the name of a user in plain ASCII without white space";
    checked(node, expected, is_plain)
}

pub(super) fn common_name(node: &Node) -> Result<String, String> {
    let is_good = |found: &str| {
        !found.is_empty() && found.trim() == found && !found.contains(char::is_control)
    };
    let expected = "a common name without control characters, and without white space at its ends";
    checked(node, expected, is_good)
}

/// The ID of a server, as a Lease name; empty means none.
pub(super) fn server_id(node: &Node) -> Result<Option<String>, String> {
    let is_id = |found: &str| found.is_empty() || found.len() <= LABEL_BYTES && is_subdomain(found);
    let expected =
        "a Lease name of at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends";
    checked(node, expected, is_id).map(some)
}

pub(super) fn namespace(node: &Node) -> Result<String, String> {
    let expected =
        "a namespace of at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends";
    let is_short = |found: &str| found.len() <= LABEL_BYTES && is_label(found);
    checked(node, expected, is_short)
}

/// `resource` or `resource.group`.
pub(super) fn resource(node: &Node) -> Result<String, String> {
    let expected = "a resource such as events or events.events.k8s.io";
    checked(node, expected, is_subdomain)
}

/// An endpoint of etcd: a scheme, a host and a port only.
pub(super) fn endpoint(node: &Node) -> Result<String, String> {
    const EXPECTED: &str = "scheme://host:port such as https://127.0.0.1:2379";
    let found = text(node, EXPECTED)?;
    // The message does not repeat the text: it may contain a password.
    if found.contains('@') {
        return Err(format!("is not {EXPECTED}: a user name is not supported"));
    }
    let (scheme, host) = read(node, EXPECTED, |found| {
        let (scheme, authority) = found.split_once("://")?;
        let (host, _) = authority.rsplit_once(':')?;
        let good = ["http", "https"].contains(&scheme) && is_host_and_port(authority);
        let host = ServerName::try_from(host.trim_matches(['[', ']'])).ok();
        Some((scheme, host.filter(|_| good)?))
    })?;
    let is_loopback = match &host {
        ServerName::IpAddress(ip) => IpAddr::from(*ip).is_loopback(),
        name => name.to_str().eq_ignore_ascii_case("localhost"),
    };
    match scheme == "http" && !is_loopback {
        true => refused(node, "must be https: http is for loopback only"),
        false => Ok(found.to_owned()),
    }
}

/// A prefix of etcd's keys such as `/registry`: one or more segments, each after a slash.
pub(super) fn key_prefix(node: &Node) -> Result<String, String> {
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && part.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let is_prefix = |found: &str| {
        let parts = found.strip_prefix('/');
        parts.is_some_and(|parts| parts.split('/').all(is_part))
    };
    let found = checked(node, "a key prefix such as /registry", is_prefix)?;
    match Path::new(&found).starts_with(OWN_KEYS) {
        true => refused(node, "is where this program keeps its own keys"),
        false => Ok(found),
    }
}

/// The cipher suites that rustls has, by Go's names.
fn suites() -> BTreeMap<String, CipherSuite> {
    let suites = ALL_CIPHER_SUITES.iter().map(|suite| suite.suite());
    let named = |suite: CipherSuite| {
        let name = suite.as_str().unwrap_or_default();
        (name.replace("TLS13_", "TLS_"), suite)
    };
    suites.map(named).collect()
}

/// A name of `--tls-cipher-suites`.
pub(super) fn cipher_suite(node: &Node) -> Result<CipherSuite, String> {
    let names = joined(suites().keys(), ", ");
    read(node, &format!("one of {names}"), suite_named)
}

/// The suite with this name of `--tls-cipher-suites`, if rustls has it. Go has those that end with `_POLY1305_SHA256` without
/// `_SHA256` as well.
pub(crate) fn suite_named(found: &str) -> Option<CipherSuite> {
    let name = match found.ends_with("_POLY1305") {
        true => &format!("{found}_SHA256"),
        false => found,
    };
    suites().get(name).copied()
}

/// A domain pattern of `--tls-sni-cert-key`, in lower case, or an IP address.
pub(super) fn sni_name(node: &Node) -> Result<SniName, String> {
    read(node, "a DNS name, *.DOMAIN or an IP address", |found| {
        if let Ok(address) = found.parse::<IpAddr>() {
            return Some(SniName::Address(address.to_canonical()));
        }
        let below = found.strip_prefix("*.").unwrap_or(found);
        let is_name = matches!(ServerName::try_from(below), Ok(ServerName::DnsName(_)));
        let is_pattern = found == "*" || is_name && !below.ends_with('.');
        is_pattern.then(|| SniName::Domain(found.to_ascii_lowercase()))
    })
}

/// Directives for log lines. Unlike `RUST_LOG`, a directive must have a level: a misspelled level would otherwise be the
/// name of a target, and silence everything else.
pub(super) fn log_filter(node: &Node) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    const EXPECTED: &str = "levels (off, error, warn, info, debug, trace) and target=level";
    let is_directive = |directive: &str| {
        let (target, level) = directive.split_once('=').unwrap_or(("all", directive));
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
        LEVELS.contains(&level) && !target.is_empty() && target.bytes().all(letter)
    };
    let is_filter = |found: &str| found.split(',').all(is_directive);
    checked(node, EXPECTED, is_filter)
}

/// Empty text means none.
fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Whether it is a DNS subdomain, such as the name of a Lease.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
