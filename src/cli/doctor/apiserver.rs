//! The local kube-apiserver: whether it is one, is ready, and accepts the users that this proxy asserts. It is asked as
//! `apiServer.internalUser`; GETs only.

use std::net::{IpAddr, SocketAddr};

use http::StatusCode;
use serde_json::Value;
use tokio::time::timeout;

use super::clock::Skew;
use super::connection_failure::{self, ConfigKeys, ConnectionFailure};
use super::finding::{Finding, Level};
use super::http_probe::{self, Observations, PATIENCE, Readiness, body};
use super::{Clients, told};
use crate::client::Client;
use crate::config::Config;
use crate::local::requestheader::check::{PATH, check as check_trust};
use crate::local::requestheader::findings::TrustReport;
use crate::tls::files::FileSnapshot;
use crate::x509::pem::{self, have_common_authority};

const KEYS: ConfigKeys = ConfigKeys {
    server: "the kube-apiserver",
    address: "apiServer.address",
    authority: "apiServer.caFile",
    name: "apiServer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "the kube-apiserver's serving certificate (its --tls-cert-file)",
};

const TOO_SLOW: &str = "no answer in time";
const DISCOVERY: [&str; 3] = ["/", "/api", "/apis"];
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

#[derive(Debug, Default)]
pub struct Documents {
    /// `gitVersion`.
    pub version: Option<String>,
    /// Discovery paths that cannot be read, and why.
    pub unreadable: Vec<String>,
    /// Endpoints of the Service `kubernetes`.
    pub endpoints: Vec<SocketAddr>,
    /// CAs in PEM, as ConfigMap `extension-apiserver-authentication` has them.
    pub authorities: Value,
}

/// Whether it trusts this proxy, and what else differs; or why that is unknown.
type Trust = Result<TrustReport, String>;
type Observed = Result<Observations<(Trust, Documents)>, ConnectionFailure>;

/// Subject of the findings.
pub fn about(config: &Config) -> String {
    format!("apiserver {}", config.api_server.address)
}

/// Returns the clock difference too.
pub async fn check(
    config: &Config,
    clients: &anyhow::Result<Clients>,
    reading: &FileSnapshot<'_>,
) -> (Vec<Finding>, Option<(String, Skew)>) {
    let about = about(config);
    let clients = match clients {
        Ok(clients) => clients,
        Err(why) => return (vec![told::skipped(about, why)], None),
    };
    let asking = ask(config, clients);
    let observed = http_probe::observe(&clients.apiserver, config.api_server.address, asking);
    let observed = connection_failure::within(super::PATIENCE, observed).await;
    let mut findings = findings(config, &observed);
    let Ok(observed) = observed else {
        return (findings, None);
    };
    let (_, documents) = &observed.asked;
    findings.extend(authorities(&about, config, reading, &documents.authorities));
    (findings, observed.ready.skew.map(|skew| (about, skew)))
}

async fn ask(config: &Config, clients: &Clients) -> (Trust, Documents) {
    let mut client = clients.apiserver.client(config.api_server.address);
    let trust = timeout(PATIENCE, check_trust(config, clients.credentials.clone()));
    let (trust, documents) = tokio::join!(trust, timeout(PATIENCE, documents(&mut client)));
    let trust = match trust {
        Ok(trust) => trust.map_err(|error| error.to_string()),
        Err(_) => Err(TOO_SLOW.to_owned()),
    };
    let documents = documents.unwrap_or_else(|_| Documents {
        unreadable: vec![TOO_SLOW.to_owned()],
        ..Documents::default()
    });
    (trust, documents)
}

async fn documents(client: &mut Client) -> Documents {
    let mut unreadable = Vec::new();
    for path in DISCOVERY {
        let why = match client.get(path, &[]).await {
            Ok(answer) if answer.status == StatusCode::OK => continue,
            Ok(answer) => answer.status.to_string(),
            Err(error) => ConnectionFailure::from(error).description(&KEYS),
        };
        unreadable.push(format!("{path}: {why}"));
    }
    let version = json(client, "/version").await;
    Documents {
        version: version["gitVersion"].as_str().map(str::to_owned),
        unreadable,
        endpoints: addresses(&json(client, ENDPOINTS).await),
        // Not taken out of it: that would panic on a document of another kind.
        authorities: json(client, PATH).await["data"].clone(),
    }
}

/// Null without a document.
async fn json(client: &mut Client, path: &str) -> Value {
    let body = body(client, path).await.unwrap_or_default();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// Of Endpoints.
fn addresses(endpoints: &Value) -> Vec<SocketAddr> {
    let items = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for subset in items(endpoints, "subsets") {
        for address in items(&subset, "addresses") {
            let ip: Option<IpAddr> = address["ip"].as_str().and_then(|ip| ip.parse().ok());
            for port in items(&subset, "ports") {
                let port = port["port"].as_u64().and_then(|it| u16::try_from(it).ok());
                found.extend(ip.zip(port).map(SocketAddr::from));
            }
        }
    }
    found
}

pub fn findings(config: &Config, observed: &Observed) -> Vec<Finding> {
    let about = about(config);
    let observed = match observed {
        Ok(observed) => observed,
        Err(failure) => return vec![failure.finding(&about, &KEYS)],
    };
    if observed.proxy == Ok(true) {
        // Its other answers are another server's.
        return vec![told::circle(about)];
    }
    let (trust, documents) = &observed.asked;
    let believes = (trust.as_ref()).is_ok_and(|trust| trust.problems.is_empty());
    let mut findings = vec![readiness(&about, &observed.ready, documents, believes)];
    match trust {
        Ok(trust) => findings.extend(trust_findings(&about, trust)),
        Err(why) => findings.push(told::belief_unknown(&about, why)),
    }
    let unreadable = documents.unreadable.join(", ");
    if believes && !unreadable.is_empty() {
        findings.push(told::no_discovery(&about, unreadable));
    }
    findings.extend(bypass(config, &about, &documents.endpoints));
    findings
}

fn readiness(about: &str, ready: &Readiness, documents: &Documents, believes: bool) -> Finding {
    let took = ready.elapsed.as_millis();
    let version = documents.version.as_deref();
    let version = version.unwrap_or("of unknown version");
    let missing = ready.missing.join(", ");
    match ready.status {
        StatusCode::OK => told::ready(about, version, took),
        // It does not report its state to a client that it does not trust.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !believes => {
            told::ready(about, "answers", took)
        }
        status if missing.is_empty() => told::not_ready(about, version, status),
        status => told::not_ready(about, version, format!("{status} ({missing})")),
    }
}

/// The advice follows the colon of a sentence.
fn trust_findings(about: &str, trust: &TrustReport) -> Vec<Finding> {
    let same = match trust.warnings.is_empty() {
        true => ", and has the same header names",
        false => "",
    };
    let believes = trust.problems.is_empty();
    let ok = believes.then(|| told::believes(about, same));
    let problems = trust.problems.iter().map(ToString::to_string);
    let problems = problems.map(|sentence| (Level::Problem, sentence));
    let warnings = trust.warnings.iter().map(ToString::to_string);
    let warnings = warnings.map(|sentence| (Level::Warning, sentence));
    let differences = problems.chain(warnings).map(|(level, sentence)| {
        let parts = sentence.split_once(": ");
        let (what, advice) = parts.unwrap_or((&sentence, "read its log"));
        Finding::new(level, about, what).advised(advice)
    });
    ok.into_iter().chain(differences).collect()
}

/// Whether clients can bypass this proxy.
fn bypass(config: &Config, about: &str, endpoints: &[SocketAddr]) -> Vec<Finding> {
    let (address, ours) = (config.api_server.address, config.peer.advertise_address);
    if endpoints.contains(&address) {
        return vec![told::bypassed(about)];
    }
    let is_reachable = !address.ip().to_canonical().is_loopback();
    let elsewhere = !endpoints.is_empty() && !endpoints.contains(&ours);
    let findings = [
        is_reachable.then(|| told::reachable(about)),
        elsewhere.then(|| told::not_in_service("service kubernetes", ours)),
    ];
    findings.into_iter().flatten().collect()
}

/// Compares the proxy's client CAs with those that the apiserver publishes. It also publishes CAs from earlier starts, so a
/// difference means little. Without any common CA, one of the two rejects every client.
fn authorities(
    about: &str,
    config: &Config,
    reading: &FileSnapshot<'_>,
    published: &Value,
) -> Vec<Finding> {
    let serving = &config.serving;
    let lists = [
        (
            "serving.clientCAFile",
            &serving.client_ca_file,
            "client-ca-file",
            "users' certificates",
        ),
        (
            "serving.requestHeaderClientCAFile",
            &serving.request_header_client_ca_file,
            "requestheader-client-ca-file",
            "certificates of proxies",
        ),
    ];
    let differs = lists.into_iter().filter(|(_, file, field, _)| {
        let theirs = published[*field].as_str().unwrap_or_default();
        let theirs = pem::parse_certs(theirs.as_bytes()).ok();
        let both = reading.client_authorities(file).ok().zip(theirs);
        both.is_some_and(|(ours, theirs)| !have_common_authority(&ours, &theirs))
    });
    let told =
        differs.map(|(key, _, flag, whose)| told::other_authorities(about, whose, flag, key));
    told.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::local::requestheader::findings::TrustProblem;

    fn observed() -> Observations<(Trust, Documents)> {
        Observations {
            proxy: Ok(false),
            ready: Readiness {
                status: StatusCode::OK,
                missing: Vec::new(),
                skew: None,
                elapsed: Duration::from_millis(3),
            },
            asked: (
                Ok(TrustReport::default()),
                Documents {
                    version: Some("v1.20.2".to_owned()),
                    ..Documents::default()
                },
            ),
        }
    }

    fn said(observed: Observations<(Trust, Documents)>) -> Vec<String> {
        let config = crate::config::parse(include_str!("../../../config.example.yaml")).unwrap();
        let findings = findings(&config, &Ok(observed));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_proxy_in_its_place_is_all_that_is_said() {
        let lines = said(Observations {
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
        let trust = Ok(TrustProblem::UserAnyway.into());
        let documents = Documents {
            unreadable: vec!["/apis: 401 Unauthorized".to_owned()],
            ..Documents::default()
        };
        let lines = said(Observations {
            ready,
            asked: (trust, documents),
            ..observed()
        });
        let problems: Vec<_> = lines
            .iter()
            .filter(|it| it.starts_with("problem"))
            .collect();
        assert_eq!(
            problems,
            [
                "problem apiserver 127.0.0.1:6443: the apiserver lets everybody in, and knows \
                 apiServer.proxyClientCertFile as a user's; do: sign it by another CA than --client-ca-file"
            ]
        );
    }

    #[test]
    fn what_is_not_ready_is_named() {
        let ready = Readiness {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            missing: vec!["etcd".to_owned()],
            ..observed().ready
        };
        let line = said(Observations {
            ready,
            ..observed()
        })
        .remove(0);
        assert!(
            line.contains("not ready: /readyz says 500 Internal Server Error (etcd)"),
            "{line}"
        );
    }

    #[test]
    fn addresses_of_a_service_are_read() {
        let body = br#"{"subsets":[{"addresses":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}],"ports":[{"name":"https","port":6443}]}]}"#;
        let addresses = |body: &[u8]| addresses(&serde_json::from_slice(body).unwrap_or_default());
        let two: Vec<_> = addresses(body).iter().map(ToString::to_string).collect();
        assert_eq!(two, ["10.0.0.1:6443", "10.0.0.2:6443"]);
        assert_eq!(addresses(b"{}"), []);
        assert_eq!(addresses(b"nothing"), []);
    }
}
