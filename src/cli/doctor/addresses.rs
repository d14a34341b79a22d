//! Findings about the addresses of this machine: additional ones that it does not have now, and those where clients are
//! answered today and the proxy will not listen.
//!
//! Read from `/proc/net`, without a connection. Packets that a load balancer or NAT leads here are not known.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::finding::Finding;
use super::told;
use crate::config::Config;

/// State of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// What this machine has.
#[derive(Debug, Default)]
pub struct HostAddresses {
    /// Its addresses, except loopback and link-local ones.
    own: BTreeSet<IpAddr>,
    /// Where something listens.
    listeners: Vec<SocketAddr>,
}

impl HostAddresses {
    /// Reads `/proc/net`. What cannot be read is left out.
    pub fn read() -> Self {
        let read = |name| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        let (trie, inet6) = (read("fib_trie"), read("if_inet6"));
        let own = ipv4_addresses(&trie).chain(ipv6_addresses(&inet6));
        Self {
            own: own.filter(|address| is_for_clients(*address)).collect(),
            listeners: (listeners(&read("tcp")).into_iter())
                .chain(listeners(&read("tcp6")))
                .collect(),
        }
    }

    /// The addresses at which something listens on `port`.
    fn answering(&self, port: u16) -> impl Iterator<Item = IpAddr> {
        let answers = move |address: &IpAddr| {
            let mut listeners = self.listeners.iter();
            listeners.any(|listener| listener.port() == port && takes(listener.ip(), *address))
        };
        self.own.iter().copied().filter(answers)
    }
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
    let mut findings: Vec<_> = (serving.additional_bind_addresses.iter())
        .map(|address| additional_finding(*address, host))
        .collect();
    let port = serving.bind_address.port();
    let bound = [serving.bind_address, config.api_server.address].into_iter();
    let bound: BTreeSet<_> = bound
        .chain(serving.additional_bind_addresses.iter().copied())
        .filter(|address| address.port() == port)
        .map(|address| address.ip().to_canonical())
        .collect();
    let unserved = host.answering(port);
    let unserved: Vec<_> = unserved
        .filter(|address| !bound.contains(address))
        .map(|address| SocketAddr::new(address, port).to_string())
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

/// From `/proc/net/fib_trie`: a host address is a line with the address and then one with `/32 host LOCAL`.
fn ipv4_addresses(trie: &str) -> impl Iterator<Item = IpAddr> {
    let lines = trie.lines().map(str::trim);
    let pairs = lines.clone().zip(lines.skip(1));
    pairs.filter_map(|(address, kind)| {
        let address = address.strip_prefix("|-- ")?;
        let address: Ipv4Addr = address.parse().ok()?;
        (kind == "/32 host LOCAL").then_some(address.into())
    })
}

/// From `/proc/net/if_inet6`: the first word of each line is an address in hexadecimal.
fn ipv6_addresses(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().filter_map(|line| {
        let digits = line.split_whitespace().next()?;
        let bits = u128::from_str_radix(digits, 16).ok()?;
        (digits.len() == 32).then_some(Ipv6Addr::from_bits(bits).into())
    })
}

/// From `/proc/net/tcp` or `tcp6`.
fn listeners(table: &str) -> Vec<SocketAddr> {
    table.lines().filter_map(listener).collect()
}

fn listener(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let state = words.nth(1)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTENS).then_some(SocketAddr::new(hexadecimal(address)?, port))
}

/// An address as 32-bit words, each in the order of this machine.
fn hexadecimal(address: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = address.get(at..at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match address.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (index, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * index)?);
            }
            Some(Ipv6Addr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../config.example.yaml");
    const TRIE: &str = "Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.11
           /32 host LOCAL
        |-- 10.0.0.100
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
        |-- 127.0.0.1
           /32 host LOCAL
";
    const INET6: &str = "00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000011 02 40 00 80     eth0
fe8000000000000000fc00fffe000001 02 40 20 80     eth0
short 02 40 20 80     eth0
";

    /// A line of `/proc/net/tcp` for a listener.
    fn line(address: &str) -> String {
        let address: SocketAddr = address.parse().unwrap();
        let octets = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words = octets.chunks_exact(4).map(|word| {
            let word = u32::from_ne_bytes(word.try_into().unwrap());
            format!("{word:08X}")
        });
        let words: String = words.collect();
        format!(
            "   0: {words}:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000",
            address.port()
        )
    }

    fn host(listening: &[&str]) -> HostAddresses {
        let own = ipv4_addresses(TRIE).chain(ipv6_addresses(INET6));
        let table: Vec<_> = listening.iter().map(|address| line(address)).collect();
        HostAddresses {
            own: own.filter(|address| is_for_clients(*address)).collect(),
            listeners: listeners(&table.join("\n")),
        }
    }

    fn said(additional: &str, listening: &[&str]) -> Vec<String> {
        let key = "additionalBindAddresses: ";
        let text = EXAMPLE.replace(&format!("{key}[]"), &format!("{key}{additional}"));
        let config = crate::config::parse(&text).unwrap();
        let findings = findings(&config, &host(listening));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_addresses_of_this_machine_are_found() {
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
            (&["127.0.0.1:6443", "10.0.0.11:6443", "[::]:10250"], None),
            (&["10.0.0.100:6443"], Some("10.0.0.100:6443")),
            (&["0.0.0.0:6443"], Some("10.0.0.100:6443")),
            (&["[::]:6443"], Some("10.0.0.100:6443, [2001:db8::11]:6443")),
        ] {
            let expected: Vec<_> = expected.map(warning).into_iter().collect();
            assert_eq!(said("[]", listening), expected, "{listening:?}");
        }
    }

    #[test]
    fn additional_addresses_may_be_absent() {
        let additional = "['10.0.0.100:6443', '[2001:db8::12]:6443', '10.0.0.11:7443']";
        assert_eq!(
            said(additional, &["0.0.0.0:6443"]),
            [
                "ok      serving.additionalBindAddresses 10.0.0.100:6443: an address of this machine",
                "info    serving.additionalBindAddresses [2001:db8::12]:6443: not an address of this machine now; it is \
                 served when it is",
                "ok      serving.additionalBindAddresses 10.0.0.11:7443: an address of this machine",
            ]
        );
    }

    #[test]
    fn what_the_kernel_says_in_another_form_is_left_out() {
        for text in ["", "x", "0: 0100007F", "0: 01:192B 0:0 0A"] {
            assert_eq!(listeners(text), [] as [SocketAddr; 0], "{text:?}");
        }
    }
}
