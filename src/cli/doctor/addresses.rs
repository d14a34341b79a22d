//! Findings about the addresses of this machine: additional ones that it does not have now, and those where clients are
//! answered today and the proxy will not listen.
//!
//! The kernel is asked, without a connection. Packets that a load balancer or NAT leads here are not known.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::finding::Finding;
use super::told;
use crate::config::Config;
use crate::local::process;

/// What this machine has.
#[derive(Debug, Default)]
pub struct HostAddresses {
    /// Its addresses, except loopback and link-local ones.
    own: BTreeSet<IpAddr>,
    /// Where something listens on the port of the proxy.
    listeners: Vec<IpAddr>,
}

impl HostAddresses {
    /// What cannot be read is left out.
    pub fn read(port: u16) -> Self {
        let interfaces = getifaddrs().into_iter().flatten();
        let addresses = interfaces.filter_map(|interface| ip(&interface.address?));
        Self::new(addresses, process::listeners(port))
    }

    fn new(addresses: impl Iterator<Item = IpAddr>, listeners: Vec<IpAddr>) -> Self {
        let own = addresses.filter(|address| is_for_clients(*address));
        Self {
            own: own.collect(),
            listeners,
        }
    }

    /// The addresses at which something listens.
    fn answering(&self) -> impl Iterator<Item = IpAddr> {
        let answers = |address: &IpAddr| {
            let mut listeners = self.listeners.iter();
            listeners.any(|bound| takes(*bound, *address))
        };
        self.own.iter().copied().filter(answers)
    }
}

/// `None`: it is of neither family.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

/// Whether a listener at `bound` takes connections to `address`. One of `::` may take IPv4, too.
fn takes(bound: IpAddr, address: IpAddr) -> bool {
    match bound {
        IpAddr::V4(bound) if bound.is_unspecified() => address.is_ipv4(),
        IpAddr::V6(bound) if bound.is_unspecified() => true,
        bound => bound.to_canonical() == address,
    }
}

fn is_for_clients(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !is_link_local
}

pub fn findings(config: &Config, host: &HostAddresses) -> Vec<Finding> {
    let serving = &config.serving;
    let port = serving.bind_address.port();
    let additional = &serving.additional_bind_addresses;
    let bound = [serving.bind_address, config.api_server.address];
    let bound: BTreeSet<_> = (bound.iter().chain(additional))
        .filter(|address| address.port() == port)
        .map(|address| address.ip().to_canonical())
        .collect();
    let unserved: Vec<_> = (host.answering())
        .filter(|address| !bound.contains(address))
        .map(|address| SocketAddr::new(address, port).to_string())
        .collect();
    let additional = additional.iter();
    let mut findings: Vec<_> = additional
        .map(|address| additional_finding(*address, host))
        .collect();
    if !unserved.is_empty() {
        findings.push(told::unserved(format!("port {port}"), unserved.join(", ")));
    }
    findings
}

fn additional_finding(address: SocketAddr, host: &HostAddresses) -> Finding {
    let about = format!("serving.additionalBindAddresses {address}");
    let ip = address.ip().to_canonical();
    match host.own.contains(&ip) || !is_for_clients(ip) {
        true => told::own_address(about),
        false => told::absent_address(about),
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

    fn host(listening: &[&str]) -> HostAddresses {
        let parsed = |ip: &&str| ip.parse().unwrap();
        HostAddresses::new(
            OWN.iter().map(parsed),
            listening.iter().map(parsed).collect(),
        )
    }

    fn said(additional: &str, listening: &[&str]) -> Vec<String> {
        let key = "additionalBindAddresses: ";
        let text = EXAMPLE.replace(&format!("{key}[]"), &format!("{key}{additional}"));
        let config = crate::config::parse(&text).unwrap();
        let findings = findings(&config, &host(listening));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_that_no_client_of_another_machine_can_use_do_not_count() {
        let own: Vec<_> = host(&[]).own.iter().map(ToString::to_string).collect();
        assert_eq!(own, ["10.0.0.11", "10.0.0.100", "2001:db8::11"]);
    }

    #[test]
    fn where_the_port_is_answered_and_the_proxy_does_not_listen_is_named() {
        let warning = |addresses: &str| {
            format!(
                "warning port 6443: something listens at {addresses} now, and this proxy will not; do: add those that \
                 clients use to serving.additionalBindAddresses"
            )
        };
        for (listening, expected) in [
            (&[][..], None),
            (&["127.0.0.1", "10.0.0.11"], None),
            (&["10.0.0.100"], Some("10.0.0.100:6443")),
            (&["0.0.0.0"], Some("10.0.0.100:6443")),
            (&["::"], Some("10.0.0.100:6443, [2001:db8::11]:6443")),
        ] {
            let expected: Vec<_> = expected.map(warning).into_iter().collect();
            assert_eq!(said("[]", listening), expected, "{listening:?}");
        }
    }

    #[test]
    fn additional_addresses_may_be_absent() {
        let additional = "['10.0.0.100:6443', '[2001:db8::12]:6443', '10.0.0.11:7443']";
        assert_eq!(
            said(additional, &["0.0.0.0"]),
            [
                "ok      serving.additionalBindAddresses 10.0.0.100:6443: an address of this machine",
                "info    serving.additionalBindAddresses [2001:db8::12]:6443: not an address of this machine now; it is \
                 served when it is",
                "ok      serving.additionalBindAddresses 10.0.0.11:7443: an address of this machine",
            ]
        );
    }
}
