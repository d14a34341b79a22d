//! If a server cannot answer, the proxy asks another one: clients do not notice.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;

use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{
    Cluster, Ground, HPAS, HPAS_IN_DEFAULT, LONG, REROUTED, assert_refused, lists, patient,
};
use testkit::double::{Double, DoubleOptions, Fault, Preset, Store, v1_20};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

pub const PODS: &str = "/api/v1/namespaces/default/pods";
const FAILOVERS: &str = "kube_interop_proxy_failovers_total";
const FAILED: &str = "Error while proxying request to destination apiserver";

/// A without the autoscaling group, B and C with it, and a proxy beside each.
pub struct Three<Server = Double> {
    pub servers: [Server; 3],
    pub proxies: [Proxy; 3],
    pub ground: Ground,
}

/// With one store, as if it were one etcd.
impl Three {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    /// `change`: of all proxies' options.
    pub async fn with(change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let three = Self::start(&Store::new(), |preset| preset, change).await;
        three.until_a_knows_both().await;
        three
    }

    /// Each of the apiservers keeps its objects in `store`. Returns before the proxies know each other.
    pub async fn start(
        store: &Arc<Store>,
        preset: impl Fn(Preset) -> Preset,
        change: impl Fn(ProxyOptions) -> ProxyOptions,
    ) -> Self {
        let ground = Ground::new().await;
        let start = async |served: Preset| {
            let options = DoubleOptions::new(ground.pki.dir(), preset(served));
            Double::start(options.store(store)).await
        };
        let servers = [
            start(v1_20().without_group("autoscaling")).await,
            start(v1_20()).await,
            start(v1_20()).await,
        ];
        let addrs = servers.each_ref().map(Double::addr);
        Self::with_proxies(ground, servers, addrs, |options| change(patient(options))).await
    }
}

impl<Server> Three<Server> {
    /// `change`: of all proxies' options.
    pub async fn with_proxies(
        ground: Ground,
        servers: [Server; 3],
        [a, b, c]: [SocketAddr; 3],
        change: impl Fn(ProxyOptions) -> ProxyOptions,
    ) -> Self {
        let proxy = |id, addr| Proxy::start(change(ground.proxy(id, addr)).until(Until::Ready));
        let (a, b, c) = tokio::join!(proxy("a", a), proxy("b", b), proxy("c", c));
        Self {
            servers,
            proxies: [a, b, c],
            ground,
        }
    }

    pub async fn until_a_knows_both(&self) {
        eventually("A's proxy knows both others", LONGER, async || {
            let status = self.proxies[0].statusz().await;
            let mut peers = ["b", "c"].iter();
            peers.all(|peer| lists(&status, peer, "autoscaling"))
        })
        .await;
    }

    /// The administrator at A's proxy; each call has a connection of its own, and with it its own choice of a peer.
    pub fn admin(&self) -> Client {
        self.proxies[0].client(&self.ground.pki).cert("admin")
    }

    /// Clients of A's proxy of which some go to each peer.
    pub fn several(&self) -> Vec<Client> {
        (0..16).map(|_| self.admin()).collect()
    }

    /// Whether A's proxy tries `peer` last.
    pub async fn is_unhealthy(&self, peer: &str) -> bool {
        let status = self.proxies[0].statusz().await;
        let peers = status["peers"].as_array().unwrap();
        peers
            .iter()
            .any(|found| found["id"] == peer && found["unhealthy"] == true)
    }

    pub async fn failovers(&self, reason: &str) -> f64 {
        self.proxies[0]
            .metric(FAILOVERS, &[("reason", reason)])
            .await
    }
}

fn object(name: &str) -> String {
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}})
        .to_string()
}

/// Reads and writes with each of `clients`.
pub async fn all_served(clients: &[Client], what: &str) {
    for (number, client) in clients.iter().enumerate() {
        let read = client.get(HPAS).await;
        assert_eq!(read.code(), 200, "{what}: {}", read.text());
        let name = format!("{what}-{number}");
        let written = client.request("POST", HPAS_IN_DEFAULT, object(&name)).await;
        assert_eq!(written.code(), 201, "{what}: {}", written.text());
        assert_eq!(written.json()["metadata"]["name"], name);
    }
}

#[tokio::test]
async fn a_peers_apiserver_that_dies_is_not_noticed() {
    let mut three = Three::new().await;
    all_served(&three.several(), "before").await;
    three.servers[1].stop().await;
    // Until B's live key says so, B's proxy tells A's that it could not, in a way that lets it ask C; and it is tried
    // last.
    all_served(&three.several(), "after").await;
    assert!(three.failovers("not_executed").await <= 1.0);
    eventually("B is no target any more", LONG, async || {
        !lists(&three.proxies[0].statusz().await, "b", "autoscaling")
    })
    .await;
    all_served(&three.several(), "afterwards").await;
}

#[tokio::test]
async fn a_peers_proxy_that_dies_is_not_noticed_and_is_tried_last_until_it_answers_again() {
    let mut three = Three::new().await;
    three.proxies[1].kill();
    all_served(&three.several(), "while-down").await;
    assert_eq!(
        three.failovers("unsent").await,
        1.0,
        "only the first asks it"
    );
    assert!(three.is_unhealthy("b").await);

    three.proxies[1].start_again().await;
    eventually("B is healthy again", LONG, async || {
        let status = three.proxies[0].statusz().await;
        let peers = status["peers"].as_array().unwrap();
        peers
            .iter()
            .any(|peer| peer["id"] == "b" && peer["unhealthy"] == false)
    })
    .await;
    three.until_a_knows_both().await;
    let before = three.servers[1].count(HPAS);
    let clients = three.several();
    all_served(&clients, "afterwards").await;
    assert!(three.servers[1].count(HPAS) > before, "B is asked again");
    assert!(three.servers[2].count(HPAS) > 0);

    three.proxies[1].kill();
    all_served(&three.several(), "new-connections").await;
    all_served(&clients, "old-connections").await;
    assert!(three.failovers("unsent").await >= 2.0);
    let refused = [("code", "503")];
    assert_eq!(three.proxies[0].metric(REROUTED, &refused).await, 0.0);
}

#[tokio::test]
async fn a_local_apiserver_that_dies_is_not_noticed() {
    let mut three = Three::with(|options| options.set("apiServer.probeInterval", "1h")).await;
    let [old, new] = [three.admin(), three.admin()];
    assert_eq!(old.get(PODS).await.code(), 200);
    three.servers[0].stop().await;
    for client in [new, old] {
        let read = client.get(PODS).await;
        assert_eq!(read.code(), 200, "{}", read.text());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}});
        let written = client.request("POST", PODS, pod.to_string()).await;
        assert_eq!(written.code(), 201, "{}", written.text());
    }
    // It is a rerouted request like any other.
    let labels = [("resource", "pods"), ("code", "200")];
    let twice = |count| count >= 2.0;
    three.proxies[0]
        .until_metric(REROUTED, &labels, twice)
        .await;
    // What no peer is asked for.
    assert_refused(&three.admin().get("/version").await, FAILED);
}

#[tokio::test]
async fn a_client_that_asked_for_readiness_is_not_sent_elsewhere() {
    let mut three = Three::with(|options| options.set("apiServer.probeInterval", "1h")).await;
    three.servers[0].stop().await;
    let asked = three.admin().header("X-Kubernetes-If-Ready", "true");
    let answer = asked.get(PODS).await;
    assert_refused(&answer, "starting and not initialized");
    assert_eq!(answer.header("x-kubernetes-ready"), "false");
}

#[tokio::test]
async fn an_old_server_that_says_no_such_resource_is_followed_by_one_that_knows() {
    // Nobody is to notice before a request does.
    let three = Three::with(|options| options.set("apiServer.discoveryInterval", "1h")).await;
    three.servers[1].remove_group("autoscaling");
    let answers = three.several();
    for client in &answers {
        let answer = client.get(HPAS).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }
    assert!(three.failovers("not_executed").await >= 1.0);
    // It serves everything else.
    assert!(!three.is_unhealthy("b").await);
}

#[tokio::test]
async fn a_false_404_and_a_read_that_broke_off_are_answered_by_another_and_a_write_is_not() {
    let three = Three::new().await;
    a_local_false_404_is_followed_by_a_peers_answer(&three).await;
    // No peer has failed before.
    a_write_whose_exchange_broke_off_is_not_sent_to_anybody_else(&three).await;
    eventually("B's failure is forgotten", LONG, async || {
        !three.is_unhealthy("b").await
    })
    .await;
    a_read_whose_exchange_broke_off_is_answered_by_another(&three).await;
}

async fn a_local_false_404_is_followed_by_a_peers_answer(three: &Three) {
    three.servers[0].remove_resource("", "pods");
    let answer = three.admin().get(PODS).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    assert_eq!(three.failovers("doubtful_not_found").await, 1.0);
}

async fn a_write_whose_exchange_broke_off_is_not_sent_to_anybody_else(three: &Three) {
    for double in &three.servers[1..] {
        double.set_fault(HPAS_IN_DEFAULT, Some(Fault::Reset));
    }
    let answer = three
        .admin()
        .request("POST", HPAS_IN_DEFAULT, object("once"))
        .await;
    assert_eq!(answer.code(), 503);
    assert!(!answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["message"], FAILED);
    let posts = |double: &Double| {
        let requests = double.requests();
        requests
            .iter()
            .filter(|request| request.method == "POST")
            .count()
    };
    assert_eq!(posts(&three.servers[1]) + posts(&three.servers[2]), 1);
}

async fn a_read_whose_exchange_broke_off_is_answered_by_another(three: &Three) {
    three.servers[1].set_fault(HPAS, Some(Fault::Reset));
    for client in three.several() {
        let answer = client.get(HPAS).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }
    assert!(three.servers[1].count(HPAS) >= 1, "B was asked");
}

#[tokio::test]
async fn when_nobody_is_left_there_is_one_answer() {
    let mut three = Three::new().await;
    three.proxies[1].kill();
    three.servers[2].stop().await;
    let mut asked = 0.0;
    for client in three.several() {
        assert_refused(&client.get(HPAS).await, FAILED);
        let written = client.request("POST", HPAS_IN_DEFAULT, object("x")).await;
        assert_refused(&written, FAILED);
        asked += 2.0;
    }
    let labels = [
        ("code", "503"),
        ("group", "autoscaling"),
        ("version", "v1"),
        ("resource", "horizontalpodautoscalers"),
    ];
    let [proxy, ..] = &three.proxies;
    let all = |count| count == asked;
    proxy.until_metric(REROUTED, &labels, all).await;

    let admin = three.admin();
    eventually("it is known that nobody is left", LONG, async || {
        asked += 1.0;
        let answer = admin.get(HPAS).await;
        assert_eq!(answer.code(), 503, "{}", answer.text());
        answer.text().contains("no apiserver that serves")
    })
    .await;
    let all = |count| count == asked;
    proxy.until_metric(REROUTED, &labels, all).await;
    assert_eq!(proxy.metric(REROUTED, &[]).await, asked);
}

#[tokio::test]
async fn bodies_that_were_read_already_are_sent_again_if_they_are_small() {
    // B's proxy takes the body before it finds that its apiserver is gone.
    let mut three = Three::new().await;
    three.servers[1].stop().await;
    let padding = "p".repeat(40 << 10);
    for (number, client) in three.several().iter().enumerate() {
        let name = format!("padded-{number}");
        let body = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name, "annotations": {"padding": padding}}});
        let written = client
            .request("POST", HPAS_IN_DEFAULT, body.to_string())
            .await;
        assert_eq!(written.code(), 201, "{}", written.text());
        let annotations = &written.json()["metadata"]["annotations"];
        assert_eq!(annotations["padding"], padding.as_str());
    }
    // Too large to be kept: if it was read already, it is for the client to send it again. It was not executed.
    for (number, client) in three.several().iter().enumerate() {
        let large = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": format!("large-{number}"), "annotations": {"padding": "p".repeat(1 << 20)}}});
        let written = client
            .request("POST", HPAS_IN_DEFAULT, large.to_string())
            .await;
        if written.code() != 201 {
            assert_refused(&written, FAILED);
        }
    }
}

#[tokio::test]
async fn a_503_of_an_apiserver_passes_and_is_not_repeated() {
    let cluster = Cluster::new().await;
    cluster
        .b
        .set_fault(HPAS_IN_DEFAULT, Some(Fault::Status(503, Some(7))));
    let admin = cluster.client().cert("admin");
    let answer = admin.request("POST", HPAS_IN_DEFAULT, object("x")).await;
    assert_eq!((answer.code(), answer.header("retry-after")), (503, "7"));
    assert_eq!(cluster.b.count(HPAS_IN_DEFAULT), 1);
}
