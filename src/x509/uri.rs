//! Finds the host of a URI as Go's net/url does.

use std::net::IpAddr;

/// The host with its port, empty if there is none; `None`: `url.Parse` fails.
pub(super) fn host(uri: &str) -> Option<&str> {
    let (uri, fragment) = uri.split_once('#').unwrap_or((uri, ""));
    let control = uri.bytes().any(|byte| byte.is_ascii_control());
    if control || !is_escaped_well(fragment) {
        return None;
    }
    if uri == "*" {
        return Some("");
    }
    let (scheme, rest) = scheme(uri)?;
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !path.starts_with('/') {
        let first = path.split('/').next().unwrap_or_default();
        // After a scheme such a path is opaque.
        return match scheme {
            true => Some(""),
            false => (!first.contains(':') && is_escaped_well(path)).then_some(""),
        };
    }
    let authority = match path.strip_prefix("//") {
        Some(after) if scheme || !after.starts_with('/') => after,
        _ => return is_escaped_well(path).then_some(""),
    };
    let end = authority.find('/').unwrap_or(authority.len());
    let (authority, path) = authority.split_at(end);
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => is_user(user).then_some(host)?,
        None => authority,
    };
    (is_host(host) && is_escaped_well(path)).then_some(host)
}

/// Whether there is a scheme, and the rest.
fn scheme(uri: &str) -> Option<(bool, &str)> {
    for (index, byte) in uri.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return None,
            b':' => return Some((true, &uri[index + 1..])),
            _ => break,
        }
    }
    Some((false, uri))
}

/// Whether each `%` is one of three characters.
fn is_escaped_well(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let after = after.as_bytes();
        after.len() >= 2 && after[..2].iter().all(u8::is_ascii_hexdigit)
    })
}

fn is_user(user: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    user.bytes().all(allowed) && is_escaped_well(user)
}

/// Rejects escapes in hosts, which Go would decode; Go accepts those of bytes beyond ASCII.
fn is_host(host: &str) -> bool {
    let port = match host.strip_prefix('[') {
        Some(inside) => match inside.rsplit_once(']') {
            Some((_, port)) => port,
            None => return false,
        },
        None => host.rfind(':').map_or("", |colon| &host[colon..]),
    };
    let is_port = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte);
    is_port && host.bytes().all(allowed)
}

/// The domain of a host with or without a port; `None`: it is empty or an IP address.
pub(super) fn domain(host: &str) -> Option<&str> {
    let name = match host.contains(':') && !host.ends_with(']') {
        true => {
            let (name, _) = host.rsplit_once(':')?;
            let plain = !name.contains([':', '[', ']']);
            plain.then_some(name)?
        }
        false => host,
    };
    let in_brackets = name.starts_with('[') && name.ends_with(']');
    let is_address = in_brackets || name.parse::<IpAddr>().is_ok();
    (!host.is_empty() && !is_address).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_as_go_finds_them() {
        for (uri, expected) in [
            ("spiffe://example.org/ns/a", Some("example.org")),
            (
                "https://user:pw@example.org:443/a?b#c",
                Some("example.org:443"),
            ),
            ("https://example.org", Some("example.org")),
            ("https://[::1]:443/", Some("[::1]:443")),
            ("//example.org/a", Some("example.org")),
            ("///a", Some("")),
            ("/a/b", Some("")),
            ("urn:uuid:1", Some("")),
            ("a:b@c", Some("")),
            ("mailto:joe@example.org", Some("")),
            ("a/b:c", Some("")),
            ("1a:b", None),
            (":b", None),
            ("https://exa mple.org/", None),
            ("https://example.org:a/", None),
            ("https://[::1/", None),
            ("https://example.org/%zz", None),
            ("https://example.org/%2f", Some("example.org")),
            ("", Some("")),
        ] {
            assert_eq!(host(uri), expected, "{uri:?}");
        }
    }

    #[test]
    fn an_address_is_no_domain() {
        for (host, expected) in [
            ("example.org", Some("example.org")),
            ("example.org:443", Some("example.org")),
            ("192.0.2.1", None),
            ("192.0.2.1:80", None),
            ("[::1]", None),
            ("", None),
        ] {
            assert_eq!(domain(host), expected, "{host:?}");
        }
    }
}
