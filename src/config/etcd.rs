//! Parses endpoints of etcd and the prefix of keys.

use http::uri::Authority;
use rustls::pki_types::ServerName;

use super::tree::Node;
use super::values;

/// Prefix of the proxies' keys; the apiservers' keys must not be below it.
const OWN_KEYS: &str = "/kube-interop-proxy";

/// A scheme, a host and a port only.
pub(super) fn endpoint(node: &Node) -> Result<String, String> {
    const EXPECTED: &str = "scheme://host:port such as https://127.0.0.1:2379";
    let found = values::text(node, EXPECTED)?;
    // The message does not repeat the text: it may contain a password.
    if found
        .split_once("://")
        .is_some_and(|(_, it)| it.contains('@'))
    {
        return Err(format!("is not {EXPECTED}: a user name is not supported"));
    }
    let (scheme, port, host) = values::read(node, EXPECTED, |found| {
        let (scheme, authority) = found.split_once("://")?;
        let known = ["http", "https"].contains(&scheme);
        let authority: Authority = authority.parse().ok().filter(|_| known)?;
        Some((scheme, authority.port_u16(), host(&authority)?))
    })?;
    match (scheme, port) {
        (_, None | Some(0)) => values::refused(node, "needs a port, as in https://127.0.0.1:2379"),
        ("http", _) if !is_loopback(&host) => {
            values::refused(node, "must be https: http is for loopback only")
        }
        _ => Ok(found.to_owned()),
    }
}

/// Such as `/registry`: one or more segments, each after a slash.
pub(super) fn prefix(node: &Node) -> Result<String, String> {
    let found = values::text(node, "a key prefix such as /registry")?;
    let refused = |why| values::refused(node, why);
    let Some(parts) = found.strip_prefix('/') else {
        return refused("must start with a slash, as in /registry");
    };
    if parts.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refused("must not have an empty, '.' or '..' part, nor a slash at its end");
    }
    if !parts.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refused(values::NOT_PLAIN);
    }
    if found == OWN_KEYS || found.starts_with(&format!("{OWN_KEYS}/")) {
        return refused("is where this program keeps its own keys");
    }
    Ok(found.to_owned())
}

fn host(authority: &Authority) -> Option<ServerName<'static>> {
    let host = authority.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(bare.unwrap_or(host).to_owned()).ok()
}

fn is_loopback(host: &ServerName<'_>) -> bool {
    match host {
        ServerName::IpAddress(ip) => std::net::IpAddr::from(*ip).is_loopback(),
        ServerName::DnsName(name) => name.as_ref().eq_ignore_ascii_case("localhost"),
        _ => false,
    }
}
