//! Observes the proxy on this machine: its admin port, and what listens at its addresses.
//!
//! To find out whether an address leads to the proxy with this admin port, the probe sends a malformed request and reads
//! that proxy's counter of malformed requests: if the counter did not increase, the request went to another proxy.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{AdminPort, BIND_KEY, Listener, LocalObservations, OwnAddress, RunningProxy};
use crate::cli::doctor::connection_failure::ConnectionFailure;
use crate::cli::doctor::http_probe::{self, PATIENCE};
use crate::client::ClientMaker;
use crate::config::Config;

const ADVERTISE_KEY: &str = "peer.advertiseAddress";
const MAX_BYTES: usize = 64 << 20;
/// Counts the requests of [`http_probe::is_proxy`].
const COUNTER: &str = "kube_interop_proxy_refusals_total{reason=\"bad_target\"} ";

/// `maker`: clients that connect as peers do.
pub async fn probe(config: &Config, maker: Option<&Arc<ClientMaker>>) -> LocalObservations {
    let address = config.admin.bind_address;
    let admin = timeout(PATIENCE, admin(address)).await;
    let admin = admin.unwrap_or_else(|_| AdminPort::Other("no answer in time".to_owned()));
    let counts = matches!(admin, AdminPort::Proxy(_)).then_some(address);
    let mut wanted = vec![(BIND_KEY, config.serving.bind_address)];
    if config.peer.advertise_address != config.serving.bind_address {
        wanted.push((ADVERTISE_KEY, config.peer.advertise_address));
    }
    let mut addresses = Vec::new();
    for (key, address) in wanted {
        // Nothing can connect to port 0.
        if let Some(maker) = maker.filter(|_| address.port() != 0) {
            let listener = timeout(PATIENCE, listener(key, address, maker, counts)).await;
            let listener = listener.unwrap_or(Listener::Unknown(ConnectionFailure::TimedOut));
            addresses.push(OwnAddress {
                key,
                address,
                listener,
            });
        }
    }
    LocalObservations { admin, addresses }
}

async fn listener(
    key: &str,
    address: SocketAddr,
    maker: &Arc<ClientMaker>,
    counts: Option<SocketAddr>,
) -> Listener {
    // Binding a free port fails if the address is not this machine's.
    if key == BIND_KEY && TcpListener::bind((address.ip(), 0)).is_err() {
        return Listener::Foreign;
    }
    let before = refusal_count(counts).await;
    match http_probe::is_proxy(maker, address).await {
        Err(ConnectionFailure::Refused) => Listener::Nothing,
        Err(ConnectionFailure::NotTls) => Listener::NotAProxy,
        Err(failure) => Listener::Unknown(failure),
        Ok(false) => Listener::NotAProxy,
        Ok(true) => {
            let after = refusal_count(counts).await;
            Listener::Proxy(before.zip(after).map(|(before, after)| after > before))
        }
    }
}

/// How many malformed requests the local proxy has refused.
async fn refusal_count(admin: Option<SocketAddr>) -> Option<f64> {
    let (_, body) = get(admin?, "/metrics").await.ok()?;
    let text = std::str::from_utf8(&body).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(COUNTER));
    line.map_or(Some(0.0), |count| count.trim().parse().ok())
}

#[derive(Deserialize)]
struct StatusPage {
    server: StatusServer,
}

#[derive(Deserialize)]
struct StatusServer {
    id: Option<String>,
    endpoint: SocketAddr,
    version: String,
    missing: Vec<String>,
}

async fn admin(address: SocketAddr) -> AdminPort {
    match get(address, "/statusz?format=json").await {
        Err(ConnectionFailure::Refused) => AdminPort::Nothing,
        Err(ConnectionFailure::Closed) => AdminPort::Other("it speaks no HTTP".to_owned()),
        Err(failure) => AdminPort::Other(failure.description(&super::KEYS)),
        Ok((status, body)) => match serde_json::from_slice::<StatusPage>(&body) {
            Ok(StatusPage { server }) => AdminPort::Proxy(RunningProxy {
                id: server.id,
                endpoint: server.endpoint,
                version: server.version,
                missing: server.missing,
            }),
            Err(_) => AdminPort::Other(format!("/statusz says {status}, and nothing of a proxy")),
        },
    }
}

async fn get(
    address: SocketAddr,
    path: &str,
) -> Result<(http::StatusCode, Bytes), ConnectionFailure> {
    let tcp = TcpStream::connect(address)
        .await
        .map_err(|error| ConnectionFailure::from_error(&error))?;
    let broken = |_| ConnectionFailure::Closed;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(broken)?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(ACCEPT, "application/json, text/plain")
        .body(Empty::<Bytes>::new())
        .map_err(|error| ConnectionFailure::Other(error.to_string()))?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BYTES)
        .collect()
        .await
        .map_err(|_| ConnectionFailure::Closed)?;
    Ok((status, body.to_bytes()))
}
