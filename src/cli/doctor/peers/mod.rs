//! Findings about the other servers of the cluster: whether each can be reached, is the expected server, and trusts this
//! proxy. Pure; [`probe`] observes.

pub mod probe;

use std::net::SocketAddr;
use std::path::Path;

use http::StatusCode;

use super::connection_failure::{ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use super::http_probe::Readiness;
use crate::cli::inventory::Inventory;
use crate::cluster::state::canonical;
use crate::routing::table::PeerKind;

const KEYS: ConfigKeys = ConfigKeys {
    server: "the proxy",
    address: "its peer.advertiseAddress",
    authority: "peer.caFile",
    name: "peer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "its serving certificate (serving.certFile there)",
};

/// Most peers that are probed.
pub const MAX_PEERS: usize = 64;

/// A server that is live according to etcd.
#[derive(Debug, Clone)]
pub struct PeerServer {
    pub id: String,
    pub address: SocketAddr,
    pub kind: PeerKind,
    /// `gitVersion` of its apiserver, if known.
    pub version: Option<String>,
}

impl PeerServer {
    /// Subject of its findings.
    pub fn about(&self) -> String {
        format!("peer {} {}", self.id, self.address)
    }
}

#[derive(Debug)]
pub struct PeerObservations {
    /// Whether a proxy listens there.
    pub proxy: Result<bool, ConnectionFailure>,
    pub ready: Readiness,
    pub trust: PeerTrust,
}

/// Whether a peer accepts the user names that this proxy asserts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerTrust {
    Trusted,
    /// It does not accept the proxy's certificate.
    Rejected,
    /// It takes the proxy for this user.
    TakenFor(String),
    /// It accepts the proxy, but does not read users from this header.
    OtherHeaders(String),
    /// Unknown, for this reason.
    Unknown(String),
}

/// Live servers at addresses other than `mine`, of which the first is the configured one.
pub fn live_peers(inventory: &Inventory, mine: &[SocketAddr]) -> Vec<PeerServer> {
    let elsewhere = |address: SocketAddr| !mine.contains(&canonical(address));
    let lives = inventory
        .lives
        .iter()
        .filter(|(_, live)| elsewhere(live.endpoint));
    let proxies = lives.map(|(id, live)| PeerServer {
        id: id.clone(),
        address: live.endpoint,
        kind: PeerKind::Proxied,
        version: version(inventory, id),
    });
    let entries = inventory.entries.iter().filter(|(id, entry)| {
        elsewhere(entry.address)
            && !is_alive(inventory, id)
            && !is_live_address(inventory, entry.address)
            && !inventory.records.iter().any(|(known, _)| known == id)
    });
    let natives = entries.map(|(id, entry)| PeerServer {
        id: id.clone(),
        address: entry.address,
        kind: PeerKind::Native,
        version: None,
    });
    let known: Vec<_> = proxies.chain(natives).collect();
    let addresses: Vec<_> = known.iter().map(|peer| canonical(peer.address)).collect();
    let bare = advertised(inventory, mine).filter(|address| !addresses.contains(address));
    known.into_iter().chain(bare.map(bare_server)).collect()
}

/// Addresses of living apiservers at the port of mine, unless `mine`. Loopback ones only if mine is one.
fn advertised(inventory: &Inventory, mine: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let loopback = mine.iter().any(|address| address.ip().is_loopback());
    let addresses = inventory.advertised.iter();
    addresses
        .filter_map(|ip| Some(SocketAddr::new(*ip, mine.first()?.port())))
        .filter(move |address| !mine.contains(address) && (loopback || !address.ip().is_loopback()))
}

fn bare_server(address: SocketAddr) -> PeerServer {
    PeerServer {
        id: "bare".to_owned(),
        address,
        kind: PeerKind::Bare,
        version: None,
    }
}

fn version(inventory: &Inventory, id: &str) -> Option<String> {
    let record = inventory.records.iter().find(|(known, _)| known == id);
    record?.1.binary_version.clone()
}

fn is_alive(inventory: &Inventory, id: &str) -> bool {
    inventory.lives.iter().any(|(live, _)| live == id)
}

fn is_live_address(inventory: &Inventory, address: SocketAddr) -> bool {
    let mut lives = inventory.lives.iter();
    lives.any(|(_, live)| canonical(live.endpoint) == canonical(address))
}

/// Servers that have a record and are not live: requests for resources that only they served get 503 until they are
/// forgotten.
pub fn absent(inventory: &Inventory, mine: &[SocketAddr], file: &Path) -> Vec<Finding> {
    let gone = inventory.records.iter().filter(|(id, record)| {
        !is_alive(inventory, id)
            && !is_live_address(inventory, record.endpoint)
            && !mine.contains(&canonical(record.endpoint))
    });
    gone.map(|(id, record)| {
        Finding::info(
            format!("peer {id} {}", record.endpoint),
            "does not live, and is remembered until rerouting.absentServerGrace is over",
        )
        .advised(format!(
            "if it will not come back: kube-interop-proxy forget {id} --config {}",
            file.display()
        ))
    })
    .collect()
}

pub fn findings(
    observed: &[(PeerServer, Result<PeerObservations, ConnectionFailure>)],
) -> Vec<Finding> {
    if observed.is_empty() {
        return vec![Finding::info("peers", "no other server lives")];
    }
    observed
        .iter()
        .flat_map(|(peer, observed)| of_peer(peer, observed))
        .collect()
}

fn of_peer(
    peer: &PeerServer,
    observed: &Result<PeerObservations, ConnectionFailure>,
) -> Vec<Finding> {
    let about = peer.about();
    let bare = peer.kind == PeerKind::Bare;
    let observed = match observed {
        Ok(observed) if bare && observed.proxy == Ok(true) => {
            return vec![Finding::info(
                about,
                "an apiserver advertises this address, and it leads to a proxy",
            )];
        }
        Ok(observed) => observed,
        Err(failure) if bare => return vec![unreachable(&about, failure)],
        Err(failure) => return vec![failure.finding(&about, &KEYS)],
    };
    if observed.proxy == Ok(false) && peer.kind.has_proxy() {
        return vec![Finding::problem(
            about,
            "what listens there is no kube-interop-proxy",
            "correct its peer.advertiseAddress, or what leads from there to its serving.bindAddress",
        )];
    }
    let mut findings = Vec::new();
    match &observed.trust {
        PeerTrust::Trusted => findings.push(readiness(&about, peer, &observed.ready)),
        PeerTrust::Rejected => findings.push(Finding::problem(
            about,
            "it does not believe this proxy, and answers 401",
            "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, with a CN of its \
             serving.requestHeaderAllowedNames, and see that its own kube-apiserver believes it",
        )),
        PeerTrust::TakenFor(user) => findings.push(Finding::problem(
            about,
            format!("it takes this proxy for user {user}, and not for a peer"),
            "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, and not by its \
             clientCAFile only",
        )),
        PeerTrust::OtherHeaders(ours) => findings.push(Finding::problem(
            about,
            format!("it believes this proxy, and does not read users from {ours}"),
            "make serving.requestHeaderUsernameHeaders the same on all servers",
        )),
        PeerTrust::Unknown(why) => {
            findings.push(readiness(&about, peer, &observed.ready));
            if observed.ready.status != StatusCode::SERVICE_UNAVAILABLE {
                findings.push(Finding::warning(
                    about,
                    format!("whether it believes this proxy could not be found out: {why}"),
                    "run check --live there, and read its log",
                ));
            }
        }
    }
    findings
}

/// An apiserver lives, and nobody answers at the address that it advertises.
fn unreachable(about: &str, failure: &ConnectionFailure) -> Finding {
    let why = failure.description(&KEYS);
    Finding::warning(
        about,
        format!(
            "an apiserver without a proxy lives, and nobody can ask it at the address that it advertises: {why}"
        ),
        "start its proxy; or let it listen there, and let control plane nodes reach each other's port",
    )
}

/// Only 503 means not ready: an apiserver may answer 401 or 403 to a request without a user.
fn readiness(about: &str, peer: &PeerServer, ready: &Readiness) -> Finding {
    let kind = match peer.kind {
        PeerKind::Proxied => "behind its proxy",
        PeerKind::Native => "without a proxy",
        PeerKind::Bare => "without a proxy, bare",
    };
    let version = peer.version.as_deref().unwrap_or("of unknown version");
    if ready.status == StatusCode::SERVICE_UNAVAILABLE {
        return Finding::warning(
            about,
            format!("kube-apiserver {version} {kind}, not ready"),
            "run check --live there",
        );
    }
    let elapsed = ready.elapsed.as_millis();
    Finding::ok(
        about,
        format!("kube-apiserver {version} {kind}, {elapsed} ms"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::cluster::codec::PeerEndpoint;
    use crate::cluster::record::{LiveKey, Record};

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 6443).into()
    }

    fn inventory() -> Inventory {
        let live = |id: &str, last| {
            let live = LiveKey {
                endpoint: address(last),
                api_server_id: None,
                initialized: true,
                ready: true,
                record_revision: None,
            };
            (id.to_owned(), live)
        };
        let record = |id: &str, last| {
            let record = Record {
                endpoint: address(last),
                binary_version: Some("v1.20.2".to_owned()),
                compatibility_version: None,
                history_start: None,
                history_void: false,
                resources: BTreeMap::new(),
            };
            (id.to_owned(), record)
        };
        let entry = |id: &str, last| {
            let server = id.to_owned();
            let address = address(last);
            (id.to_owned(), PeerEndpoint { server, address })
        };
        Inventory {
            lives: vec![live("us", 1), live("b", 2)],
            records: vec![
                record("us", 1),
                record("b", 2),
                record("dead", 3),
                record("old-b", 2),
            ],
            entries: vec![entry("b", 2), entry("native", 4), entry("behind-b", 2)],
            advertised: [1, 2, 4, 5].map(|last| address(last).ip()).into(),
            ..Inventory::default()
        }
    }

    #[test]
    fn those_are_looked_at_who_live_elsewhere() {
        let live_peers = live_peers(&inventory(), &[address(1)]);
        let live_peers: Vec<_> = live_peers.iter().map(|it| (it.about(), it.kind)).collect();
        assert_eq!(
            live_peers,
            [
                ("peer b 10.0.0.2:6443".to_owned(), PeerKind::Proxied),
                ("peer native 10.0.0.4:6443".to_owned(), PeerKind::Native),
                ("peer bare 10.0.0.5:6443".to_owned(), PeerKind::Bare)
            ]
        );
    }

    #[test]
    fn the_dead_can_be_forgotten() {
        let lines = absent(&inventory(), &[address(1)], Path::new("/etc/kip.yaml"));
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].ends_with("kube-interop-proxy forget dead --config /etc/kip.yaml"),
            "{lines:?}"
        );
    }

    fn said(status: u16, trust: PeerTrust) -> Vec<String> {
        let peer = PeerServer {
            id: "b".to_owned(),
            address: address(2),
            kind: PeerKind::Proxied,
            version: None,
        };
        let observed = PeerObservations {
            proxy: Ok(true),
            ready: Readiness {
                status: StatusCode::from_u16(status).unwrap(),
                missing: Vec::new(),
                skew: None,
                elapsed: Duration::ZERO,
            },
            trust,
        };
        let findings = findings(&[(peer, Ok(observed))]);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_cause_is_one_line() {
        let cases = [
            (200, PeerTrust::Trusted, "ok      peer b"),
            (401, PeerTrust::Trusted, "ok      peer b"),
            (503, PeerTrust::Trusted, "warning peer b"),
            (
                401,
                PeerTrust::Rejected,
                "problem peer b 10.0.0.2:6443: it does not believe",
            ),
            (
                503,
                PeerTrust::Unknown(String::new()),
                "warning peer b 10.0.0.2:6443: kube-apiserver of unknown version behind its proxy, not ready",
            ),
        ];
        for (status, trust, start) in cases {
            let lines = said(status, trust);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].starts_with(start), "{lines:?}");
        }
    }
}
