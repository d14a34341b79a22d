//! The kube-apiserver beside this proxy: whether it is one, is ready, and takes our word about users. Pure; [`look`]
//! observes.

pub mod authorities;
pub mod look;

use std::net::SocketAddr;

use http::StatusCode;

use self::authorities::Told;
use super::ask::Ready;
use super::finding::Finding;
use super::trouble::{Keys, Trouble};
use crate::config::Config;

pub(super) const KEYS: Keys = Keys {
    server: "the kube-apiserver",
    address: "apiServer.address",
    authority: "apiServer.caFile",
    name: "apiServer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "the kube-apiserver's serving certificate (its --tls-cert-file)",
};

/// What was seen at `apiServer.address`.
#[derive(Debug)]
pub struct Seen {
    /// A proxy listens there.
    pub proxy: Result<bool, Trouble>,
    /// What `/readyz` said.
    pub ready: Ready,
    /// `gitVersion`.
    pub version: Option<String>,
    /// What each path of discovery was answered with.
    pub discovery: Vec<(&'static str, Result<StatusCode, Trouble>)>,
    /// What keeps it from believing us, in whole sentences; or why that could not be found out.
    pub doubts: Result<Vec<String>, String>,
    /// Where the Service `kubernetes` leads, if anywhere.
    pub endpoints: Vec<SocketAddr>,
    /// Who signs the certificates that it takes.
    pub authorities: Told,
}

/// The name in each line.
pub fn about(config: &Config) -> String {
    format!("apiserver {}", config.api_server.address)
}

/// What is to be said of it.
pub fn findings(config: &Config, seen: &Result<Seen, Trouble>) -> Vec<Finding> {
    let about = about(config);
    let seen = match seen {
        Ok(seen) => seen,
        Err(trouble) => return vec![trouble.finding(&about, &KEYS)],
    };
    if seen.proxy == Ok(true) {
        // Whatever else it said, it said for another.
        return vec![Finding::problem(
            about,
            "a kube-interop-proxy listens there, no kube-apiserver: requests would go in a circle",
            "make apiServer.address the kube-apiserver's own (--bind-address and --secure-port)",
        )];
    }
    let believes = seen.doubts.as_ref().is_ok_and(Vec::is_empty);
    let mut findings = vec![readiness(&about, seen, believes)];
    match &seen.doubts {
        Ok(doubts) if doubts.is_empty() => findings.push(Finding::ok(
            &about,
            "takes this proxy's word about users, and has the same header names",
        )),
        Ok(doubts) => findings.extend(doubts.iter().map(|doubt| doubted(&about, doubt))),
        Err(why) => findings.push(Finding::problem(
            &about,
            format!("could not be asked whether it believes this proxy: {why}"),
            "read its log",
        )),
    }
    if believes {
        findings.push(discovery(&about, seen));
    }
    findings.extend(ways_past(config, &about, seen));
    findings
}

fn readiness(about: &str, seen: &Seen, believes: bool) -> Finding {
    let Ready {
        status,
        missing,
        took,
        ..
    } = &seen.ready;
    let version = seen.version.as_deref().unwrap_or("of unknown version");
    // Whom it does not know it tells nothing.
    let refused = matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if refused && !believes {
        return Finding::ok(about, format!("answers, {} ms", took.as_millis()));
    }
    if *status == StatusCode::OK {
        return Finding::ok(about, format!("{version}, {} ms", took.as_millis()));
    }
    let missing = match missing.as_slice() {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    };
    Finding::problem(
        about,
        format!("{version}, not ready: /readyz says {status}{missing}"),
        "wait for its start, and read its log if that takes long",
    )
}

/// The sentences say what to do behind a colon.
fn doubted(about: &str, doubt: &str) -> Finding {
    match doubt.split_once(": ") {
        Some((what, advice)) => Finding::problem(about, what, advice),
        None => Finding::problem(about, doubt, "read its log"),
    }
}

fn discovery(about: &str, seen: &Seen) -> Finding {
    let bad: Vec<_> = seen
        .discovery
        .iter()
        .filter(|(_, answer)| *answer != Ok(StatusCode::OK))
        .map(|(path, answer)| match answer {
            Ok(status) => format!("{path}: {status}"),
            Err(trouble) => format!("{path}: {}", trouble.what(&KEYS)),
        })
        .collect();
    match bad.as_slice() {
        [] => Finding::ok(about, "its discovery can be read"),
        bad => Finding::problem(
            about,
            format!("its discovery cannot be read: {}", bad.join(", ")),
            "let apiServer.internalUser in group system:masters read it, and read the apiserver's log",
        ),
    }
}

/// Whether clients are led past this proxy.
fn ways_past(config: &Config, about: &str, seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let address = config.api_server.address;
    if !address.ip().to_canonical().is_loopback() {
        findings.push(Finding::info(
            about,
            "not on a loopback address: whoever can reach it goes past this proxy",
        ));
    }
    let endpoints = &seen.endpoints;
    let direct = endpoints.contains(&address);
    if direct && !address.ip().is_loopback() {
        findings.push(Finding::warning(
            about,
            "the Service kubernetes leads in-cluster clients to it, past this proxy",
            "start it with --advertise-address and --secure-port as in peer.advertiseAddress",
        ));
    } else if !endpoints.is_empty() {
        let ours = config.peer.advertise_address;
        let leads_here = endpoints.contains(&ours);
        findings.push(match leads_here {
            true => Finding::ok(
                "service kubernetes",
                format!("leads to {ours} among others"),
            ),
            false => Finding::info(
                "service kubernetes",
                format!("does not lead to {ours}, so in-cluster clients use other servers"),
            ),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen() -> Seen {
        Seen {
            proxy: Ok(false),
            ready: Ready {
                status: StatusCode::OK,
                missing: Vec::new(),
                skew: None,
                took: Duration::from_millis(3),
            },
            version: Some("v1.20.2".to_owned()),
            discovery: vec![("/apis", Ok(StatusCode::OK))],
            doubts: Ok(Vec::new()),
            endpoints: Vec::new(),
            authorities: Told::default(),
        }
    }

    fn said(seen: Seen) -> Vec<String> {
        let config = crate::config::parse(include_str!("../../../config.example.yaml")).unwrap();
        let findings = findings(&config, &Ok(seen));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_proxy_in_its_place_is_all_that_is_said() {
        let lines = said(Seen {
            proxy: Ok(true),
            ..seen()
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("problem apiserver 127.0.0.1:6443: a kube-interop-proxy"));
    }

    #[test]
    fn one_cause_is_said_once() {
        let ready = Ready {
            status: StatusCode::UNAUTHORIZED,
            ..seen().ready
        };
        let doubts = Ok(vec!["it answers 401: do something".to_owned()]);
        let lines = said(Seen {
            ready,
            doubts,
            discovery: vec![("/apis", Ok(StatusCode::UNAUTHORIZED))],
            ..seen()
        });
        let problems: Vec<_> = lines
            .iter()
            .filter(|it| it.starts_with("problem"))
            .collect();
        assert_eq!(
            problems,
            ["problem apiserver 127.0.0.1:6443: it answers 401; do: do something"]
        );
    }

    #[test]
    fn what_is_not_ready_is_named() {
        let ready = Ready {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            missing: vec!["etcd".to_owned()],
            ..seen().ready
        };
        let line = said(Seen { ready, ..seen() }).remove(0);
        assert!(
            line.contains("not ready: /readyz says 500 Internal Server Error (etcd)"),
            "{line}"
        );
    }
}
