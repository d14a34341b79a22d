//! Parses single values of the file. Every function is pure and takes one node; its error describes the expected value.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::uri::Authority;
use rustls::CipherSuite;
use rustls::pki_types::ServerName;

use super::SniName;
use super::duration;
use super::tree::{Node, quoted};

/// Longest duration: a year, so that sums with times cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// The cipher suites that rustls has. Go has the last two under older names as well.
const SUITES: [CipherSuite; 9] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

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

/// The text that `is_good`; `rule` says what it has to be like.
fn checked(
    node: &Node,
    expected: &str,
    is_good: impl FnOnce(&str) -> bool,
    rule: &str,
) -> Result<String, String> {
    let found = text(node, expected)?;
    match is_good(found) {
        true => Ok(found.to_owned()),
        false => refused(node, rule),
    }
}

/// An error that repeats the text.
pub(super) fn refused<T>(node: &Node, why: &str) -> Result<T, String> {
    let found = text(node, "text")?;
    Err(format!("{} {why}", quoted(found)))
}

/// A number that can be parsed as `T`, and is in the range.
fn numeric<T: FromStr>(
    node: &Node,
    expected: &str,
    is_in_range: impl FnOnce(&T) -> bool,
) -> Result<T, String> {
    let Node::Number(text) = node else {
        return Err(format!("expected {expected}, found {}", node.kind()));
    };
    let number = text.parse().ok().filter(is_in_range);
    number.ok_or_else(|| format!("expected {expected}, found {}", quoted(text)))
}

pub(super) fn flag(node: &Node) -> Result<bool, String> {
    match node {
        Node::Flag(flag) => Ok(*flag),
        other => Err(format!("expected true or false, found {}", other.kind())),
    }
}

pub(super) fn number(range: RangeInclusive<u32>) -> impl Fn(&Node) -> Result<u32, String> {
    let (least, most) = (*range.start(), *range.end());
    let expected = format!("a whole number from {least} to {most}");
    move |node| numeric(node, &expected, |number| range.contains(number))
}

/// A number from 0 to `max`.
pub(super) fn share(max: f64) -> impl Fn(&Node) -> Result<f64, String> {
    let expected = format!("a number from 0 to {max}");
    move |node| numeric(node, &expected, |share| (0.0..=max).contains(share))
}

pub(super) fn exactly(wanted: &str) -> impl Fn(&Node) -> Result<(), String> {
    let rule = format!("is not {wanted}, the only one that is known");
    move |node| checked(node, wanted, |found| found == wanted, &rule).map(drop)
}

/// One of several names.
pub(super) fn choice<T: Copy>(choices: &[(&str, T)]) -> impl Fn(&Node) -> Result<T, String> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let expected = format!("one of {}", names.join(", "));
    move |node| {
        read(node, &expected, |found| {
            let chosen = choices.iter().find(|(name, _)| *name == found);
            chosen.map(|(_, value)| *value)
        })
    }
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
    match ip {
        _ if ip.is_unspecified() => Err(format!(
            "{written} stands for every address; name one address of this host"
        )),
        _ if ip.is_multicast() || ip == Ipv4Addr::BROADCAST => {
            Err(format!("{written} is no address of one host"))
        }
        _ => Ok(address),
    }
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
    match ip.is_loopback() {
        true => Ok(address),
        false => Err(format!("{ip} is not a loopback address such as 127.0.0.1")),
    }
}

/// `host:port`; empty means none.
pub(super) fn host_and_port(node: &Node) -> Result<Option<String>, String> {
    read(node, "host:port such as localhost:4317", |found| {
        (found.is_empty() || is_host_and_port(found)).then(|| some(found))
    })
}

/// Whether the text is `host:port` and nothing else.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    let is_whole =
        |it: Authority| !it.host().is_empty() && it.port_u16().is_some_and(|port| port > 0);
    !text.contains('@') && text.parse().is_ok_and(is_whole)
}

/// A file's path; relative ones start from `base`.
pub(super) fn path(base: &Path) -> impl Fn(&Node) -> Result<PathBuf, String> {
    move |node| match text(node, "the path of a file")? {
        "" => Err("must not be empty".to_owned()),
        found if found.contains(char::is_control) => refused(node, "has a control character in it"),
        found => Ok(base.join(found)),
    }
}

/// The name that a TLS server's certificate must have. An empty one would disable verification.
pub(super) fn server_name(node: &Node) -> Result<String, String> {
    let is_name = |found: &str| ServerName::try_from(found).is_ok();
    let rule =
        "is neither a DNS name nor an IP address: the server's certificate is verified against it";
    checked(node, "a DNS name or an IP address", is_name, rule)
}

/// The name of a Kubernetes user; it can be sent in a header.
pub(super) fn user(node: &Node) -> Result<String, String> {
    let is_plain = |found: &str| !found.is_empty() && found.bytes().all(|b| b.is_ascii_graphic());
    let rule = "is empty, or has white space or more than plain ASCII in it";
    checked(node, "the name of a user", is_plain, rule)
}

pub(super) fn common_name(node: &Node) -> Result<String, String> {
    let is_good = |found: &str| {
        !found.is_empty() && found.trim() == found && !found.contains(char::is_control)
    };
    let rule = "must not be empty, nor have control characters or white space at its ends";
    checked(node, "a common name", is_good, rule)
}

/// The ID of a server, as a Lease name; empty means none.
pub(super) fn server_id(node: &Node) -> Result<Option<String>, String> {
    let is_id = |found: &str| found.is_empty() || found.len() <= LABEL_BYTES && is_subdomain(found);
    let rule = format!(
        "is no Lease name: at most {LABEL_BYTES} of a-z, 0-9, '-' and '.', with a letter or digit at both ends"
    );
    let found = checked(node, "a Lease name", is_id, &rule)?;
    Ok(some(&found))
}

pub(super) fn namespace(node: &Node) -> Result<String, String> {
    let rule = format!(
        "is no namespace: at most {LABEL_BYTES} of a-z, 0-9 and '-', starting and ending with a letter or digit"
    );
    checked(node, "a namespace", is_label, &rule)
}

/// `resource` or `resource.group`.
pub(super) fn resource(node: &Node) -> Result<String, String> {
    let is_resource = |found: &str| is_subdomain(found).then(|| found.to_owned());
    let expected = "a resource such as events or events.events.k8s.io";
    read(node, expected, is_resource)
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
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let good = ["http", "https"].contains(&scheme) && is_host_and_port(authority);
        let host = ServerName::try_from(bare.unwrap_or(host)).ok();
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
    let found = text(node, "a key prefix such as /registry")?;
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && part.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match found.strip_prefix('/') {
        Some(parts) if parts.split('/').all(is_part) => {}
        _ => {
            let rule = "is not a slash and a plain name, or several: no '.' or '..', and no slash at its end";
            return refused(node, rule);
        }
    }
    if found == OWN_KEYS || found.starts_with(&format!("{OWN_KEYS}/")) {
        return refused(node, "is where this program keeps its own keys");
    }
    Ok(found.to_owned())
}

/// Go's name.
fn name_of(suite: &CipherSuite) -> String {
    let name = suite.as_str().unwrap_or_default();
    name.replace("TLS13_", "TLS_")
}

/// A name of `--tls-cipher-suites`.
pub(super) fn cipher_suite(node: &Node) -> Result<CipherSuite, String> {
    const EXPECTED: &str =
        "the name of a cipher suite such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let found = text(node, EXPECTED)?;
    let is = |suite: &&CipherSuite| {
        let name = name_of(suite);
        let older = name.strip_suffix("_SHA256");
        name == found || older.is_some_and(|it| it == found && it.ends_with("_POLY1305"))
    };
    if let Some(suite) = SUITES.iter().find(is) {
        return Ok(*suite);
    }
    let names = SUITES.each_ref().map(name_of).join(", ");
    refused(node, &format!("is not one of {names}"))
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
    const EXPECTED: &str = "levels such as info,access=off";
    let is_directive = |directive: &str| {
        let (target, level) = directive.split_once('=').unwrap_or(("all", directive));
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
        LEVELS.contains(&level) && !target.is_empty() && target.bytes().all(letter)
    };
    let is_filter = |found: &str| found.split(',').all(is_directive);
    let rule = "is not made of levels (off, error, warn, info, debug, trace) and target=level";
    checked(node, EXPECTED, is_filter, rule)
}

/// Empty text means none.
fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let within = !text.is_empty() && text.len() <= LABEL_BYTES;
    within && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
