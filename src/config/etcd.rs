//! Parses endpoints of etcd and the prefix of keys.

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
    if found.contains('@') {
        return Err(format!("is not {EXPECTED}: a user name is not supported"));
    }
    let (scheme, host) = values::read(node, EXPECTED, |found| {
        let (scheme, authority) = found.split_once("://")?;
        let (host, _) = authority.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let good = ["http", "https"].contains(&scheme) && values::is_host_and_port(authority);
        let host = ServerName::try_from(bare.unwrap_or(host)).ok();
        Some((scheme, host.filter(|_| good)?))
    })?;
    let is_loopback = match &host {
        ServerName::IpAddress(ip) => std::net::IpAddr::from(*ip).is_loopback(),
        name => name.to_str().eq_ignore_ascii_case("localhost"),
    };
    match scheme == "http" && !is_loopback {
        true => values::refused(node, "must be https: http is for loopback only"),
        false => Ok(found.to_owned()),
    }
}

/// Such as `/registry`: one or more segments, each after a slash.
pub(super) fn prefix(node: &Node) -> Result<String, String> {
    let found = values::text(node, "a key prefix such as /registry")?;
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && part.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match found.strip_prefix('/') {
        Some(parts) if parts.split('/').all(is_part) => {}
        _ => {
            let rule = "is not a slash and a plain name, or several: no '.' or '..', and no slash at its end";
            return values::refused(node, rule);
        }
    }
    if found == OWN_KEYS || found.starts_with(&format!("{OWN_KEYS}/")) {
        return values::refused(node, "is where this program keeps its own keys");
    }
    Ok(found.to_owned())
}
