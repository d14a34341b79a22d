//! Findings about server IDs and addresses that two proxies share. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::finding::Finding;
use super::inventory::Inventory;
use super::told;
use crate::cluster::keys::claims_an_id;
use crate::cluster::others_ids::OthersIds;
use crate::cluster::state::canonical;
use crate::config::Config;
use crate::publish::identity::{LeaseCandidate, ShownIds, can_name_a_lease};

/// The server ID that the proxy would find; `None`: it would generate one.
fn found(host: &str, mine: &[SocketAddr], inventory: &Inventory) -> Option<String> {
    let others = OthersIds::of(
        inventory.records.iter().map(|(id, record)| (id, record)),
        inventory.lives.iter().map(|(id, live)| (id, live)),
        inventory.entries.iter().map(|(id, at)| (id, at.address)),
        mine,
    );
    let leases = inventory.leases.iter();
    let leases = leases.filter(|(name, _)| can_name_a_lease(name));
    let leases = leases.map(|(name, lease)| LeaseCandidate {
        name,
        hostname: lease.hostname.as_deref(),
        identity: lease.identity && !lease.published,
    });
    let shown = ShownIds {
        host,
        leases: &leases.collect::<Vec<_>>(),
        others: &others,
    };
    let found = shown.computed().or_else(|| shown.labelled());
    found.map(str::to_owned)
}

/// `host`: the name of this machine; `mine`: addresses of this proxy, the configured one first; `runs_as`: ID of the proxy
/// that runs here.
pub fn findings(
    config: &Config,
    host: &str,
    mine: &[SocketAddr],
    runs_as: Option<&str>,
    inventory: &Inventory,
) -> Vec<Finding> {
    let found = found(host, mine, inventory);
    let configured = config.identity.server_id.as_deref();
    let id = configured.or(found.as_deref()).or(runs_as);
    let mut findings = vec![match id {
        None => told::no_id("server ID"),
        Some(id) => own_id_finding(mine, id, inventory),
    }];
    findings.extend(inventory.claims.iter().filter_map(|key| {
        let (id, address) = key.rsplit_once('/').filter(|_| claims_an_id(key))?;
        Some(told::claimed_id(format!("server ID {id}"), address))
    }));
    findings.extend(shared_addresses(mine, [id, runs_as], inventory));
    findings
}

fn own_id_finding(mine: &[SocketAddr], id: &str, inventory: &Inventory) -> Finding {
    let about = format!("server ID {id}");
    let live = inventory.lives.iter().find(|(live, _)| live == id);
    match live.map(|(_, live)| canonical(live.endpoint)) {
        None => told::unused_id(about),
        Some(at) if mine.contains(&at) => told::own_id(about),
        Some(at) => told::used_id(about, at),
    }
}

/// Addresses with more than one live server. `own`: IDs of this proxy, whose first address is the configured one.
fn shared_addresses(
    mine: &[SocketAddr],
    own: [Option<&str>; 2],
    inventory: &Inventory,
) -> Vec<Finding> {
    let mut at: BTreeMap<SocketAddr, Vec<&str>> = BTreeMap::new();
    for (id, live) in &inventory.lives {
        at.entry(canonical(live.endpoint)).or_default().push(id);
    }
    let mut findings = Vec::new();
    for (address, ids) in &at {
        if mine.first() == Some(address) {
            let about = format!("peer.advertiseAddress {address}");
            let others = ids.iter().filter(|id| !own.contains(&Some(id)));
            findings.extend(others.map(|id| told::address_of_another(&about, id)));
        } else if ids.len() > 1 {
            let about = format!("servers {}", ids.join(", "));
            findings.push(told::shared_address(about, address));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::LiveKey;

    fn said(lives: &[(&str, &str)], claims: &[&str], running: Option<&str>) -> Vec<String> {
        let mut config =
            crate::config::parse(include_str!("../../../config.example.yaml")).unwrap();
        config.identity.server_id = Some("a".to_owned());
        let live = |(id, endpoint): &(&str, &str)| {
            let live = LiveKey {
                endpoint: endpoint.parse().unwrap(),
                api_server_id: None,
                initialized: true,
                ready: true,
                record_revision: None,
            };
            (String::from(*id), live)
        };
        let inventory = Inventory {
            lives: lives.iter().map(live).collect(),
            claims: claims.iter().map(|claim| String::from(*claim)).collect(),
            ..Inventory::default()
        };
        let configured = canonical(config.peer.advertise_address);
        let running = running.map(|endpoint| endpoint.parse().unwrap());
        let mine: Vec<_> = [configured].into_iter().chain(running).collect();
        let findings = findings(&config, "host", &mine, Some("a"), &inventory);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_id_is_this_proxys_or_somebody_elses() {
        assert_eq!(
            said(&[], &[], None),
            ["ok      server ID a: nobody lives under it"]
        );
        let ours = ["ok      server ID a: this proxy's alone"];
        assert_eq!(said(&[("a", "10.0.0.11:6443")], &[], None), ours);
        // The file has a new address.
        let before = "10.0.0.7:6443";
        assert_eq!(said(&[("a", before)], &[], Some(before)), ours);
        let line = said(&[("a", before)], &[], Some("10.0.0.11:6443")).remove(0);
        assert!(
            line.starts_with("problem server ID a: the proxy at 10.0.0.7:6443"),
            "{line}"
        );
    }

    #[test]
    fn who_wants_an_id_that_another_has_is_named() {
        let lines = said(&[], &["-/10.0.0.13:6443", "b/10.0.0.12:6443"], None);
        assert_eq!(
            lines.len(),
            2,
            "a proxy without an ID wants nobody's: {lines:?}"
        );
        assert!(
            lines[1].starts_with("problem server ID b: the proxy at 10.0.0.12:6443 wants it"),
            "{lines:?}"
        );
    }

    #[test]
    fn no_two_servers_have_one_address() {
        let lines = said(
            &[
                ("b", "10.0.0.11:6443"),
                ("c", "10.0.0.1:1"),
                ("d", "10.0.0.1:1"),
            ],
            &[],
            None,
        );
        assert!(
            lines[1].starts_with("problem servers c, d: all are said to live"),
            "{lines:?}"
        );
        assert!(
            lines[2].starts_with(
                "problem peer.advertiseAddress 10.0.0.11:6443: it is the address of server b"
            ),
            "{lines:?}"
        );
    }
}
