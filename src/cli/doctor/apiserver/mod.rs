//! Findings about the local kube-apiserver: whether it is one, is ready, and accepts the users that this proxy asserts.
//! Pure; [`probe`] observes.

pub mod authorities;
pub mod probe;

use std::net::SocketAddr;

use http::StatusCode;

use self::authorities::PublishedAuthorities;
use super::connection_failure::{ConfigKeys, ConnectionFailure};
use super::finding::Finding;
use super::http_probe::Readiness;
use crate::config::Config;

pub(super) const KEYS: ConfigKeys = ConfigKeys {
    server: "the kube-apiserver",
    address: "apiServer.address",
    authority: "apiServer.caFile",
    name: "apiServer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "the kube-apiserver's serving certificate (its --tls-cert-file)",
};

/// What answers at `apiServer.address`.
#[derive(Debug)]
pub struct ApiServerObservations {
    /// Whether a proxy listens there.
    pub proxy: Result<bool, ConnectionFailure>,
    pub ready: Readiness,
    /// `gitVersion`.
    pub version: Option<String>,
    /// Response to each discovery path.
    pub discovery: Vec<(&'static str, Result<StatusCode, ConnectionFailure>)>,
    /// Why it does not trust this proxy, and what else differs, in sentences; or why that is unknown.
    pub trust: Result<Trust, String>,
    /// Endpoints of the Service `kubernetes`.
    pub endpoints: Vec<SocketAddr>,
    pub authorities: PublishedAuthorities,
}

/// Sentences about whether it trusts this proxy.
#[derive(Debug, Default)]
pub struct Trust {
    /// Why it does not; empty if it does.
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

/// Subject of the findings.
pub fn about(config: &Config) -> String {
    format!("apiserver {}", config.api_server.address)
}

pub fn findings(
    config: &Config,
    observed: &Result<ApiServerObservations, ConnectionFailure>,
) -> Vec<Finding> {
    let about = about(config);
    let observed = match observed {
        Ok(observed) => observed,
        Err(failure) => return vec![failure.finding(&about, &KEYS)],
    };
    if observed.proxy == Ok(true) {
        // Its other answers are another server's.
        return vec![Finding::problem(
            about,
            "a kube-interop-proxy listens there, no kube-apiserver: requests would go in a circle",
            "make apiServer.address the kube-apiserver's own (--bind-address and --secure-port)",
        )];
    }
    let trust = observed.trust.as_ref();
    let believes = trust.is_ok_and(|trust| trust.problems.is_empty());
    let mut findings = vec![readiness(&about, observed, believes)];
    match trust {
        Ok(trust) => findings.extend(trust_findings(&about, trust)),
        Err(why) => findings.push(Finding::problem(
            &about,
            format!("could not be asked whether it believes this proxy: {why}"),
            "read its log",
        )),
    }
    if believes {
        findings.push(discovery(&about, observed));
    }
    findings.extend(bypasses(config, &about, observed));
    findings
}

fn readiness(about: &str, observed: &ApiServerObservations, believes: bool) -> Finding {
    let Readiness {
        status,
        missing,
        elapsed,
        ..
    } = &observed.ready;
    let version = observed.version.as_deref().unwrap_or("of unknown version");
    // It does not report its state to a client that it does not trust.
    let refused = matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if refused && !believes {
        return Finding::ok(about, format!("answers, {} ms", elapsed.as_millis()));
    }
    if *status == StatusCode::OK {
        return Finding::ok(about, format!("{version}, {} ms", elapsed.as_millis()));
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

fn trust_findings(about: &str, trust: &Trust) -> Vec<Finding> {
    let same = match trust.warnings.is_empty() {
        true => ", and has the same header names",
        false => "",
    };
    let word = format!("takes this proxy's word about users{same}");
    let problems = trust.problems.iter().map(|problem| {
        let (what, advice) = advised(problem);
        Finding::problem(about, what, advice)
    });
    let warnings = trust.warnings.iter().map(|warning| {
        let (what, advice) = advised(warning);
        Finding::warning(about, what, advice)
    });
    let ok = trust.problems.is_empty();
    let ok = ok.then(|| Finding::ok(about, word));
    ok.into_iter().chain(problems).chain(warnings).collect()
}

/// The advice follows the colon of a sentence.
fn advised(sentence: &str) -> (&str, &str) {
    sentence
        .split_once(": ")
        .unwrap_or((sentence, "read its log"))
}

fn discovery(about: &str, observed: &ApiServerObservations) -> Finding {
    let bad: Vec<_> = observed
        .discovery
        .iter()
        .filter(|(_, answer)| *answer != Ok(StatusCode::OK))
        .map(|(path, answer)| match answer {
            Ok(status) => format!("{path}: {status}"),
            Err(failure) => format!("{path}: {}", failure.description(&KEYS)),
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

/// Whether clients can bypass this proxy.
fn bypasses(config: &Config, about: &str, observed: &ApiServerObservations) -> Vec<Finding> {
    let mut findings = Vec::new();
    let address = config.api_server.address;
    if !address.ip().to_canonical().is_loopback() {
        findings.push(Finding::info(
            about,
            "not on a loopback address: whoever can reach it goes past this proxy",
        ));
    }
    let endpoints = &observed.endpoints;
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

    fn observed() -> ApiServerObservations {
        ApiServerObservations {
            proxy: Ok(false),
            ready: Readiness {
                status: StatusCode::OK,
                missing: Vec::new(),
                skew: None,
                elapsed: Duration::from_millis(3),
            },
            version: Some("v1.20.2".to_owned()),
            discovery: vec![("/apis", Ok(StatusCode::OK))],
            trust: Ok(Trust::default()),
            endpoints: Vec::new(),
            authorities: PublishedAuthorities::default(),
        }
    }

    fn said(observed: ApiServerObservations) -> Vec<String> {
        let config = crate::config::parse(include_str!("../../../../config.example.yaml")).unwrap();
        let findings = findings(&config, &Ok(observed));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_proxy_in_its_place_is_all_that_is_said() {
        let lines = said(ApiServerObservations {
            proxy: Ok(true),
            ..observed()
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("problem apiserver 127.0.0.1:6443: a kube-interop-proxy"));
    }

    #[test]
    fn one_cause_is_said_once() {
        let ready = Readiness {
            status: StatusCode::UNAUTHORIZED,
            ..observed().ready
        };
        let trust = Ok(Trust {
            problems: vec!["it answers 401: do something".to_owned()],
            ..Trust::default()
        });
        let lines = said(ApiServerObservations {
            ready,
            trust,
            discovery: vec![("/apis", Ok(StatusCode::UNAUTHORIZED))],
            ..observed()
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
        let ready = Readiness {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            missing: vec!["etcd".to_owned()],
            ..observed().ready
        };
        let line = said(ApiServerObservations {
            ready,
            ..observed()
        })
        .remove(0);
        assert!(
            line.contains("not ready: /readyz says 500 Internal Server Error (etcd)"),
            "{line}"
        );
    }
}
