//! The other servers of the cluster: whether each can be reached, is the expected server, and trusts this proxy. They are
//! asked with the requests that a proxy sends; GETs only.
//!
//! To find out whether a peer trusts this proxy, the probe asserts an invented user in a request that is marked as
//! rerouted: a peer that trusts the proxy names that user in its 403.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use http::header::{HeaderName, HeaderValue};

use super::finding::Finding;
use super::probe::{self, ConfigKeys, ConnectionFailure, Maker, Observations};
use super::stored::Inventory;
use super::told;
use crate::client;
use crate::cluster::keys::claims_an_id;
use crate::cluster::record::canonical;
use crate::config::RequestHeaders;
use crate::local::requestheader::check::PATH;
use crate::local::requestheader::findings::{UserRecognition, recognised};
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

/// A server that is live according to etcd: its ID and where it is.
type Peer<'i> = (&'i str, SocketAddr, ServerKind);

/// Whether it recognises a user whom this proxy names; or why that is unknown.
type Trust = Result<UserRecognition, String>;
type Observed = Result<Observations<Trust>, ConnectionFailure>;

/// Asks all live servers at addresses other than `mine`.
pub async fn check(
    maker: &Maker,
    names: &RequestHeaders,
    mine: &[SocketAddr],
    inventory: &Inventory,
) -> Vec<Finding> {
    let mut live = live_peers(inventory, mine);
    let left = live.split_off(live.len().min(MAX_PEERS)).len();
    let probes = live.into_iter().map(async |(id, address, kind)| {
        let about = format!("peer {id} {address}");
        let observed = probe::observe(&about, maker, address, trust(maker, names, address));
        let observed = probe::within(PATIENCE, observed).await;
        let header = names.username.first().map_or("", HeaderName::as_str);
        findings(&about, kind, header, observed)
    });
    let mut findings = join_all(probes).await.concat();
    findings.extend((left > 0).then(|| told::left_out("peers", left)));
    findings
}

/// Live servers at addresses other than `mine`, of which the first is the configured one.
fn live_peers<'i>(inventory: &'i Inventory, mine: &[SocketAddr]) -> Vec<Peer<'i>> {
    let lives = inventory.lives.iter();
    let proxied = lives.map(|(id, live)| (id.as_str(), live.endpoint, ServerKind::Proxied));
    let entries = inventory.entries.iter().filter(|(id, entry)| {
        let recorded = inventory.records.iter().any(|(known, _)| known == id);
        !recorded && !is_alive(inventory, id, entry.address)
    });
    let native = entries.map(|(id, entry)| (id.as_str(), entry.address, ServerKind::Native));
    let elsewhere = |(_, address, _): &Peer<'_>| !mine.contains(&canonical(*address));
    let mut peers: Vec<_> = proxied.chain(native).filter(elsewhere).collect();
    let known: Vec<_> = peers.iter().map(|(_, at, _)| canonical(*at)).collect();
    let bare = advertised(inventory, mine).filter(|address| !known.contains(address));
    peers.extend(bare.map(|address| ("bare", address, ServerKind::Bare)));
    peers
}

/// Addresses of living apiservers at the port of mine, unless `mine`. Loopback ones only if mine is one.
fn advertised(inventory: &Inventory, mine: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let loopback = mine.iter().any(|address| address.ip().is_loopback());
    let usable = inventory
        .advertised
        .iter()
        .filter(move |ip| loopback || !ip.is_loopback());
    let addresses = usable.filter_map(|ip| Some(SocketAddr::new(*ip, mine.first()?.port())));
    addresses.filter(|address| !mine.contains(address))
}

/// Whether a proxy with this ID or at this address lives.
fn is_alive(inventory: &Inventory, id: &str, address: SocketAddr) -> bool {
    let same = |live: SocketAddr| canonical(live) == canonical(address);
    let mut lives = inventory.lives.iter();
    lives.any(|(live_id, live)| live_id == id || same(live.endpoint))
}

/// Server IDs and addresses that two proxies share. `own`: that of this proxy, if it is known.
pub fn server_ids(own: Option<&str>, mine: &[SocketAddr], inventory: &Inventory) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut at: BTreeMap<SocketAddr, Vec<&str>> = BTreeMap::new();
    for (id, live) in &inventory.lives {
        let address = canonical(live.endpoint);
        at.entry(address).or_default().push(id);
        if own == Some(id) {
            let about = format!("server ID {id}");
            findings.push(match mine.contains(&address) {
                true => told::own_id(about),
                false => told::used_id(about, address),
            });
        }
    }
    findings.extend(inventory.claims.iter().filter_map(|key| {
        let (id, address) = key.rsplit_once('/').filter(|_| claims_an_id(key))?;
        Some(told::claimed_id(format!("server ID {id}"), address))
    }));
    let shared = at.iter().filter(|(_, ids)| ids.len() > 1);
    findings.extend(shared.map(|(address, ids)| {
        told::shared_address(format!("servers {}", ids.join(", ")), address)
    }));
    findings
}

/// Servers that have a record and are not live: requests for resources that only they served get 503 until they are
/// forgotten.
pub fn absent(inventory: &Inventory, mine: &[SocketAddr], file: &Path) -> Vec<Finding> {
    let absent = inventory.records.iter().filter(|(id, record)| {
        !is_alive(inventory, id, record.endpoint) && !mine.contains(&canonical(record.endpoint))
    });
    let told = absent.map(|(id, record)| {
        told::absent(format!("peer {id} {}", record.endpoint), id, file.display())
    });
    told.collect()
}

/// `header`: the one in which this proxy names users.
fn findings(about: &str, kind: ServerKind, header: &str, observed: Observed) -> Vec<Finding> {
    use UserRecognition::{Rejected, TakenFor, Unclear, Unnamed, Yes};
    let bare = kind == ServerKind::Bare;
    let observed = match observed {
        Ok(observed) => observed,
        Err(failure) if bare => {
            return vec![told::bare_unreachable(about, failure.description(&KEYS))];
        }
        Err(failure) => return vec![failure.finding(about, &KEYS)],
    };
    // An apiserver may answer 401 or 403 to a request without a user.
    let unready = observed.status == StatusCode::SERVICE_UNAVAILABLE;
    let state = match observed.asked {
        // A load balancer before proxies, which the apiservers behind them advertise.
        _ if observed.is_proxy && bare => return Vec::new(),
        _ if !observed.is_proxy && kind.has_proxy() => told::peer_is_no_proxy(about),
        Ok(Rejected) => told::peer_rejects(about, "answers 401"),
        // A server that does not take the certificate for a peer's answers 401, and never as anonymous.
        Ok(TakenFor(user)) if user == ANONYMOUS => told::peer_reads_other_headers(about, header),
        Ok(TakenFor(user)) => told::peer_rejects(about, format!("takes it for user {user}")),
        // A server that is not ready need not tell whose credentials it accepts.
        _ if unready => told::peer_not_ready(about),
        Ok(Yes) => told::peer_answers(about),
        Ok(Unclear(status)) => told::peer_acceptance_unknown(about, format!("it answers {status}")),
        Ok(Unnamed) => told::peer_acceptance_unknown(about, "everybody may read everything there"),
        Err(why) => told::peer_acceptance_unknown(about, why),
    };
    [state].into_iter().chain(observed.clock).collect()
}

async fn trust(maker: &Maker, names: &RequestHeaders, address: SocketAddr) -> Trust {
    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let mut headers = client::identity(names, &invented, &[]).map_err(|error| error.to_string())?;
    headers.extend([REROUTED, PEER_PROXIED].map(|name| (name, HeaderValue::from_static("true"))));
    let answer = maker.client(address).get_with(PATH, headers).await;
    let answer = answer.map_err(|error| ConnectionFailure::from(error).description(&KEYS))?;
    // A proxy sends this header to trusted peers only.
    Ok(match answer.headers.contains_key(NOT_EXECUTED) {
        true => UserRecognition::Yes,
        false => recognised(&invented, answer.status, &answer.body),
    })
}

#[cfg(test)]
mod tests {
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
                api_server_id: None,
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
        let inventory = inventory();
        assert_eq!(
            live_peers(&inventory, &[address(1)]),
            [
                ("b", address(2), ServerKind::Proxied),
                ("native", address(4), ServerKind::Native),
                ("bare", address(5), ServerKind::Bare)
            ]
        );
    }

    #[test]
    fn an_id_is_this_proxys_or_somebody_elses() {
        let said = |own: &str, mine: u8, claims: &[&str]| {
            let inventory = Inventory {
                claims: claims.iter().map(ToString::to_string).collect(),
                ..inventory()
            };
            let findings = server_ids(Some(own), &[address(mine)], &inventory);
            let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
            lines
        };
        assert_eq!(said("new", 1, &[]), [""; 0]);
        assert_eq!(
            said("us", 1, &[]),
            ["ok      KIP-095 server ID us: used by this proxy only"]
        );
        let line = said("us", 9, &[]).remove(0);
        assert!(
            line.starts_with("problem KIP-096 server ID us: the proxy at 10.0.0.1:6443 uses it"),
            "{line}"
        );
        // A proxy without an ID wants nobody's.
        let lines = said("new", 1, &["-/10.0.0.13:6443", "b/10.0.0.12:6443"]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0]
                .starts_with("problem KIP-097 server ID b: the proxy at 10.0.0.12:6443 claims it"),
            "{lines:?}"
        );
    }

    #[test]
    fn no_two_servers_have_one_address() {
        let mut inventory = inventory();
        let twin = inventory.lives[1].1.clone();
        inventory.lives.push(("c".to_owned(), twin));
        let findings = server_ids(None, &[address(1)], &inventory);
        let line = findings[0].to_string();
        assert!(
            line.starts_with("problem KIP-098 servers b, c: all have the address 10.0.0.2:6443"),
            "{line}"
        );
    }

    #[test]
    fn the_dead_can_be_forgotten() {
        let lines = absent(&inventory(), &[address(1)], Path::new("/etc/kip.yaml"));
        let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("kube-interop-proxy forget dead --config /etc/kip.yaml; see "),
            "{lines:?}"
        );
    }

    #[test]
    fn one_cause_is_one_line() {
        let rejected = UserRecognition::Rejected;
        let cases = [
            (200, UserRecognition::Yes, "ok      KIP-071 peer b: answers"),
            (401, UserRecognition::Yes, "ok      KIP-071 peer b: answers"),
            (
                503,
                UserRecognition::Yes,
                "warning KIP-072 peer b: not ready",
            ),
            (401, rejected, "problem KIP-067 peer b: it rejects"),
            (
                503,
                UserRecognition::Unnamed,
                "warning KIP-072 peer b: not ready",
            ),
        ];
        for (status, trust, start) in cases {
            let observed = Observations {
                is_proxy: true,
                status: StatusCode::from_u16(status).unwrap(),
                missing: String::new(),
                clock: None,
                asked: Ok(trust),
            };
            let findings = findings("peer b", ServerKind::Proxied, "x-remote-user", Ok(observed));
            let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].starts_with(start), "{lines:?}");
        }
    }
}
