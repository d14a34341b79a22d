//! An apiserver that is shutting down rejects requests with 429 (`--shutdown-send-retry-after`): the proxy asks other
//! servers, and clients do not notice. Other 429s are passed on.

use serde_json::json;

use crate::failover::peers::{PODS, Three, all_served};
use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, HPAS_IN_DEFAULT, LONG, Single, lists};
use testkit::double::{Double, DoubleOptions, Fault, Phase, ScriptedAnswer, Store, v1_36};
use testkit::proxy::{Proxy, Until};
use testkit::streaming::Response;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

const WORDS: &str = "The apiserver is shutting down, please try again later.\n";
const LEVEL: &str = "X-Kubernetes-PF-PriorityLevel-UID";
const SHUTTING_DOWN: &str =
    "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";

/// Of which nobody finds out but by an answer.
async fn unnoticed() -> Three {
    Three::with(|options| options.set("apiServer.probeInterval", "1h")).await
}

#[track_caller]
fn assert_turned_away(answer: &Response) {
    assert_eq!(answer.code(), 429, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), "5");
    assert_eq!(answer.text(), WORDS);
}

fn pod(padding: usize) -> String {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "x-", "annotations": {"padding": "p".repeat(padding)}}})
    .to_string()
}

/// Reads and writes.
async fn pods_are_served(client: &Client, what: &str) {
    let read = client.get(PODS).await;
    assert_eq!(read.code(), 200, "{what}: {}", read.text());
    for padding in [0, 40 << 10] {
        let written = client.request("POST", PODS, pod(padding)).await;
        assert_eq!(written.code(), 201, "{what}: {}", written.text());
    }
}

#[tokio::test]
async fn what_the_local_apiserver_turns_away_is_served_by_another() {
    let three = unnoticed().await;
    let certificate = three.admin();
    let token = three.proxies[0].client(&three.ground.pki);
    let token = token.token("tok-admin");
    for client in [&certificate, &token] {
        pods_are_served(&client.http2(), "before").await;
    }
    three.servers[0].take_requests();
    three.servers[0].set_phase(Phase::Terminating);
    for (what, client) in [("certificate", &certificate), ("token", &token)] {
        pods_are_served(&client.http2(), what).await;
        pods_are_served(&client.http1(), what).await;
    }
    // It was asked once, and is the last one to be asked since.
    assert_eq!(three.servers[0].count(PODS), 1);
    assert_eq!(three.failovers("terminating").await, 1.0);
}

#[tokio::test]
async fn a_write_that_is_turned_away_first_is_served_by_another() {
    let three = unnoticed().await;
    three.servers[0].set_phase(Phase::Terminating);
    let written = three.admin().request("POST", PODS, pod(40 << 10)).await;
    assert_eq!(written.code(), 201, "{}", written.text());
    assert_eq!(three.failovers("terminating").await, 1.0);
}

#[tokio::test]
async fn watches_streams_and_discovery_are_served_by_another() {
    let three = unnoticed().await;
    three.servers[0].set_phase(Phase::Terminating);
    let admin = three.admin();
    let mut watch = admin.open(&format!("{PODS}?watch=true")).await;
    assert_eq!(watch.status, 200);
    assert_eq!(admin.request("POST", PODS, pod(0)).await.code(), 201);
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["type"], "ADDED");
    for path in ["/apis", "/api/v1", "/apis/apps/v1", "/apis/autoscaling/v1"] {
        let answer = admin.get(path).await;
        assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
    }
    let exec = "GET /api/v1/namespaces/default/pods/x/exec HTTP/1.1\r\nHost: x\r\n\
        Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let mut stream = Upgraded::open(&admin, exec, b"said").await.unwrap();
    stream.expect(b"said").await.unwrap();
}

#[tokio::test]
async fn a_first_upgrade_or_document_that_is_turned_away_is_served_by_another() {
    let three = unnoticed().await;
    three.servers[0].set_phase(Phase::Terminating);
    let exec = "POST /api/v1/namespaces/default/pods/x/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\
        Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let mut stream = Upgraded::open(&three.admin(), exec, b"said").await.unwrap();
    stream.expect(b"said").await.unwrap();

    let three = unnoticed().await;
    three.servers[0].set_phase(Phase::Terminating);
    let answer = three.admin().get("/apis").await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    assert!(answer.text().contains("autoscaling"), "{}", answer.text());
}

#[tokio::test]
async fn what_nobody_else_can_serve_is_told_in_the_apiservers_words() {
    let single = Single::with(|options| options.set("apiServer.probeInterval", "1h")).await;
    single.double.set_phase(Phase::Terminating);
    for admin in single.admins() {
        assert_turned_away(&admin.get(PODS).await);
        assert_turned_away(&admin.request("POST", PODS, pod(0)).await);
        assert_turned_away(&admin.request("POST", PODS, pod(1 << 20)).await);
        assert_turned_away(&admin.get("/version").await);
        assert_eq!(admin.request("HEAD", PODS, "").await.code(), 429);
        assert_eq!(admin.get("/healthz").await.code(), 200);
    }
}

#[tokio::test]
async fn what_peers_cannot_serve_either_is_told_in_the_apiservers_words() {
    let mut cluster = Cluster::new().await;
    cluster.proxy_b.kill();
    cluster.a.set_phase(Phase::Terminating);
    let admin = cluster.client().cert("admin");
    for _ in 0..2 {
        assert_turned_away(&admin.get(PODS).await);
        assert_turned_away(&admin.request("POST", PODS, pod(0)).await);
    }
}

#[tokio::test]
async fn what_a_peers_apiserver_turns_away_is_served_by_another_peer() {
    let three = unnoticed().await;
    three.servers[1].set_phase(Phase::Terminating);
    all_served(&three.several(), "terminating").await;
    assert!(three.failovers("not_executed").await <= 1.0);
    eventually("B is no target any more", LONG, async || {
        !lists(&three.proxies[0].statusz().await, "b", "autoscaling")
    })
    .await;
    // B's own clients are served by A and C.
    let admin = three.proxies[1].client(&three.ground.pki).cert("admin");
    pods_are_served(&admin, "at B").await;
    all_served(&three.several(), "afterwards").await;
}

#[tokio::test]
async fn a_peer_that_nobody_can_replace_is_a_503_to_be_repeated() {
    let cluster = Cluster::new().await;
    cluster.b.set_phase(Phase::Terminating);
    let admin = cluster.client().cert("admin");
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "x"}});
    let answer = admin
        .request("POST", HPAS_IN_DEFAULT, object.to_string())
        .await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert!(answer.headers.contains_key("retry-after"));
    assert!(
        !answer
            .headers
            .contains_key("x-kube-interop-proxy-not-executed")
    );
}

#[tokio::test]
async fn an_apiserver_that_came_back_is_asked_again() {
    let mut three = Three::with(|options| options).await;
    three.servers[0].set_phase(Phase::Terminating);
    pods_are_served(&three.admin(), "terminating").await;
    three.servers[0].restart().await;
    three.servers[0].set_ready(true);
    three.servers[0].take_requests();
    let admin = three.admin();
    eventually("A serves again", LONG, async || {
        assert_eq!(admin.get(PODS).await.code(), 200);
        three.servers[0].count(PODS) > 0
    })
    .await;
    assert_eq!(
        three.proxies[0].statusz().await["server"]["initialized"],
        true
    );
}

/// An answer of priority and fairness, of a quota or an eviction, and one that another server behind it gave.
fn answers() -> [(&'static str, Fault); 3] {
    let scripted = |scripted: ScriptedAnswer| Fault::Answer(Box::new(scripted));
    let text = || ScriptedAnswer::new(429).header("Content-Type", "text/plain; charset=utf-8");
    let full = text().header("Retry-After", "1").header(LEVEL, "x");
    let behind = text().header("Retry-After", "5").header(LEVEL, "x");
    [
        (
            "full",
            scripted(full.body("Too many requests, please try again later.\n")),
        ),
        ("behind", scripted(behind.body(WORDS))),
        ("eviction", Fault::Status(429, Some(10))),
    ]
}

async fn passes_as_it_is(cluster: &Cluster, what: &str) {
    let admin = cluster.client().cert("admin");
    let [before_a, before_b] = [&cluster.a, &cluster.b].map(|double| double.count(PODS));
    let read = admin.get(PODS).await;
    let written = admin.request("POST", PODS, pod(0)).await;
    for answer in [read, written] {
        assert_eq!(answer.code(), 429, "{what}: {}", answer.text());
        assert!(answer.headers.contains_key("retry-after"), "{what}");
    }
    assert_eq!(cluster.a.count(PODS) - before_a, 2, "{what}");
    assert_eq!(cluster.b.count(PODS), before_b, "{what}");
}

#[tokio::test]
async fn other_429s_pass_whether_it_is_shutting_down_or_not() {
    let cluster = Cluster::new().await;
    for (what, fault) in answers() {
        cluster.a.set_fault(PODS, Some(fault));
        passes_as_it_is(&cluster, what).await;
    }
    let readyz = ScriptedAnswer::new(500).header("Content-Type", "text/plain");
    let readyz = Fault::Answer(Box::new(readyz.body(SHUTTING_DOWN)));
    cluster.a.set_fault("/readyz", Some(readyz));
    eventually("A is seen not to be ready", LONG, async || {
        !cluster.proxy_a.is_ready().await
    })
    .await;
    for (what, fault) in answers() {
        cluster.a.set_fault(PODS, Some(fault));
        passes_as_it_is(&cluster, what).await;
    }
}

#[tokio::test]
async fn the_words_alone_do_not_count_of_an_apiserver_that_is_ready() {
    let cluster = Cluster::new().await;
    let words = ScriptedAnswer::new(429)
        .header("Content-Type", "text/plain; charset=utf-8")
        .header("Retry-After", "5")
        .body(WORDS);
    cluster
        .a
        .set_fault(PODS, Some(Fault::Answer(Box::new(words))));
    passes_as_it_is(&cluster, "words").await;
}

#[tokio::test]
async fn what_an_apiserver_without_a_proxy_turns_away_is_served_by_another() {
    let ground = Ground::new().await;
    let store = Store::new();
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let native = async || {
        let options = DoubleOptions::new(ground.pki.dir(), v1_36()).store(&store);
        Double::start(options).await
    };
    let (b, c) = (native().await, native().await);
    let mut etcd = ground.etcd.client().await;
    for (id, double) in [("native-b", &b), ("native-c", &c)] {
        let endpoint = PeerEndpoint {
            server: id.into(),
            address: double.addr(),
        };
        let key = format!("/registry/peerserverleases/{id}");
        let entry = encode_endpoints(&endpoint, 1);
        etcd.put(key, entry, None).await.unwrap();
    }
    let proxy = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    eventually("both are known", LONG, async || {
        let status = proxy.statusz().await;
        lists(&status, "native-b", "autoscaling") && lists(&status, "native-c", "autoscaling")
    })
    .await;
    let admin = proxy.client(&ground.pki).cert("admin");
    let several = || (0..16).map(|_| admin.fresh()).collect::<Vec<_>>();
    b.set_phase(Phase::Terminating);
    all_served(&several(), "terminating").await;
    c.set_phase(Phase::Terminating);
    assert_turned_away(&admin.get(HPAS).await);
}
