//! The other servers of the cluster: whether each can be reached, is who it should be, and believes this proxy. Pure;
//! [`look`] observes.

pub mod look;

use std::net::SocketAddr;
use std::path::Path;

use http::StatusCode;

use super::ask::Ready;
use super::etcd::store::Store;
use super::finding::Finding;
use super::trouble::{Keys, Trouble};
use crate::cluster::state::canonical;

const KEYS: Keys = Keys {
    server: "the proxy",
    address: "its peer.advertiseAddress",
    authority: "peer.caFile",
    name: "peer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "its serving certificate (serving.certFile there)",
};

/// Peers that are looked at.
pub const MOST: usize = 64;

/// A server that lives, by what etcd says.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its server ID.
    pub id: String,
    /// Where it can be reached.
    pub address: SocketAddr,
    /// A kube-apiserver without a proxy.
    pub native: bool,
    /// `gitVersion` of its apiserver, where known.
    pub version: Option<String>,
}

impl Peer {
    /// The name in each line.
    pub fn about(&self) -> String {
        format!("peer {} {}", self.id, self.address)
    }
}

/// What was seen at a peer's address.
#[derive(Debug)]
pub struct Seen {
    /// A proxy listens there.
    pub proxy: Result<bool, Trouble>,
    /// What `/readyz` said.
    pub ready: Ready,
    /// Whether it takes this proxy's word about users.
    pub belief: Belief,
}

/// Whether a peer takes this proxy's word about users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Belief {
    /// It does.
    Given,
    /// It does not take our certificate for anybody's.
    Refused,
    /// It takes us for a user of this name.
    TakenFor(String),
    /// It does, but reads users from other headers than this one.
    OtherHeaders(String),
    /// It could not be found out, in words.
    Unclear(String),
}

/// Who is to be looked at: servers that live elsewhere than at `mine`.
pub fn wanted(store: &Store, mine: &[SocketAddr]) -> Vec<Peer> {
    let elsewhere = |address: SocketAddr| !mine.contains(&canonical(address));
    let lives = store
        .lives
        .iter()
        .filter(|(_, live)| elsewhere(live.endpoint));
    let proxies = lives.map(|(id, live)| Peer {
        id: id.clone(),
        address: live.endpoint,
        native: false,
        version: version(store, id),
    });
    let entries = store.entries.iter().filter(|(id, entry)| {
        elsewhere(entry.address)
            && !is_alive(store, id)
            && !is_taken(store, entry.address)
            && !store.records.iter().any(|(known, _)| known == id)
    });
    let natives = entries.map(|(id, entry)| Peer {
        id: id.clone(),
        address: entry.address,
        native: true,
        version: None,
    });
    proxies.chain(natives).collect()
}

fn version(store: &Store, id: &str) -> Option<String> {
    let record = store.records.iter().find(|(known, _)| known == id);
    record?.1.binary_version.clone()
}

fn is_alive(store: &Store, id: &str) -> bool {
    store.lives.iter().any(|(live, _)| live == id)
}

fn is_taken(store: &Store, address: SocketAddr) -> bool {
    let mut lives = store.lives.iter();
    lives.any(|(_, live)| canonical(live.endpoint) == canonical(address))
}

/// Servers that are remembered and do not live: what only they served is answered 503 until they are forgotten.
pub fn dead(store: &Store, mine: &[SocketAddr], file: &Path) -> Vec<Finding> {
    let gone = store.records.iter().filter(|(id, record)| {
        !is_alive(store, id)
            && !is_taken(store, record.endpoint)
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

/// What is to be said of those that live.
pub fn findings(seen: &[(Peer, Result<Seen, Trouble>)]) -> Vec<Finding> {
    if seen.is_empty() {
        return vec![Finding::info("peers", "no other server lives")];
    }
    seen.iter()
        .flat_map(|(peer, seen)| of(peer, seen))
        .collect()
}

fn of(peer: &Peer, seen: &Result<Seen, Trouble>) -> Vec<Finding> {
    let about = peer.about();
    let seen = match seen {
        Ok(seen) => seen,
        Err(trouble) => return vec![trouble.finding(&about, &KEYS)],
    };
    if seen.proxy == Ok(false) && !peer.native {
        return vec![Finding::problem(
            about,
            "what listens there is no kube-interop-proxy",
            "correct its peer.advertiseAddress, or what leads from there to its serving.bindAddress",
        )];
    }
    let mut findings = Vec::new();
    match &seen.belief {
        Belief::Given => findings.push(readiness(&about, peer, &seen.ready)),
        Belief::Refused => findings.push(Finding::problem(
            about,
            "it does not believe this proxy, and answers 401",
            "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, with a CN of its \
             serving.requestHeaderAllowedNames, and see that its own kube-apiserver believes it",
        )),
        Belief::TakenFor(user) => findings.push(Finding::problem(
            about,
            format!("it takes this proxy for user {user}, and not for a peer"),
            "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, and not by its \
             clientCAFile only",
        )),
        Belief::OtherHeaders(ours) => findings.push(Finding::problem(
            about,
            format!("it believes this proxy, and does not read users from {ours}"),
            "make serving.requestHeaderUsernameHeaders the same on all servers",
        )),
        Belief::Unclear(why) => {
            findings.push(readiness(&about, peer, &seen.ready));
            if seen.ready.status != StatusCode::SERVICE_UNAVAILABLE {
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

/// Only 503 says that it is not ready: without a user an apiserver may refuse to say anything.
fn readiness(about: &str, peer: &Peer, ready: &Ready) -> Finding {
    let kind = match peer.native {
        true => "without a proxy",
        false => "behind its proxy",
    };
    let version = peer.version.as_deref().unwrap_or("of unknown version");
    if ready.status == StatusCode::SERVICE_UNAVAILABLE {
        return Finding::warning(
            about,
            format!("kube-apiserver {version} {kind}, not ready"),
            "run check --live there",
        );
    }
    let took = ready.took.as_millis();
    Finding::ok(about, format!("kube-apiserver {version} {kind}, {took} ms"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::cluster::codec::PeerEndpoint;
    use crate::cluster::record::{Live, Record};

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 6443).into()
    }

    fn store() -> Store {
        let live = |id: &str, last| {
            let live = Live {
                endpoint: address(last),
                initialized: true,
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
                resources: BTreeMap::new(),
            };
            (id.to_owned(), record)
        };
        let entry = |id: &str, last| {
            let server = id.to_owned();
            let address = address(last);
            (id.to_owned(), PeerEndpoint { server, address })
        };
        Store {
            lives: vec![live("us", 1), live("b", 2)],
            records: vec![
                record("us", 1),
                record("b", 2),
                record("dead", 3),
                record("old-b", 2),
            ],
            entries: vec![entry("b", 2), entry("native", 4), entry("behind-b", 2)],
            ..Store::default()
        }
    }

    #[test]
    fn those_are_looked_at_who_live_elsewhere() {
        let wanted = wanted(&store(), &[address(1)]);
        let wanted: Vec<_> = wanted.iter().map(|it| (it.about(), it.native)).collect();
        assert_eq!(
            wanted,
            [
                ("peer b 10.0.0.2:6443".to_owned(), false),
                ("peer native 10.0.0.4:6443".to_owned(), true)
            ]
        );
    }

    #[test]
    fn the_dead_can_be_forgotten() {
        let lines = dead(&store(), &[address(1)], Path::new("/etc/kip.yaml"));
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].ends_with("kube-interop-proxy forget dead --config /etc/kip.yaml"),
            "{lines:?}"
        );
    }

    fn said(status: u16, belief: Belief) -> Vec<String> {
        let peer = Peer {
            id: "b".to_owned(),
            address: address(2),
            native: false,
            version: None,
        };
        let seen = Seen {
            proxy: Ok(true),
            ready: Ready {
                status: StatusCode::from_u16(status).unwrap(),
                missing: Vec::new(),
                skew: None,
                took: Duration::ZERO,
            },
            belief,
        };
        let findings = findings(&[(peer, Ok(seen))]);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_cause_is_one_line() {
        let cases = [
            (200, Belief::Given, "ok      peer b"),
            (401, Belief::Given, "ok      peer b"),
            (503, Belief::Given, "warning peer b"),
            (
                401,
                Belief::Refused,
                "problem peer b 10.0.0.2:6443: it does not believe",
            ),
            (
                503,
                Belief::Unclear(String::new()),
                "warning peer b 10.0.0.2:6443: kube-apiserver of unknown version behind its proxy, not ready",
            ),
        ];
        for (status, belief, start) in cases {
            let lines = said(status, belief);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].starts_with(start), "{lines:?}");
        }
    }
}
