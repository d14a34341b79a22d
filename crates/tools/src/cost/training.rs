//! The work that a profile for the compiler is made of: what the tables measure, by the proxy alone, and short requests
//! most of all. An instrumented program writes its profile when it ends. See deploy/release/profile.sh.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use testkit::client::Client;
use testkit::pki::Pki;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::handshakes::{Clients, KINDS};
use super::lab::{AUTHORIZATION, Lab, Plan};
use super::load::Load;
use super::origin::REROUTED;
use super::requests::{CONNECTIONS, Pair, STREAMS};
use super::streams::{Kind, Watches};
use super::watched::Watched;
use super::watches::{EVERY, ON_A_CONNECTION};

/// For each number of streams.
const REQUESTS: usize = 20_000;
const HTTP1: usize = 10_000;
const FORWARDED: usize = 5000;
/// Of each client.
const UPLOADS: usize = 250;
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Of each kind.
const HANDSHAKES: usize = 400;
const LISTS: usize = 16;
const LIST_MIB: usize = 10;
const WATCHES: usize = 2000;
const WATCHING: Duration = Duration::from_secs(10);

pub async fn train(plan: &Plan) {
    requests(plan).await;
    rerouted(plan).await;
    events(plan).await;
}

async fn requests(plan: &Plan) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let proxy = lab.proxy(plan, origin.address()).await;
    let (to, pki) = (proxy.address(), &lab.ground.pki);
    for streams in STREAMS {
        Load::new(to, REQUESTS, CONNECTIONS, streams).run().await;
        let mut http1 = Load::new(to, HTTP1, CONNECTIONS * streams, 1);
        http1.http1 = true;
        http1.run().await;
    }
    uploads(to, pki).await;
    for kind in KINDS {
        Clients::new(to, pki, kind).connect(HANDSHAKES).await;
    }
    let lists = Load::new(to, LISTS, LISTS, 1).path(&origin.list(LIST_MIB));
    lists.run().await;
    proxy.end().await;
}

/// Of small objects, over HTTP/2 and HTTP/1.1, by users with tokens and with certificates.
async fn uploads(to: SocketAddr, pki: &Pki) {
    let token = AUTHORIZATION.trim_start_matches("Bearer ");
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let client = Client::new(to, pki);
        let client = match number % 2 {
            0 => client.token(token),
            _ => client.cert("admin"),
        };
        let client = match number % 4 {
            0 | 1 => client.http2(),
            _ => client.http1(),
        };
        clients.spawn(async move {
            let name = format!("uploaded-{number}");
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "x".repeat(900)},
            });
            let object = object.to_string();
            let created = client.request("POST", CONFIG_MAPS, object.clone()).await;
            assert_eq!(created.code(), 201, "{}", created.text());
            let path = format!("{CONFIG_MAPS}/{name}");
            for _ in 0..UPLOADS {
                let replaced = client.request("PUT", &path, object.clone()).await;
                assert_eq!(replaced.code(), 200, "{}", replaced.text());
            }
        });
    }
    clients.join_all().await;
}

async fn rerouted(plan: &Plan) {
    let pair = Pair::new().await;
    let [first, second] = pair.proxies(plan).await;
    for streams in STREAMS {
        let load = Load::new(first.address(), FORWARDED, CONNECTIONS, streams);
        load.path(REROUTED).run().await;
    }
    first.end().await;
    second.end().await;
}

async fn events(plan: &Plan) {
    let lab = Lab::new().await;
    for every in [None, Some(EVERY)] {
        let server = Watched::start(&lab.ground, lab.double.addr(), every).await;
        let proxy = lab.proxy(plan, server.address()).await;
        let connections = WATCHES.div_ceil(ON_A_CONNECTION);
        let (to, pki, kind) = (proxy.address(), &lab.ground.pki, Kind::default());
        let open = Watches::open(to, pki, WATCHES, connections, kind).await;
        if every.is_some() {
            sleep(WATCHING).await;
        }
        drop(open);
        proxy.end().await;
    }
}
