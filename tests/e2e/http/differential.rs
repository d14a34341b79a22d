//! Sends some thousand generated requests directly and through the proxy: the answers are the same, and the apiserver
//! sees the same requests.
//!
//! The seed is fixed, and printed with each difference; `DIFFERENTIAL_SEED` sets another.

mod compare;
mod generate;

use compare::{differences, echoed_differences};
use generate::{For, Made, Maker};
use testkit::client::{Client, Response};
use testkit::cluster::{Cluster, Ground, LONG, REROUTED};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::kube::KubeApiServer;
use testkit::pki::SERVER_NAME;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;
use testkit::wire::Wire;

const SEED: u64 = 20_260_101;
const WORKERS: u64 = 4;
const ROUNDS: usize = 20;

fn seed() -> u64 {
    std::env::var("DIFFERENTIAL_SEED").map_or(SEED, |seed| seed.parse().expect("a number"))
}

#[derive(Clone, Copy, Debug)]
enum Version {
    Http1,
    Http2,
}

/// A way to a server, with a connection that is opened anew when it was closed.
struct Road {
    client: Client,
    version: Version,
    wire: Option<Wire>,
}

impl Road {
    fn new(client: Client, version: Version) -> Self {
        Self {
            client,
            version,
            wire: None,
        }
    }

    async fn send(&mut self, made: &Made) -> anyhow::Result<Response> {
        let mut wire = match self.wire.take() {
            Some(wire) if wire.is_open() => wire,
            _ => match self.version {
                Version::Http1 => Wire::http1(&self.client).await,
                Version::Http2 => Wire::http2(&self.client).await,
            },
        };
        let answer = wire.send(SERVER_NAME, made.request()).await;
        if answer.is_ok() {
            self.wire = Some(wire);
        }
        answer
    }

    /// To the server itself, which may close a connection that it has just answered on: nobody but the proxy is tested.
    async fn send_directly(&mut self, made: &Made) -> anyhow::Result<Response> {
        match self.send(made).await {
            Err(_) => self.send(made).await,
            answer => answer,
        }
    }
}

/// Sends `count` requests to both, as several clients at once; what differs.
async fn compare_all(
    to: For,
    version: Version,
    count: u64,
    direct: &Client,
    through: &Client,
) -> Vec<String> {
    let workers = (0..WORKERS).map(|worker| {
        let (direct, through) = (direct.clone(), through.clone());
        tokio::spawn(async move {
            let seed = seed();
            let mut maker = Maker::new(seed.wrapping_mul(31).wrapping_add(worker), to);
            let mut direct = Road::new(direct, version);
            let mut through = Road::new(through, version);
            let mut found = Vec::new();
            for number in 0..count / WORKERS {
                let made = maker.next();
                let report = match to {
                    For::Real => real(&made, &mut direct, &mut through).await,
                    For::Echo | For::Peer => echo(made.clone(), &mut direct, &mut through).await,
                };
                if !report.is_empty() {
                    found.push(format!(
                        "seed {seed}, {version:?}, worker {worker}, request {number}: {made:?}\n    {}",
                        report.join("\n    ")
                    ));
                }
            }
            found
        })
    });
    let mut found = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        found.extend(worker.await.expect("a worker"));
    }
    found
}

/// A difference counts only if the server itself says the same before and afterwards: other things happen there too.
async fn real(made: &Made, direct: &mut Road, through: &mut Road) -> Vec<String> {
    let mut before = direct.send_directly(made).await;
    for _ in 0..ROUNDS {
        let answer = through.send(made).await;
        let found = differences(made, &before, &answer);
        if found.is_empty() {
            return found;
        }
        let after = direct.send_directly(made).await;
        if differences(made, &after, &answer).is_empty() {
            return Vec::new();
        }
        if differences(made, &before, &after).is_empty() {
            return found;
        }
        before = after;
    }
    vec![format!(
        "the server itself never said the same twice in {ROUNDS} rounds"
    )]
}

async fn echo(mut made: Made, direct: &mut Road, through: &mut Road) -> Vec<String> {
    made.headers
        .insert("x-double-echo", http::HeaderValue::from_static("please"));
    let (direct, through) = (direct.send_directly(&made).await, through.send(&made).await);
    let mut found = differences(&made, &direct, &through);
    // Each is told what arrived, and the way there is no part of it.
    found.retain(|difference| !difference.starts_with("body"));
    if let (Ok(direct), Ok(through)) = (direct, through)
        && made.method != "HEAD"
    {
        found.extend(echoed_differences(&direct.json(), &through.json()));
    }
    if lists_groups(&made.target) {
        // The proxy reads them, so it asks for the whole document without compression.
        found.retain(|difference| !difference.starts_with("headers"));
    }
    found
}

/// Whether a target may be `/apis` or `/apis/<group>`, however it is written.
fn lists_groups(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    segments.count() <= 2 && path.contains("apis")
}

fn none(found: &[String]) {
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found
            .iter()
            .take(20)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    );
}

pub async fn a_real_apiserver_answers_the_same(server: &KubeApiServer, through: &Client) {
    let sample = r#"{"metadata":{"name":"sample"},"data":{"x":"y"}}"#;
    let configmaps = "/api/v1/namespaces/default/configmaps";
    // The namespace is made a moment after `/readyz` says yes.
    eventually("the sample is created", LONG, async || {
        let created = server.admin().request("POST", configmaps, sample).await;
        created.code() == 201
    })
    .await;
    for version in [Version::Http1, Version::Http2] {
        let found = compare_all(For::Real, version, 600, server.admin(), through).await;
        none(&found);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apiserver_sees_what_it_sees_without_the_proxy() {
    let ground = Ground::new().await;
    for alpn in [vec!["h2", "http/1.1"], vec!["http/1.1"]] {
        let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
        options.alpn = alpn.clone();
        let double = Double::start(options).await;
        let proxy = ground.proxy("a", double.addr()).until(Until::Ready);
        let proxy = Proxy::start(proxy).await;
        let direct = Client::new(double.addr(), &ground.pki).cert("admin");
        let through = proxy.client(&ground.pki).cert("admin");
        for version in [Version::Http1, Version::Http2] {
            if matches!(version, Version::Http2) && alpn.len() == 1 {
                continue;
            }
            let found = compare_all(For::Echo, version, 600, &direct, &through).await;
            none(&found);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peers_apiserver_sees_what_it_sees_without_the_proxies() {
    let cluster = Cluster::new().await;
    let direct = Client::new(cluster.b.addr(), &cluster.ground.pki).cert("admin");
    let through = cluster.client().cert("admin");
    for version in [Version::Http1, Version::Http2] {
        let found = compare_all(For::Peer, version, 300, &direct, &through).await;
        none(&found);
    }
    let all = |count| count >= 600.0;
    cluster.proxy_a.until_metric(REROUTED, &[], all).await;
}
