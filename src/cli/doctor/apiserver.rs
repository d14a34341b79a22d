//! The local kube-apiserver: whether it is one, is ready, and accepts the users that this proxy asserts. It is asked as
//! `apiServer.internalUser`; GETs only.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use http::StatusCode;
use serde_json::Value;
use tokio::time::timeout;

use super::finding::Finding;
use super::probe::{self, ConfigKeys, ConnectionFailure, Maker, Observations, PATIENCE, body};
use super::told;
use crate::client::Client;
use crate::config::Config;
use crate::kube::version::numbers;
use crate::local::requestheader::check::{PATH, check as check_trust};
use crate::local::requestheader::findings::TrustReport;
use crate::tls::files::FileSnapshot;
use crate::x509::pem;

const KEYS: ConfigKeys = ConfigKeys {
    server: "the kube-apiserver",
    address: "apiServer.address",
    authority: "apiServer.caFile",
    name: "apiServer.serverName",
    certificate: "apiServer.proxyClientCertFile",
    serving: "the kube-apiserver's serving certificate (its --tls-cert-file)",
};
const PEERS_CA: &str = "serving.requestHeaderClientCAFile";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

/// What it says besides; null what it does not: its version, the Endpoints of the Service `kubernetes`, and ConfigMap
/// `extension-apiserver-authentication`.
type Documents = [Value; 3];

/// Whether it trusts this proxy, and what else differs; or why that is unknown.
type Trust = Result<TrustReport, String>;
type Observed = Result<Observations<(Trust, Documents)>, ConnectionFailure>;

/// Subject of the findings.
pub fn about(config: &Config) -> String {
    format!("apiserver {}", config.api_server.address)
}

pub async fn check(
    config: &Config,
    maker: &anyhow::Result<Maker>,
    reading: &FileSnapshot<'_>,
) -> Vec<Finding> {
    let about = about(config);
    let maker = match maker {
        Ok(maker) => maker,
        Err(why) => return vec![told::skipped(about, why)],
    };
    let address = config.api_server.address;
    let asking = async {
        let trust = timeout(PATIENCE, check_trust(config, maker.credentials.clone()));
        let mut client = maker.client(address);
        let (trust, documents) = tokio::join!(trust, timeout(PATIENCE, documents(&mut client)));
        let trust = match trust {
            Ok(trust) => trust.map_err(|error| error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        (trust, documents.unwrap_or_default())
    };
    let observed = probe::observe(&about, maker, address, asking);
    let observed = probe::within(super::PATIENCE, observed).await;
    findings(config, reading, observed)
}

async fn documents(client: &mut Client) -> Documents {
    let mut documents = Documents::default();
    for (document, path) in documents.iter_mut().zip(["/version", ENDPOINTS, PATH]) {
        let body = body(client, path).await.unwrap_or_default();
        *document = serde_json::from_slice(&body).unwrap_or_default();
    }
    documents
}

fn findings(config: &Config, reading: &FileSnapshot<'_>, observed: Observed) -> Vec<Finding> {
    let about = about(config);
    let observed = match observed {
        // Its other answers are another server's.
        Ok(observed) if observed.is_proxy => return vec![told::circle(about)],
        Ok(observed) => observed,
        Err(failure) => return vec![failure.finding(&about, &KEYS)],
    };
    let (trust, [version, endpoints, authentication]) = observed.asked;
    let accepts = (trust.as_ref()).is_ok_and(|trust| trust.problems.is_empty());
    let version = version["gitVersion"].as_str();
    let version = version.unwrap_or("of unknown version");
    let status = match observed.missing.as_str() {
        "" => observed.status.to_string(),
        missing => format!("{} ({missing})", observed.status),
    };
    let mut findings = Vec::from_iter(match observed.status {
        StatusCode::OK => Some(told::ready(&about, version)),
        // It does not report its state to a client that it does not trust.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !accepts => None,
        _ => Some(told::not_ready(&about, version, status)),
    });
    findings.extend(is_too_old(version).then(|| told::too_old(&about, version)));
    match trust {
        Ok(trust) => findings.extend(trust_findings(&about, &trust)),
        Err(why) => findings.push(told::acceptance_unknown(&about, why)),
    }
    // Before the proxy is installed it has the address itself.
    let leaves_it = config.api_server.address != config.peer.advertise_address;
    if leaves_it && lead_to(&endpoints, config.api_server.address) {
        findings.push(told::bypassed(&about));
    }
    findings.extend(authorities(config, reading, &authentication["data"]));
    findings.extend(observed.clock);
    findings
}

/// Before v1.20. What has another form is not judged.
fn is_too_old(version: &str) -> bool {
    matches!(numbers(version), [1, minor, _] if minor < 20)
}

/// The advice follows the colon of a sentence.
fn trust_findings(about: &str, trust: &TrustReport) -> Vec<Finding> {
    if trust.problems.is_empty() && trust.warnings.is_empty() {
        return vec![told::accepts(about)];
    }
    let parts = |sentence: &dyn Display| {
        let sentence = sentence.to_string();
        let parts = sentence
            .split_once(": ")
            .unwrap_or((&sentence, "read its log"));
        (parts.0.to_owned(), parts.1.to_owned())
    };
    let problems = trust.problems.iter().map(|it| parts(it));
    let problems = problems.map(|(what, advice)| told::rejects(about, what, advice));
    let warnings = trust.warnings.iter().map(|it| parts(it));
    let warnings = warnings.map(|(what, advice)| told::differs(about, what, advice));
    problems.chain(warnings).collect()
}

/// Whether Endpoints lead to an address, past this proxy.
fn lead_to(endpoints: &Value, address: SocketAddr) -> bool {
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let is_ip = |it: &Value| it["ip"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
    list(endpoints, "subsets").iter().any(|subset| {
        let mut addresses = list(subset, "addresses").into_iter();
        let mut ports = list(subset, "ports").into_iter();
        addresses.any(|it| is_ip(&it) == Some(address.ip()))
            && ports.any(|it| it["port"] == address.port())
    })
}

/// Compares the proxy's client CAs with those that the apiserver publishes. It also publishes CAs from earlier starts, so a
/// difference means little. Without any common CA, one of the two rejects every client.
fn authorities(config: &Config, reading: &FileSnapshot<'_>, published: &Value) -> Vec<Finding> {
    let serving = &config.serving;
    let users = ("client-ca-file", &serving.client_ca_file);
    let proxies = &serving.request_header_client_ca_file;
    let proxies = ("requestheader-client-ca-file", proxies);
    let told = [(users, "serving.clientCAFile"), (proxies, PEERS_CA)].map(|((flag, file), key)| {
        let theirs = published[flag].as_str().unwrap_or_default();
        let theirs = pem::client_roots(&pem::parse_certs(theirs.as_bytes()).ok()?).ok()?;
        let ours = reading.client_roots(file).ok()?;
        (!ours.shares_authority(&theirs)).then(|| told::other_authorities(about(config), flag, key))
    });
    told.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::local::requestheader::findings::UserRecognition;

    #[test]
    fn one_cause_is_said_once() {
        let config = crate::config::parse(include_str!("../../../config.example.yaml")).unwrap();
        let lets_in = UserRecognition::Unnamed.problem(&config.serving.request_headers);
        let trust = TrustReport::problem(lets_in);
        let observed = Observations {
            is_proxy: false,
            status: StatusCode::UNAUTHORIZED,
            missing: String::new(),
            clock: None,
            asked: (Ok(trust), Documents::default()),
        };
        let findings = findings(&config, &FileSnapshot::read(&[]), Ok(observed));
        let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "problem KIP-054 apiserver 127.0.0.1:6443: the apiserver lets everybody in, and knows \
                 apiServer.proxyClientCertFile as a user's; do: sign it by another CA than --client-ca-file; see docs/findings.md#kip-054"
            ]
        );
    }

    #[test]
    fn versions_before_1_20_are_too_old() {
        for (version, expected) in [
            ("v1.19.16", true),
            ("v1.9.0+x", true),
            ("v1.20.2", false),
            ("v1.36.0-alpha.1", false),
            ("of unknown version", false),
            ("v2.0.0", false),
        ] {
            assert_eq!(is_too_old(version), expected, "{version}");
        }
    }

    #[test]
    fn addresses_of_a_service_are_read() {
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 6443}]},
            {"addresses": [{"ip": "::1"}], "ports": [{"port": 1}]},
        ]});
        let leads = |to: &str| lead_to(&endpoints, to.parse().unwrap());
        assert!(leads("10.0.0.2:6443") && leads("[::1]:1"));
        assert!(!leads("10.0.0.3:6443") && !leads("10.0.0.1:1"));
        assert!(!lead_to(&Value::Null, "10.0.0.1:1".parse().unwrap()));
    }
}
