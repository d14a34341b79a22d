//! Observes the proxy on this machine: its admin port, and what listens at its addresses.
//!
//! Whether what answers at an address is the proxy whose admin port is here shows in that one's own counter of requests
//! that it refused for their form: if it does not count ours, they went elsewhere.

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

use super::{Admin, Found, Place, Running, Seen};
use crate::client::ClientMaker;
use crate::config::Config;
use crate::doctor::ask::{self, PATIENCE};
use crate::doctor::trouble::Trouble;

/// The key of the address that is listened on.
pub const BIND: &str = "serving.bindAddress";
const ADVERTISE: &str = "peer.advertiseAddress";
const LONGEST: usize = 64 << 20;
/// What counts the requests of [`ask::is_proxy`].
const COUNTER: &str = "kube_interop_proxy_refusals_total{reason=\"bad_target\"} ";

/// Looks at all of it; `maker`: as peers see this proxy.
pub async fn look(config: &Config, maker: Option<&Arc<ClientMaker>>) -> Seen {
    let address = config.admin.bind_address;
    let admin = timeout(PATIENCE, admin(address)).await;
    let admin = admin.unwrap_or_else(|_| Admin::Other("no answer in time".to_owned()));
    let counts = matches!(admin, Admin::Running(_)).then_some(address);
    let mut wanted = vec![(BIND, config.serving.bind_address)];
    if config.peer.advertise_address != config.serving.bind_address {
        wanted.push((ADVERTISE, config.peer.advertise_address));
    }
    let mut places = Vec::new();
    for (key, address) in wanted {
        // Port 0 is none that could be asked.
        if let Some(maker) = maker.filter(|_| address.port() != 0) {
            let found = timeout(PATIENCE, find(key, address, maker, counts)).await;
            let found = found.unwrap_or(Found::Trouble(Trouble::Silent));
            places.push(Place {
                key,
                address,
                found,
            });
        }
    }
    Seen { admin, places }
}

async fn find(
    key: &str,
    address: SocketAddr,
    maker: &Arc<ClientMaker>,
    counts: Option<SocketAddr>,
) -> Found {
    // Any free port, for a moment: whether the address is this machine's.
    if key == BIND && TcpListener::bind((address.ip(), 0)).is_err() {
        return Found::Foreign;
    }
    let before = counted(counts).await;
    match ask::is_proxy(maker, address).await {
        Err(Trouble::Refused) => Found::Nobody,
        // What cannot be spoken to with TLS is no proxy.
        Err(Trouble::NotTls) => Found::NotAProxy,
        Err(trouble) => Found::Trouble(trouble),
        Ok(false) => Found::NotAProxy,
        Ok(true) => {
            let after = counted(counts).await;
            Found::Proxy(before.zip(after).map(|(before, after)| after > before))
        }
    }
}

/// How many requests the proxy here has refused for their form.
async fn counted(admin: Option<SocketAddr>) -> Option<f64> {
    let (_, body) = get(admin?, "/metrics").await.ok()?;
    let text = std::str::from_utf8(&body).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(COUNTER));
    line.map_or(Some(0.0), |count| count.trim().parse().ok())
}

#[derive(Deserialize)]
struct Page {
    server: Server,
}

#[derive(Deserialize)]
struct Server {
    id: Option<String>,
    endpoint: SocketAddr,
    version: String,
    missing: Vec<String>,
}

async fn admin(address: SocketAddr) -> Admin {
    match get(address, "/statusz?format=json").await {
        Err(Trouble::Refused) => Admin::Nobody,
        Err(Trouble::Closed) => Admin::Other("it speaks no HTTP".to_owned()),
        Err(trouble) => Admin::Other(trouble.what(&super::KEYS)),
        Ok((status, body)) => match serde_json::from_slice::<Page>(&body) {
            Ok(Page { server }) => Admin::Running(Running {
                id: server.id,
                endpoint: server.endpoint,
                version: server.version,
                missing: server.missing,
            }),
            Err(_) => Admin::Other(format!("/statusz says {status}, and nothing of a proxy")),
        },
    }
}

async fn get(address: SocketAddr, path: &str) -> Result<(http::StatusCode, Bytes), Trouble> {
    let tcp = TcpStream::connect(address)
        .await
        .map_err(|error| Trouble::of(&error))?;
    let broken = |_| Trouble::Closed;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(broken)?;
    // It ends with the sender.
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(ACCEPT, "application/json, text/plain")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Trouble::Other(error.to_string()))?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST)
        .collect()
        .await
        .map_err(|_| Trouble::Closed)?;
    Ok((status, body.to_bytes()))
}
