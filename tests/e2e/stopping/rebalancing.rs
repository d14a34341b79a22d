//! `serving.goawayChance`: after one node's restart HTTP/2 clients spread over all nodes again. And what `together` and
//! `mixed::ends` ask: `--goaway-chance` of the apiservers behind the proxies costs no request.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;

use crate::routing::real_apiservers::LONGER;
use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, Single, patient};
use testkit::double::{Double, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLIENTS: usize = 75;

/// Three proxies behind a balancer, each with an apiserver of its own.
struct Nodes {
    doubles: Vec<Double>,
    proxies: Vec<Proxy>,
    balancer: Balancer,
    ground: Ground,
}

impl Nodes {
    async fn new(chance: &str) -> Self {
        let ground = Ground::new().await;
        let (mut doubles, mut proxies) = (Vec::new(), Vec::new());
        for id in ["a", "b", "c"] {
            let double = ground.double(v1_20()).await;
            let options = patient(ground.proxy(id, double.addr()))
                .set("serving.goawayChance", chance)
                .set("shutdown.delay", "1s")
                .set("shutdown.drain", "1s");
            proxies.push(Proxy::start(options.until(Until::Ready)).await);
            doubles.push(double);
        }
        let servers = proxies.iter().map(|proxy| {
            let client = proxy.client(&ground.pki).http1();
            (proxy.addr(), client)
        });
        let balancer = Balancer::start(servers.collect()).await;
        let nodes = Self {
            doubles,
            proxies,
            balancer,
            ground,
        };
        nodes.until_ready(3).await;
        nodes
    }

    async fn until_ready(&self, count: usize) {
        let what = format!("the balancer knows {count} servers");
        eventually(&what, LONGER, async || self.balancer.ready() == count).await;
    }

    fn clients(&self) -> Vec<Client> {
        let client = Client::new(self.balancer.addr(), &self.ground.pki);
        let client = client.cert("admin").http2().timeout(LONGER);
        (0..CLIENTS).map(|_| client.fresh()).collect()
    }

    /// One request of each client; how many requests each apiserver got.
    async fn round(&self, clients: &[Client]) -> [usize; 3] {
        let before = self.requests();
        join_all(clients.iter().map(served)).await;
        let after = self.requests();
        std::array::from_fn(|index| after[index] - before[index])
    }

    fn requests(&self) -> [usize; 3] {
        std::array::from_fn(|index| self.doubles[index].count(PODS))
    }
}

/// The request succeeds. As clients do, it is tried again if there was no connection, or if that ended before the
/// request was sent: on a busy machine the handshakes of all clients at once may take too long.
async fn served(client: &Client) {
    let answer = eventually("it is sent", LONGER, async || {
        match client.try_get(PODS).await {
            Err(error) if is_unsent(&error) => Err(format!("{error:#}")),
            other => Ok(other),
        }
    })
    .await;
    assert_eq!(answer.expect("an answer").code(), 200);
}

fn is_unsent(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<hyper::Error>() {
        Some(error) => error.is_canceled(),
        // The client names these two steps.
        None => ["connect", "TLS handshake"].contains(&error.to_string().as_str()),
    }
}

#[tokio::test]
async fn clients_spread_over_all_nodes_again_after_one_was_restarted() {
    const ROUNDS: usize = 200;
    let mut nodes = Nodes::new("0.02").await;
    let clients = nodes.clients();
    let first = nodes.round(&clients).await;
    assert!(first.iter().all(|count| *count > CLIENTS / 5), "{first:?}");

    nodes.proxies[1].terminate().await;
    let without = nodes.round(&clients).await;
    assert_eq!(without[1], 0, "{without:?}");
    nodes.proxies[1].start_again().await;
    nodes.proxies[1].wait_ready().await;
    nodes.until_ready(3).await;
    let mut rounds = vec![without];
    while rounds.len() <= ROUNDS {
        let round = nodes.round(&clients).await;
        rounds.push(round);
        // Each of them a third, give or take two standard deviations.
        if round.iter().all(|count| count.abs_diff(CLIENTS / 3) <= 8) {
            break;
        }
    }
    assert!(rounds.len() <= ROUNDS, "{rounds:?}");
}

#[tokio::test]
async fn without_it_clients_stay_where_they_are() {
    let mut nodes = Nodes::new("0").await;
    let clients = nodes.clients();
    nodes.round(&clients).await;
    nodes.proxies[1].terminate().await;
    nodes.round(&clients).await;
    nodes.proxies[1].start_again().await;
    nodes.proxies[1].wait_ready().await;
    nodes.until_ready(3).await;
    for _ in 0..20 {
        assert_eq!(nodes.round(&clients).await[1], 0);
    }
}

/// An HTTP/2 connection whose GOAWAY can be seen.
struct Connection(h2::client::SendRequest<Bytes>);

impl Connection {
    async fn new(client: &Client) -> Self {
        let tls = client.connect_raw(&["h2"]).await.unwrap();
        let (sender, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// The answer, whose body has not arrived yet; `None` after GOAWAY.
    async fn open(&mut self, path: &str) -> Option<h2::RecvStream> {
        let mut sender = self.0.clone().ready().await.ok()?;
        let request = http::Request::get(format!("https://x{path}"));
        let (answer, _) = sender.send_request(request.body(()).unwrap(), true).ok()?;
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        Some(answer.into_body())
    }

    /// Whether there was a GOAWAY within so many requests.
    async fn ends_within(&mut self, requests: usize, path: &str) -> bool {
        for _ in 0..requests {
            if self.open(path).await.is_none() {
                return true;
            }
        }
        false
    }
}

/// By mistake, this holds once in 180,000 times.
const NEVER: usize = 600;
/// And so this.
const SURELY: usize = 600;

#[tokio::test]
async fn only_short_requests_of_clients_over_http2_end_a_connection_and_what_runs_goes_on() {
    let world = Single::with(|options| options.set("serving.goawayChance", "0.02")).await;
    let admin = world.client().cert("admin");
    let peer = world.client().cert("front-proxy-client");
    assert!(
        !Connection::new(&peer)
            .await
            .ends_within(NEVER, "/version")
            .await
    );
    let http1 = admin.http1();
    for _ in 0..NEVER {
        let answer = http1.get("/version").await;
        assert_eq!(answer.header("connection"), "keep-alive");
    }
    let mut connection = Connection::new(&admin).await;
    assert!(
        !connection
            .ends_within(NEVER, &format!("{PODS}?watch=true"))
            .await
    );

    let mut ticks = connection.open("/_double/ticks?ms=10").await.unwrap();
    // All the time: HTTP/2 ends a connection with too many unread pieces.
    let reading = tokio::spawn(async move {
        while let Some(piece) = ticks.data().await {
            let piece = piece.unwrap();
            ticks.flow_control().release_capacity(piece.len()).unwrap();
        }
    });
    assert!(connection.ends_within(SURELY, PODS).await);
    // kube-apiserver closes an idle connection a second after GOAWAY.
    let end = timeout(Duration::from_secs(3), reading).await;
    assert!(end.is_err(), "what runs goes on: {end:?}");
}

/// Reads, and writes of all sizes, by a client of `proxy` at an apiserver that ends one connection in fifty requests.
pub async fn nothing_is_lost(proxy: &Proxy, client: &Client) {
    const WRITERS: usize = 16;
    const EACH: usize = 12;
    let writers = (0..WRITERS).map(async |writer| {
        let client = client.fresh();
        for index in 0..EACH {
            let name = format!("x-{writer}-{index}");
            let data = "d".repeat([10, 1000, 100_000, 200_000, 400_000][index % 5]);
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name}, "data": {"d": data}});
            let made = client
                .request("POST", CONFIG_MAPS, object.to_string())
                .await;
            assert_eq!(made.code(), 201, "{name}: {}", made.text());
            let path = format!("{CONFIG_MAPS}/{name}");
            assert_eq!(client.get(&path).await.code(), 200, "{name}");
            let deleted = client.request("DELETE", &path, "").await;
            assert_eq!(deleted.code(), 200, "{name}: {}", deleted.text());
        }
    });
    join_all(writers).await;
    let refusals = "kube_interop_proxy_refusals_total";
    assert_eq!(proxy.metric(refusals, &[]).await, 0.0);
}
