//! The proxy that runs on this machine, if any, and its configured addresses.
//!
//! To find out whether an address leads to the proxy with this admin port, the probe sends a malformed request and reads
//! that proxy's counter of malformed requests: if the counter did not increase, the request went to another proxy.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::finding::Finding;
use super::probe::{self, ConfigKeys, ConnectionFailure, Maker, PATIENCE};
use super::{peers, told};
use crate::admin::document::ServerStatus;
use crate::cli::fetch::{self, FetchError};
use crate::cluster::record::canonical;
use crate::config::Config;

const ABOUT: &str = "proxy here";
const BIND_KEY: &str = "serving.bindAddress";
const ADVERTISE_KEY: &str = "peer.advertiseAddress";
/// Counts the requests of [`probe::is_proxy`].
const COUNTER: &str = "kube_interop_proxy_refusals_total{reason=\"bad_target\"} ";

const KEYS: ConfigKeys = ConfigKeys {
    server: "this proxy",
    address: ADVERTISE_KEY,
    serving: "serving.certFile",
    ..peers::KEYS
};

#[derive(Default)]
pub struct LocalProxy {
    pub running: Option<ServerStatus>,
    /// Nobody listens at `admin.bindAddress`.
    none_runs: bool,
    /// `peer.advertiseAddress`, as the running proxy has it.
    pub advertised: Option<SocketAddr>,
    pub findings: Vec<Finding>,
}

impl LocalProxy {
    /// `maker`: of clients for peers; without it nothing is said of the addresses.
    pub async fn check(config: &Config, maker: Option<&Maker>) -> Self {
        let mut here = Self::default();
        let port = config.admin.bind_address;
        match fetch::status(&port.to_string()).await {
            Ok((_, status)) => {
                here.advertised = status.server.endpoint.parse().ok().map(canonical);
                here.findings = running(config, &status.server, here.advertised);
                here.running = Some(status.server);
            }
            Err(FetchError::Connect(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                here.none_runs = true;
                here.findings.push(told::none_runs(ABOUT, port));
            }
            Err(error) => {
                let about = format!("admin.bindAddress {port}");
                here.findings.push(told::admin_port_taken(about, error));
            }
        }
        let (bound, advertised) = (config.serving.bind_address, config.peer.advertise_address);
        let other = (advertised != bound).then_some((ADVERTISE_KEY, advertised));
        for (key, address) in [(BIND_KEY, bound)].into_iter().chain(other) {
            // Nothing can connect to port 0.
            if let Some(maker) = maker.filter(|_| address.port() != 0) {
                let found = here.address_finding(config, key, address, maker).await;
                here.findings.extend(found);
            }
        }
        here
    }

    /// Whether the address that `key` names leads here, or can; `None`: as long as no proxy runs, nobody has to be there.
    async fn address_finding(
        &self,
        config: &Config,
        key: &str,
        address: SocketAddr,
        maker: &Maker,
    ) -> Option<Finding> {
        let about = format!("{key} {address}");
        let binds = key == BIND_KEY;
        // Binding a free port fails if the address is not this machine's.
        if binds && TcpListener::bind((address.ip(), 0)).is_err() {
            return Some(told::foreign_address(about));
        }
        let before = self.refusals(config).await;
        let is_proxy = probe::within(PATIENCE, probe::is_proxy(maker, address)).await;
        let after = self.refusals(config).await;
        match is_proxy {
            Ok(true) if !self.none_runs && after? > before? => Some(told::leads_here(about)),
            Ok(true) => Some(told::leads_to_another_proxy(about, key)),
            Ok(false) | Err(ConnectionFailure::NotTls) => Some(told::no_proxy(about, key)),
            Err(ConnectionFailure::Refused) => {
                self.running.as_ref()?;
                // Else the proxy that runs has another address than this one, which is free.
                let same = self.advertised == Some(canonical(config.peer.advertise_address));
                (same || !binds).then(|| told::nobody(about, key))
            }
            Err(failure) => Some(failure.finding(&about, &KEYS)),
        }
    }

    /// How many malformed requests the proxy that runs has refused.
    async fn refusals(&self, config: &Config) -> Option<f64> {
        self.running.as_ref()?;
        let admin = config.admin.bind_address.to_string();
        let answer = fetch::get(&admin, "/metrics").await.ok()?;
        let text = std::str::from_utf8(&answer.body).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(COUNTER));
        line.map_or(Some(0.0), |count| count.trim().parse().ok())
    }
}

/// `at`: what it advertises.
fn running(config: &Config, running: &ServerStatus, at: Option<SocketAddr>) -> Vec<Finding> {
    let (endpoint, id) = (&running.endpoint, running.id.as_deref());
    let shown = id.unwrap_or("no server ID yet");
    let advertised = config.peer.advertise_address;
    let configured = config.identity.server_id.as_deref();
    let how = match configured.filter(|_| configured != id) {
        _ if advertised.port() != 0 && at != Some(canonical(advertised)) => Some(format!(
            "it advertises {endpoint}, the file says {advertised}"
        )),
        other => other.map(|other| format!("its server ID is {shown}, the file says {other}")),
    };
    let differs = how.map(|how| told::runs_otherwise(ABOUT, how));
    let state = match running.missing.join("; ").as_str() {
        "" => told::proxy_ready(ABOUT, shown, endpoint, &running.version),
        missing => told::proxy_not_ready(ABOUT, shown, endpoint, missing),
    };
    differs.into_iter().chain([state]).collect()
}
