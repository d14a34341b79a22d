//! The proxy that runs on this machine, if one does, and the addresses that the file gives it. Pure; [`look`] observes.

pub mod look;

use std::net::SocketAddr;

use super::finding::Finding;
use super::trouble::{Keys, Trouble};
use crate::cluster::state::canonical;
use crate::config::Config;

const KEYS: Keys = Keys {
    server: "this proxy",
    address: "peer.advertiseAddress",
    authority: "peer.caFile",
    name: "peer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "serving.certFile",
};

/// What was seen on this machine.
#[derive(Debug)]
pub struct Seen {
    /// At `admin.bindAddress`.
    pub admin: Admin,
    /// At `serving.bindAddress` and, if it is another, `peer.advertiseAddress`.
    pub places: Vec<Place>,
}

/// What listens at `admin.bindAddress`.
#[derive(Debug)]
pub enum Admin {
    /// Nobody.
    Nobody,
    /// Something else, and how that shows.
    Other(String),
    /// A proxy.
    Running(Running),
}

/// What the running proxy says of itself.
#[derive(Debug)]
pub struct Running {
    /// Its server ID, once it is found.
    pub id: Option<String>,
    /// What it advertises.
    pub endpoint: SocketAddr,
    /// Of the program.
    pub version: String,
    /// What keeps it from being ready.
    pub missing: Vec<String>,
}

/// An address of this proxy.
#[derive(Debug)]
pub struct Place {
    /// The configuration's key.
    pub key: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// What is there.
    pub found: Found,
}

/// What was found at an address that should be this proxy's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nobody.
    Nobody,
    /// Nobody, and it is no address of this machine.
    Foreign,
    /// Somebody who cannot be spoken to.
    Trouble(Trouble),
    /// Something that is no proxy.
    NotAProxy,
    /// A proxy; whether it is the one that runs here, if that could be found out.
    Proxy(Option<bool>),
}

impl Seen {
    /// What the running proxy says of itself, if one runs.
    pub fn running(&self) -> Option<&Running> {
        match &self.admin {
            Admin::Running(running) => Some(running),
            Admin::Nobody | Admin::Other(_) => None,
        }
    }
}

/// What is to be said of it.
pub fn findings(config: &Config, seen: &Seen) -> Vec<Finding> {
    let admin = config.admin.bind_address;
    let about = "proxy here";
    let mut findings = Vec::new();
    match &seen.admin {
        Admin::Nobody => findings.push(Finding::info(
            about,
            format!("none runs: nobody listens at admin.bindAddress {admin}"),
        )),
        Admin::Other(how) => findings.push(Finding::problem(
            format!("admin.bindAddress {admin}"),
            format!("taken by something that is not this program: {how}"),
            "end what listens there, or choose another port",
        )),
        Admin::Running(running) => findings.extend(itself(about, config, running)),
    }
    findings.extend(seen.places.iter().map(|place| at(config, place, seen)));
    findings
}

fn itself(about: &str, config: &Config, running: &Running) -> Vec<Finding> {
    let Running {
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
        findings.push(older(
            about,
            &format!("it advertises {endpoint}, the file says {advertised}"),
        ));
    } else if let Some(configured) = configured.as_ref().filter(|it| Some(*it) != id.as_ref()) {
        findings.push(older(
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

fn older(about: &str, difference: &str) -> Finding {
    Finding::warning(
        about,
        format!("runs with another configuration than this file: {difference}"),
        "restart it, if this file is the one that it starts with",
    )
}

fn at(config: &Config, place: &Place, seen: &Seen) -> Finding {
    let Place {
        key,
        address,
        found,
    } = place;
    let about = format!("{key} {address}");
    let binds = *key == look::BIND;
    let advertised = canonical(config.peer.advertise_address);
    let running = seen.running();
    // The running proxy was told the same.
    let agrees = running.is_some_and(|running| canonical(running.endpoint) == advertised);
    match found {
        Found::Proxy(Some(true)) => Finding::ok(about, "leads to the proxy that runs here"),
        Found::Foreign => Finding::problem(
            about,
            "this machine does not have this address",
            "make it an address of this machine",
        ),
        Found::Nobody if binds && !agrees => Finding::ok(about, "free"),
        Found::Nobody if running.is_none() => {
            Finding::info(about, "nobody listens there, as no proxy runs here")
        }
        Found::Nobody => Finding::problem(
            about,
            "nobody listens there: peers cannot reach this proxy",
            format!("correct {key}, or what leads from there to serving.bindAddress"),
        ),
        Found::Trouble(trouble) => trouble.finding(&about, &KEYS),
        Found::NotAProxy if binds => Finding::problem(
            about,
            "taken by something that is no kube-interop-proxy",
            "end it; a kube-apiserver is to be started with --bind-address=127.0.0.1",
        ),
        Found::NotAProxy => Finding::problem(
            about,
            "leads to something that is no kube-interop-proxy",
            format!("correct {key}"),
        ),
        Found::Proxy(_) if matches!(seen.admin, Admin::Other(_)) => Finding::info(
            about,
            "leads to a proxy; nothing tells whether it is this one",
        ),
        Found::Proxy(None) if running.is_some() => Finding::info(
            about,
            "leads to a proxy; its metrics do not tell whether it is this one",
        ),
        Found::Proxy(_) => Finding::problem(
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

    const EXAMPLE: &str = include_str!("../../../config.example.yaml");

    fn said(admin: Admin, found: Found) -> Vec<String> {
        let config = crate::config::parse(EXAMPLE).unwrap();
        let place = Place {
            key: look::BIND,
            address: config.serving.bind_address,
            found,
        };
        let seen = Seen {
            admin,
            places: vec![place],
        };
        let findings = findings(&config, &seen);
        findings.iter().map(ToString::to_string).collect()
    }

    fn running(endpoint: &str) -> Admin {
        Admin::Running(Running {
            id: Some("a".to_owned()),
            endpoint: endpoint.parse().unwrap(),
            version: "0.1.0".to_owned(),
            missing: Vec::new(),
        })
    }

    #[test]
    fn without_a_proxy_the_port_must_be_free() {
        assert!(said(Admin::Nobody, Found::Nobody)[1].ends_with("10.0.0.11:6443: free"));
        for found in [Found::NotAProxy, Found::Proxy(None), Found::Foreign] {
            let line = &said(Admin::Nobody, found)[1];
            assert!(line.starts_with("problem serving.bindAddress"), "{line}");
        }
    }

    #[test]
    fn a_running_proxy_must_be_the_one_at_its_address() {
        let ours = said(running("10.0.0.11:6443"), Found::Proxy(Some(true)));
        assert!(ours.iter().all(|line| line.starts_with("ok ")), "{ours:?}");
        for found in [Found::Nobody, Found::Proxy(Some(false))] {
            let lines = said(running("10.0.0.11:6443"), found);
            assert!(
                lines[1].starts_with("problem serving.bindAddress"),
                "{lines:?}"
            );
        }
        let lines = said(running("10.0.0.99:6443"), Found::Nobody);
        assert!(
            lines[0].contains("it advertises 10.0.0.99:6443, the file says 10.0.0.11:6443"),
            "{lines:?}"
        );
        assert!(lines[2].starts_with("ok "), "{lines:?}");
    }
}
