//! Checks that a request names this port by an IP address. Pure.
//!
//! A hostile page can point its own host name to 127.0.0.1 and then read this port as the same origin (DNS rebinding). The
//! browser still sends that name in `Host`.

use std::net::IpAddr;

use http::header::HOST;
use http::request;
use http::uri::Authority;

/// Whether every host that the request names is an IP address or `localhost`. Browsers always send one.
pub fn is_by_address(request: &request::Parts) -> bool {
    let hosts = request.headers.get_all(HOST).iter();
    let mut hosts = hosts.map(|host| Authority::try_from(host.as_bytes()).ok());
    hosts.all(|host| host.is_some_and(|host| is_address(&host)))
        && request.uri.authority().is_none_or(is_address)
}

fn is_address(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, hosts: &[&str]) -> request::Parts {
        let request = hosts
            .iter()
            .fold(http::Request::get(target), |request, host| {
                request.header(HOST, *host)
            });
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn addresses_and_localhost_are_ours() {
        for host in [
            "127.0.0.1:6450",
            "127.0.0.1",
            "10.0.0.1:6450",
            "[::1]:6450",
            "[::1]",
            "localhost:6450",
            "LocalHost",
        ] {
            assert!(is_by_address(&request("/statusz", &[host])), "{host}");
        }
        assert!(is_by_address(&request("/statusz", &[])), "no browser");
    }

    #[test]
    fn names_are_not() {
        for host in [
            "evil.example",
            "evil.example:6450",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "127.0.0.1@evil.example",
            "",
            "a b",
        ] {
            assert!(!is_by_address(&request("/statusz", &[host])), "{host}");
        }
        assert!(!is_by_address(&request(
            "/statusz",
            &["127.0.0.1", "evil.example"]
        )));
    }

    #[test]
    fn a_name_in_the_target_counts_too() {
        let target = "http://evil.example/statusz";
        assert!(!is_by_address(&request(target, &["127.0.0.1"])));
    }
}
