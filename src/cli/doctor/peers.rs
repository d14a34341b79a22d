//! The other servers of the cluster: whether each can be reached, is the expected server, and trusts this proxy. They are
//! asked with the requests that a proxy sends; GETs only.
//!
//! To find out whether a peer trusts this proxy, the probe asserts an invented user in a request that is marked as
//! rerouted: a peer that trusts the proxy names that user in its 403.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use http::header::{HeaderName, HeaderValue};

use super::clock::Skew;
use super::connection_failure::{self, ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use super::http_probe::{self, Observations, Readiness};
use super::inventory::Inventory;
use super::told;
use crate::client::{self, ClientMaker};
use crate::cluster::state::canonical;
use crate::config::RequestHeaders;
use crate::local::requestheader::check::PATH;
use crate::local::requestheader::findings::{TrustProblem, UserRecognition, recognised};
use crate::request::headers::{NOT_EXECUTED, PEER_PROXIED, REROUTED};
use crate::routing::table::ServerKind;

pub const KEYS: ConfigKeys = ConfigKeys {
    server: "the proxy",
    address: "its peer.advertiseAddress",
    authority: "peer.caFile",
    name: "peer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "its serving certificate (serving.certFile there)",
};

/// Most peers that are probed.
const MAX_PEERS: usize = 64;
/// Time limit for one peer.
const PATIENCE: Duration = Duration::from_secs(10);
const ANONYMOUS: &str = "system:anonymous";

/// A server that is live according to etcd.
#[derive(Debug, Clone)]
pub struct PeerServer {
    pub id: String,
    pub address: SocketAddr,
    pub kind: ServerKind,
    /// `gitVersion` of its apiserver, if known.
    pub version: Option<String>,
}

/// Whether it recognises a user whom this proxy names; or why that is unknown.
type Trust = Result<UserRecognition, String>;
type Observed = Result<Observations<Trust>, ConnectionFailure>;

/// Asks all live servers at addresses other than `mine`. Returns the clock differences too.
pub async fn check(
    maker: &Arc<ClientMaker>,
    names: &RequestHeaders,
    mine: &[SocketAddr],
    inventory: &Inventory,
) -> (Vec<Finding>, Vec<(String, Skew)>) {
    let mut live = live_peers(inventory, mine);
    let left = live.split_off(live.len().min(MAX_PEERS)).len();
    let probes = live.into_iter().map(async |peer| {
        let trust = trust(maker, names, peer.address);
        let observed = http_probe::observe(maker, peer.address, trust);
        let observed = connection_failure::within(PATIENCE, observed).await;
        (peer, observed)
    });
    let observed = join_all(probes).await;
    let skews = observed.iter().filter_map(|(peer, observed)| {
        let skew = observed.as_ref().ok()?.ready.skew?;
        Some((peer.about(), skew))
    });
    let mut findings = findings(&observed);
    findings.extend((left > 0).then(|| told::left_out("peers", left)));
    (findings, skews.collect())
}

impl PeerServer {
    /// Subject of its findings.
    pub fn about(&self) -> String {
        format!("peer {} {}", self.id, self.address)
    }
}

/// Live servers at addresses other than `mine`, of which the first is the configured one.
pub fn live_peers(inventory: &Inventory, mine: &[SocketAddr]) -> Vec<PeerServer> {
    let record = |id: &str| inventory.records.iter().find(|(known, _)| known == id);
    let proxied = inventory.lives.iter().map(|(id, live)| PeerServer {
        id: id.clone(),
        address: live.endpoint,
        kind: ServerKind::Proxied,
        version: record(id).and_then(|(_, record)| record.binary_version.clone()),
    });
    let without_proxy = |id: &str, address: SocketAddr, kind: ServerKind| PeerServer {
        id: id.to_owned(),
        address,
        kind,
        version: None,
    };
    let native = inventory.entries.iter().filter(|(id, entry)| {
        let recorded = record(id).is_some();
        !recorded && !is_alive(inventory, id, entry.address)
    });
    let native = native.map(|(id, entry)| without_proxy(id, entry.address, ServerKind::Native));
    let elsewhere = |peer: &PeerServer| !mine.contains(&canonical(peer.address));
    let mut peers: Vec<_> = proxied.chain(native).filter(elsewhere).collect();
    let known: Vec<_> = peers.iter().map(|peer| canonical(peer.address)).collect();
    let bare = advertised(inventory, mine).filter(|address| !known.contains(address));
    peers.extend(bare.map(|address| without_proxy("bare", address, ServerKind::Bare)));
    peers
}

/// Addresses of living apiservers at the port of mine, unless `mine`. Loopback ones only if mine is one.
fn advertised(inventory: &Inventory, mine: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let loopback = mine.iter().any(|address| address.ip().is_loopback());
    let addresses = inventory.advertised.iter();
    addresses
        .filter_map(|ip| Some(SocketAddr::new(*ip, mine.first()?.port())))
        .filter(move |address| !mine.contains(address) && (loopback || !address.ip().is_loopback()))
}

/// Whether a proxy with this ID or at this address lives.
fn is_alive(inventory: &Inventory, id: &str, address: SocketAddr) -> bool {
    let same = |live: SocketAddr| canonical(live) == canonical(address);
    let mut lives = inventory.lives.iter();
    lives.any(|(live_id, live)| live_id == id || same(live.endpoint))
}

/// Servers that have a record and are not live: requests for resources that only they served get 503 until they are
/// forgotten.
pub fn absent(inventory: &Inventory, mine: &[SocketAddr], file: &Path) -> Vec<Finding> {
    let gone = inventory.records.iter().filter(|(id, record)| {
        !is_alive(inventory, id, record.endpoint) && !mine.contains(&canonical(record.endpoint))
    });
    let told = gone.map(|(id, record)| {
        let about = format!("peer {id} {}", record.endpoint);
        told::not_alive(about, id, file.display())
    });
    told.collect()
}

pub fn findings(observed: &[(PeerServer, Observed)]) -> Vec<Finding> {
    match observed {
        [] => vec![told::alone("peers")],
        each => each.iter().map(|(peer, it)| finding(peer, it)).collect(),
    }
}

fn finding(peer: &PeerServer, observed: &Observed) -> Finding {
    use UserRecognition::{No, Unnamed, Yes};
    let about = peer.about();
    let bare = peer.kind == ServerKind::Bare;
    let observed = match observed {
        Ok(observed) => observed,
        Err(failure) if bare => {
            return told::bare_unreachable(about, failure.description(&KEYS));
        }
        Err(failure) => return failure.finding(&about, &KEYS),
    };
    let unready = observed.ready.status == StatusCode::SERVICE_UNAVAILABLE;
    match (&observed.proxy, &observed.asked) {
        (Ok(true), _) if bare => told::advertised_by_proxy(about),
        (Ok(false), _) if peer.kind.has_proxy() => told::peer_is_no_proxy(about),
        (_, Ok(Yes)) => readiness(peer, &observed.ready),
        (_, Ok(No(TrustProblem::NotBelieved(_)))) => told::peer_rejects(about),
        // A server that does not take the certificate for a peer's answers 401, and never as anonymous.
        (_, Ok(No(TrustProblem::TakenFor { header, user }))) if user == ANONYMOUS => {
            told::peer_reads_other_headers(about, header)
        }
        (_, Ok(No(TrustProblem::TakenFor { user, .. }))) => told::peer_takes_for_user(about, user),
        // A server that is not ready need not tell whom it believes.
        _ if unready => readiness(peer, &observed.ready),
        (_, Ok(No(other))) => told::peer_belief_unknown(about, other),
        (_, Ok(Unnamed)) => told::peer_belief_unknown(about, "everybody may read everything there"),
        (_, Err(why)) => told::peer_belief_unknown(about, why),
    }
}

/// Only 503 means not ready: an apiserver may answer 401 or 403 to a request without a user.
fn readiness(peer: &PeerServer, ready: &Readiness) -> Finding {
    let kind = match peer.kind {
        ServerKind::Local | ServerKind::Proxied => "behind its proxy",
        ServerKind::Native => "without a proxy",
        ServerKind::Bare => "without a proxy, bare",
    };
    let version = peer.version.as_deref().unwrap_or("of unknown version");
    match ready.status == StatusCode::SERVICE_UNAVAILABLE {
        true => told::peer_not_ready(peer.about(), version, kind),
        false => told::peer_answers(peer.about(), version, kind, ready.elapsed.as_millis()),
    }
}

async fn trust(maker: &Arc<ClientMaker>, names: &RequestHeaders, address: SocketAddr) -> Trust {
    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let mut headers = client::identity(names, &invented, &[]).map_err(|error| error.to_string())?;
    headers.extend([REROUTED, PEER_PROXIED].map(|name| (name, HeaderValue::from_static("true"))));
    let headers: Vec<(HeaderName, HeaderValue)> = headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let answer = maker.client(address).get(PATH, &headers).await;
    let answer = answer.map_err(|error| ConnectionFailure::from(error).description(&KEYS))?;
    // A proxy sends this header to trusted peers only.
    Ok(match answer.headers.contains_key(NOT_EXECUTED) {
        true => UserRecognition::Yes,
        false => recognised(names, &invented, answer.status, &answer.body),
    })
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
                ("peer b 10.0.0.2:6443".to_owned(), ServerKind::Proxied),
                ("peer native 10.0.0.4:6443".to_owned(), ServerKind::Native),
                ("peer bare 10.0.0.5:6443".to_owned(), ServerKind::Bare)
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

    fn said(status: u16, trust: UserRecognition) -> Vec<String> {
        let peer = PeerServer {
            id: "b".to_owned(),
            address: address(2),
            kind: ServerKind::Proxied,
            version: None,
        };
        let observed = Observations {
            proxy: Ok(true),
            ready: Readiness {
                status: StatusCode::from_u16(status).unwrap(),
                missing: Vec::new(),
                skew: None,
                elapsed: Duration::ZERO,
            },
            asked: Ok(trust),
        };
        let findings = findings(&[(peer, Ok(observed))]);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_cause_is_one_line() {
        let cases = [
            (200, UserRecognition::Yes, "ok      peer b"),
            (401, UserRecognition::Yes, "ok      peer b"),
            (503, UserRecognition::Yes, "warning peer b"),
            (
                401,
                UserRecognition::No(TrustProblem::NotBelieved(String::new())),
                "problem peer b 10.0.0.2:6443: it does not believe",
            ),
            (
                503,
                UserRecognition::Unnamed,
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
