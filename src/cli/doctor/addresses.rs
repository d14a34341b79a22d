//! The addresses of this machine where clients are answered today and the proxy will not listen. The kernel is asked,
//! without a connection. Packets that a load balancer or NAT leads here are not known.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::finding::Finding;
use super::told;
use crate::cli::addresses::held;
use crate::config::{Config, joined};
use crate::install::is_for_clients;
use crate::local::process;

/// What cannot be read is left out.
pub fn unserved(config: &Config) -> Option<Finding> {
    let own: Vec<_> = held().into_iter().map(|(_, ip)| ip).collect();
    let listeners = process::listeners(config.serving.bind_address.port());
    unserved_of(config, &own, &listeners)
}

/// `own`: addresses of this machine; `listeners`: where something listens on the port of the proxy.
fn unserved_of(config: &Config, own: &[IpAddr], listeners: &[IpAddr]) -> Option<Finding> {
    let serving = &config.serving;
    let port = serving.bind_address.port();
    let bound = [serving.bind_address, config.api_server.address];
    let bound = bound.iter().chain(&serving.additional_bind_addresses);
    let bound = bound.filter(|address| address.port() == port);
    let bound: BTreeSet<_> = bound.map(|address| address.ip().to_canonical()).collect();
    let own = own.iter().copied();
    let unserved = own.filter(|address| is_for_clients(address) && !bound.contains(address));
    let unserved = unserved.filter(|it| listeners.iter().any(|bound| takes(*bound, *it)));
    let unserved: BTreeSet<_> = unserved.map(|it| SocketAddr::new(it, port)).collect();
    let listed = joined(&unserved, ", ");
    (!unserved.is_empty()).then(|| told::unserved(format!("port {port}"), listed))
}

/// Whether a listener at `bound` takes connections to `address`. One of `::` may take IPv4, too.
fn takes(bound: IpAddr, address: IpAddr) -> bool {
    match bound {
        IpAddr::V4(bound) if bound.is_unspecified() => address.is_ipv4(),
        IpAddr::V6(bound) if bound.is_unspecified() => true,
        bound => bound.to_canonical() == address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../config.example.yaml");
    const OWN: [&str; 5] = [
        "127.0.0.1",
        "10.0.0.11",
        "10.0.0.100",
        "2001:db8::11",
        "fe80::fc:ff:fe00:1",
    ];

    fn said(additional: &str, listening: &[&str]) -> Option<String> {
        let key = "additionalBindAddresses: ";
        let text = EXAMPLE.replace(&format!("{key}[]"), &format!("{key}{additional}"));
        let config = crate::config::parse(&text).unwrap();
        let own = OWN.map(|ip| ip.parse().unwrap());
        let listening: Vec<_> = listening.iter().map(|ip| ip.parse().unwrap()).collect();
        unserved_of(&config, &own, &listening).map(|finding| finding.to_string())
    }

    #[test]
    fn where_the_port_is_answered_and_the_proxy_does_not_listen_is_named() {
        let warning = |addresses: &str| {
            format!(
                "warning KIP-090 port 6443: something listens at {addresses} now, but this proxy will not; do: add those that \
                 clients use to serving.additionalBindAddresses; see docs/findings.md#kip-090"
            )
        };
        for (listening, expected) in [
            (&[][..], None),
            (&["127.0.0.1", "10.0.0.11"], None),
            (&["10.0.0.100"], Some("10.0.0.100:6443")),
            (&["0.0.0.0"], Some("10.0.0.100:6443")),
            (&["::"], Some("10.0.0.100:6443, [2001:db8::11]:6443")),
        ] {
            assert_eq!(
                said("[]", listening),
                expected.map(warning),
                "{listening:?}"
            );
        }
        let additional = "['10.0.0.100:6443', '[2001:db8::12]:6443', '10.0.0.11:7443']";
        assert_eq!(said(additional, &["0.0.0.0"]), None);
    }
}
