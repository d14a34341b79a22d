//! The proxy that runs on this machine, if any, and its configured addresses.
//!
//! To find out whether an address leads to the proxy with this admin port, the probe sends a malformed request and reads
//! that proxy's counter of malformed requests: if the counter did not increase, the request went to another proxy.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::connection_failure::{self, ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use super::http_probe::{self, PATIENCE};
use super::{Clients, peers, told};
use crate::admin::document::{ServerStatus, StatusDocument};
use crate::cli::fetch::{self, FetchError};
use crate::client::ClientMaker;
use crate::cluster::state::canonical;
use crate::config::Config;

const ABOUT: &str = "proxy here";
const BIND_KEY: &str = "serving.bindAddress";
const ADVERTISE_KEY: &str = "peer.advertiseAddress";
/// Counts the requests of [`http_probe::is_proxy`].
const COUNTER: &str = "kube_interop_proxy_refusals_total{reason=\"bad_target\"} ";

const KEYS: ConfigKeys = ConfigKeys {
    server: "this proxy",
    address: ADVERTISE_KEY,
    serving: "serving.certFile",
    ..peers::KEYS
};

#[derive(Debug)]
pub struct LocalObservations {
    /// What listens at `admin.bindAddress`: a proxy, nobody, or how something else showed.
    pub admin: Result<Option<ServerStatus>, String>,
    /// `serving.bindAddress` and, if it differs, `peer.advertiseAddress`.
    pub addresses: Vec<OwnAddress>,
}

/// A configured address of this proxy.
#[derive(Debug)]
pub struct OwnAddress {
    /// Configuration key.
    pub key: &'static str,
    pub address: SocketAddr,
    pub listener: Listener,
}

/// What listens at a configured address of this proxy.
#[derive(Debug, Clone, PartialEq)]
pub enum Listener {
    Nothing,
    /// Nothing, and it is no address of this machine.
    Foreign,
    /// Something that could not be reached with TLS.
    Unknown(ConnectionFailure),
    NotAProxy,
    /// A proxy; whether it is the one that runs here, if known.
    Proxy(Option<bool>),
}

impl LocalObservations {
    pub fn running(&self) -> Option<&ServerStatus> {
        self.admin.as_ref().ok()?.as_ref()
    }

    /// `peer.advertiseAddress`, as the running proxy has it.
    pub fn advertised(&self) -> Option<SocketAddr> {
        self.running()?.endpoint.parse().ok().map(canonical)
    }
}

/// `clients`: those of peers; without them nothing is said of the addresses.
pub async fn probe(config: &Config, clients: Option<&Clients>) -> LocalObservations {
    let port = config.admin.bind_address.to_string();
    let admin = admin(&port).await;
    let counts = matches!(admin, Ok(Some(_))).then_some(port.as_str());
    let (bound, advertised) = (config.serving.bind_address, config.peer.advertise_address);
    let other = (advertised != bound).then_some((ADVERTISE_KEY, advertised));
    let mut addresses = Vec::new();
    let configured = clients.into_iter().flat_map(|clients| {
        let addresses = [(BIND_KEY, bound)].into_iter().chain(other);
        addresses.map(|address| (&clients.peers, address))
    });
    for (maker, (key, address)) in configured {
        // Nothing can connect to port 0.
        if address.port() != 0 {
            let probe = listener(key, address, maker, counts);
            let listener = match connection_failure::within(PATIENCE, probe).await {
                Ok(listener) => listener,
                Err(ConnectionFailure::Refused) => Listener::Nothing,
                Err(failure) if failure.is_not_tls() => Listener::NotAProxy,
                Err(failure) => Listener::Unknown(failure),
            };
            addresses.push(OwnAddress {
                key,
                address,
                listener,
            });
        }
    }
    LocalObservations { admin, addresses }
}

async fn admin(port: &str) -> Result<Option<ServerStatus>, String> {
    match fetch::status(port).await {
        Err(FetchError::Connect(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(status) => Ok(Some(StatusDocument::read(&status).server)),
    }
}

async fn listener(
    key: &str,
    address: SocketAddr,
    maker: &Arc<ClientMaker>,
    counts: Option<&str>,
) -> Result<Listener, ConnectionFailure> {
    // Binding a free port fails if the address is not this machine's.
    if key == BIND_KEY && TcpListener::bind((address.ip(), 0)).is_err() {
        return Ok(Listener::Foreign);
    }
    let before = refusal_count(counts).await;
    if !http_probe::is_proxy(maker, address).await? {
        return Ok(Listener::NotAProxy);
    }
    let after = refusal_count(counts).await;
    let counted = before.zip(after).map(|(before, after)| after > before);
    Ok(Listener::Proxy(counted))
}

/// How many malformed requests the local proxy has refused.
async fn refusal_count(admin: Option<&str>) -> Option<f64> {
    let (_, body) = fetch::get(admin?, "/metrics").await.ok()?;
    let text = std::str::from_utf8(&body).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(COUNTER));
    line.map_or(Some(0.0), |count| count.trim().parse().ok())
}

pub fn findings(config: &Config, observed: &LocalObservations) -> Vec<Finding> {
    let admin = config.admin.bind_address;
    let mut findings = match &observed.admin {
        Ok(None) => vec![told::none_runs(ABOUT, admin)],
        Ok(Some(running)) => running_findings(config, running, observed.advertised()),
        Err(how) => {
            let about = format!("admin.bindAddress {admin}");
            vec![told::admin_port_taken(about, how)]
        }
    };
    let addresses = observed.addresses.iter();
    findings.extend(addresses.map(|own| address_finding(config, own, observed)));
    findings
}

/// `at`: what it advertises.
fn running_findings(
    config: &Config,
    running: &ServerStatus,
    at: Option<SocketAddr>,
) -> Vec<Finding> {
    let (endpoint, id) = (&running.endpoint, running.id.as_deref());
    let shown = id.unwrap_or("no server ID yet");
    let advertised = config.peer.advertise_address;
    let configured = config.identity.server_id.as_deref();
    let elsewhere = advertised.port() != 0 && at != Some(canonical(advertised));
    let differs = match configured.filter(|_| configured != id) {
        _ if elsewhere => Some(format!(
            "it advertises {endpoint}, the file says {advertised}"
        )),
        Some(configured) => Some(format!(
            "its server ID is {shown}, the file says {configured}"
        )),
        None => None,
    };
    let differs = differs.map(|how| told::runs_otherwise(ABOUT, how));
    let missing = running.missing.join("; ");
    let state = match missing.is_empty() {
        true => told::proxy_ready(ABOUT, shown, endpoint, &running.version),
        false => told::proxy_not_ready(ABOUT, shown, endpoint, missing),
    };
    differs.into_iter().chain([state]).collect()
}

fn address_finding(config: &Config, own: &OwnAddress, observed: &LocalObservations) -> Finding {
    let key = own.key;
    let about = format!("{key} {}", own.address);
    let binds = key == BIND_KEY;
    let advertised = canonical(config.peer.advertise_address);
    // The running proxy has the same address.
    let agrees = observed.advertised() == Some(advertised);
    match &own.listener {
        Listener::Foreign => told::foreign_address(about),
        Listener::Nothing if binds && !agrees => told::free(about),
        Listener::Nothing if observed.running().is_none() => told::nobody_yet(about),
        Listener::Nothing => told::nobody(about, key),
        Listener::Unknown(failure) => failure.finding(&about, &KEYS),
        Listener::NotAProxy if binds => told::port_taken(about),
        Listener::NotAProxy => told::leads_to_no_proxy(about, key),
        Listener::Proxy(Some(true)) => told::leads_here(about),
        Listener::Proxy(Some(false)) => told::leads_to_another_proxy(about, key),
        Listener::Proxy(None) if matches!(observed.admin, Ok(None)) => told::leads_away(about, key),
        Listener::Proxy(None) => told::leads_to_some_proxy(about),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../config.example.yaml");

    fn said(admin: Result<Option<ServerStatus>, String>, listener: Listener) -> Vec<String> {
        let config = crate::config::parse(EXAMPLE).unwrap();
        let own = OwnAddress {
            key: BIND_KEY,
            address: config.serving.bind_address,
            listener,
        };
        let observed = LocalObservations {
            admin,
            addresses: vec![own],
        };
        let findings = findings(&config, &observed);
        findings.iter().map(ToString::to_string).collect()
    }

    fn running(endpoint: &str) -> Result<Option<ServerStatus>, String> {
        Ok(Some(ServerStatus {
            id: Some("a".to_owned()),
            endpoint: endpoint.to_owned(),
            version: "0.1.0".to_owned(),
            ..ServerStatus::default()
        }))
    }

    #[test]
    fn without_a_proxy_the_port_must_be_free() {
        assert!(said(Ok(None), Listener::Nothing)[1].ends_with("10.0.0.11:6443: free"));
        for listener in [
            Listener::NotAProxy,
            Listener::Proxy(None),
            Listener::Foreign,
        ] {
            let line = &said(Ok(None), listener)[1];
            assert!(line.starts_with("problem serving.bindAddress"), "{line}");
        }
    }

    #[test]
    fn a_running_proxy_must_be_the_one_at_its_address() {
        let ours = said(running("10.0.0.11:6443"), Listener::Proxy(Some(true)));
        assert!(ours.iter().all(|line| line.starts_with("ok ")), "{ours:?}");
        for listener in [Listener::Nothing, Listener::Proxy(Some(false))] {
            let lines = said(running("10.0.0.11:6443"), listener);
            assert!(
                lines[1].starts_with("problem serving.bindAddress"),
                "{lines:?}"
            );
        }
        let lines = said(running("10.0.0.99:6443"), Listener::Nothing);
        assert!(
            lines[0].contains("it advertises 10.0.0.99:6443, the file says 10.0.0.11:6443"),
            "{lines:?}"
        );
        assert!(lines[2].starts_with("ok "), "{lines:?}");
    }
}
