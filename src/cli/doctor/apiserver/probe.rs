//! Observes the local kube-apiserver as `apiServer.internalUser`; GETs only.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;

use super::authorities::PublishedAuthorities;
use super::{ApiServerObservations, Trust};
use crate::cli::doctor::connection_failure::ConnectionFailure;
use crate::cli::doctor::http_probe::{self, PATIENCE};
use crate::client::Client;
use crate::config::Config;
use crate::local;
use crate::local::requestheader::check::{PATH, check};
use crate::tls::credentials::Current;

const DISCOVERY: [&str; 3] = ["/", "/api", "/apis"];
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

pub async fn probe(
    config: &Config,
    credentials: Current,
) -> Result<ApiServerObservations, ConnectionFailure> {
    let maker = local::maker(config, credentials.clone());
    let maker = Arc::new(maker.map_err(|error| ConnectionFailure::Other(error.to_string()))?);
    let address = config.api_server.address;
    let mut client = maker.client(address);
    let ready = http_probe::readyz(&mut client).await?;
    let (proxy, belief, optional) = tokio::join!(
        http_probe::is_proxy(&maker, address),
        timeout(PATIENCE, check(config, credentials)),
        timeout(PATIENCE, optional(&mut client)),
    );
    let trust = match belief {
        Ok(Ok(report)) => Ok(Trust {
            problems: report.problems.iter().map(ToString::to_string).collect(),
            warnings: report.warnings.iter().map(ToString::to_string).collect(),
        }),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    };
    let optional = optional.unwrap_or_else(|_| OptionalAnswers {
        discovery: vec![(DISCOVERY[0], Err(ConnectionFailure::TimedOut))],
        ..OptionalAnswers::default()
    });
    Ok(ApiServerObservations {
        proxy,
        ready,
        version: optional.version,
        discovery: optional.discovery,
        trust,
        endpoints: optional.endpoints,
        authorities: optional.authorities,
    })
}

#[derive(Default)]
struct OptionalAnswers {
    version: Option<String>,
    discovery: Vec<(&'static str, Result<StatusCode, ConnectionFailure>)>,
    endpoints: Vec<SocketAddr>,
    authorities: PublishedAuthorities,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

async fn optional(client: &mut Client) -> OptionalAnswers {
    let version = body(client, "/version").await;
    let version = version.and_then(|body| serde_json::from_slice::<Version>(&body).ok());
    let mut discovery = Vec::new();
    for path in DISCOVERY {
        let answer = http_probe::get(client, path, &HeaderMap::new()).await;
        discovery.push((path, answer.map(|answer| answer.status)));
    }
    OptionalAnswers {
        version: version.map(|version| version.git_version),
        discovery,
        endpoints: body(client, ENDPOINTS)
            .await
            .map(|body| addresses(&body))
            .unwrap_or_default(),
        authorities: body(client, PATH)
            .await
            .map(|body| PublishedAuthorities::read(&body))
            .unwrap_or_default(),
    }
}

/// The body of a 200.
pub async fn body(client: &mut Client, path: &str) -> Option<bytes::Bytes> {
    let answer = http_probe::get(client, path, &HeaderMap::new())
        .await
        .ok()?;
    (answer.status == StatusCode::OK).then_some(answer.body)
}

#[derive(Deserialize)]
struct Endpoints {
    #[serde(default)]
    subsets: Vec<Subset>,
}

#[derive(Deserialize)]
struct Subset {
    #[serde(default)]
    addresses: Vec<Address>,
    #[serde(default)]
    ports: Vec<Port>,
}

#[derive(Deserialize)]
struct Address {
    ip: IpAddr,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
}

fn addresses(body: &[u8]) -> Vec<SocketAddr> {
    let Ok(endpoints) = serde_json::from_slice::<Endpoints>(body) else {
        return Vec::new();
    };
    let of = |subset: Subset| {
        let ports: Vec<_> = subset.ports.into_iter().map(|it| it.port).collect();
        let addresses = subset.addresses.into_iter();
        addresses.flat_map(move |it| {
            let at = |port: &u16| SocketAddr::new(it.ip, *port);
            ports.iter().map(at).collect::<Vec<_>>()
        })
    };
    endpoints.subsets.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_service_are_read() {
        let body = br#"{"subsets":[{"addresses":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}],"ports":[{"name":"https","port":6443}]}]}"#;
        let addresses: Vec<_> = addresses(body).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1:6443", "10.0.0.2:6443"]);
        assert_eq!(super::addresses(b"{}"), []);
        assert_eq!(super::addresses(b"nothing"), []);
    }
}
