//! Findings about the proxy that runs on this machine, if any, and about its configured addresses. Pure; [`probe`]
//! observes.

pub mod probe;

use std::net::SocketAddr;

use super::connection_failure::{ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use crate::cluster::state::canonical;
use crate::config::Config;

const BIND_KEY: &str = "serving.bindAddress";

const KEYS: ConfigKeys = ConfigKeys {
    server: "this proxy",
    address: "peer.advertiseAddress",
    authority: "peer.caFile",
    name: "peer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "serving.certFile",
};

#[derive(Debug)]
pub struct LocalObservations {
    pub admin: AdminPort,
    /// `serving.bindAddress` and, if it differs, `peer.advertiseAddress`.
    pub addresses: Vec<OwnAddress>,
}

/// What listens at `admin.bindAddress`.
#[derive(Debug)]
pub enum AdminPort {
    Nothing,
    /// Something that is no proxy, and how it showed.
    Other(String),
    Proxy(RunningProxy),
}

/// The running proxy, from its status document.
#[derive(Debug)]
pub struct RunningProxy {
    /// Its server ID, once known.
    pub id: Option<String>,
    /// `peer.advertiseAddress`, as the running proxy has it.
    pub endpoint: SocketAddr,
    pub version: String,
    /// Readiness checks that fail.
    pub missing: Vec<String>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub fn running(&self) -> Option<&RunningProxy> {
        match &self.admin {
            AdminPort::Proxy(running) => Some(running),
            AdminPort::Nothing | AdminPort::Other(_) => None,
        }
    }
}

pub fn findings(config: &Config, observed: &LocalObservations) -> Vec<Finding> {
    let admin = config.admin.bind_address;
    let about = "proxy here";
    let mut findings = Vec::new();
    match &observed.admin {
        AdminPort::Nothing => findings.push(Finding::info(
            about,
            format!("none runs: nobody listens at admin.bindAddress {admin}"),
        )),
        AdminPort::Other(how) => findings.push(Finding::problem(
            format!("admin.bindAddress {admin}"),
            format!("taken by something that is not this program: {how}"),
            "end what listens there, or choose another port",
        )),
        AdminPort::Proxy(running) => findings.extend(running_findings(about, config, running)),
    }
    findings.extend(
        observed
            .addresses
            .iter()
            .map(|own| address_finding(config, own, observed)),
    );
    findings
}

fn running_findings(about: &str, config: &Config, running: &RunningProxy) -> Vec<Finding> {
    let RunningProxy {
        id,
        endpoint,
        version,
        missing,
    } = running;
    let shown = id.as_deref().unwrap_or("no server ID yet");
    let mut findings = Vec::new();
    let configured = &config.identity.server_id;
    let advertised = config.peer.advertise_address;
    if advertised.port() != 0 && canonical(*endpoint) != canonical(advertised) {
        findings.push(differs(
            about,
            &format!("it advertises {endpoint}, the file says {advertised}"),
        ));
    } else if let Some(configured) = configured.as_ref().filter(|it| Some(*it) != id.as_ref()) {
        findings.push(differs(
            about,
            &format!("its server ID is {shown}, the file says {configured}"),
        ));
    }
    findings.push(match missing.as_slice() {
        [] => Finding::ok(
            about,
            format!("{shown} at {endpoint}, version {version}, ready"),
        ),
        missing => Finding::warning(
            about,
            format!("{shown} at {endpoint}, not ready: {}", missing.join("; ")),
            "see the other lines, and its log",
        ),
    });
    findings
}

fn differs(about: &str, difference: &str) -> Finding {
    Finding::warning(
        about,
        format!("runs with another configuration than this file: {difference}"),
        "restart it, if this file is the one that it starts with",
    )
}

fn address_finding(config: &Config, own: &OwnAddress, observed: &LocalObservations) -> Finding {
    let OwnAddress {
        key,
        address,
        listener,
    } = own;
    let about = format!("{key} {address}");
    let binds = *key == BIND_KEY;
    let advertised = canonical(config.peer.advertise_address);
    let running = observed.running();
    // The running proxy has the same address.
    let agrees = running.is_some_and(|running| canonical(running.endpoint) == advertised);
    match listener {
        Listener::Proxy(Some(true)) => Finding::ok(about, "leads to the proxy that runs here"),
        Listener::Foreign => Finding::problem(
            about,
            "this machine does not have this address",
            "make it an address of this machine",
        ),
        Listener::Nothing if binds && !agrees => Finding::ok(about, "free"),
        Listener::Nothing if running.is_none() => {
            Finding::info(about, "nobody listens there, as no proxy runs here")
        }
        Listener::Nothing => Finding::problem(
            about,
            "nobody listens there: peers cannot reach this proxy",
            format!("correct {key}, or what leads from there to serving.bindAddress"),
        ),
        Listener::Unknown(failure) => failure.finding(&about, &KEYS),
        Listener::NotAProxy if binds => Finding::problem(
            about,
            "taken by something that is no kube-interop-proxy",
            "end it; a kube-apiserver is to be started with --bind-address=127.0.0.1",
        ),
        Listener::NotAProxy => Finding::problem(
            about,
            "leads to something that is no kube-interop-proxy",
            format!("correct {key}"),
        ),
        Listener::Proxy(_) if matches!(observed.admin, AdminPort::Other(_)) => Finding::info(
            about,
            "leads to a proxy; nothing tells whether it is this one",
        ),
        Listener::Proxy(None) if running.is_some() => Finding::info(
            about,
            "leads to a proxy; its metrics do not tell whether it is this one",
        ),
        Listener::Proxy(_) => Finding::problem(
            about,
            match running {
                Some(_) => "leads to another proxy than the one that runs here",
                None => "leads to a proxy, and none runs here",
            },
            format!("correct {key}: no two proxies can have one address"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../config.example.yaml");

    fn said(admin: AdminPort, listener: Listener) -> Vec<String> {
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

    fn running(endpoint: &str) -> AdminPort {
        AdminPort::Proxy(RunningProxy {
            id: Some("a".to_owned()),
            endpoint: endpoint.parse().unwrap(),
            version: "0.1.0".to_owned(),
            missing: Vec::new(),
        })
    }

    #[test]
    fn without_a_proxy_the_port_must_be_free() {
        assert!(said(AdminPort::Nothing, Listener::Nothing)[1].ends_with("10.0.0.11:6443: free"));
        for listener in [
            Listener::NotAProxy,
            Listener::Proxy(None),
            Listener::Foreign,
        ] {
            let line = &said(AdminPort::Nothing, listener)[1];
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
