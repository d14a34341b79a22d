//! An apiserver that cannot answer reads at the moment: it builds a watch cache (1.31 and later), or its etcd is down for it
//! alone. Other servers are asked; if none answers, its own answer passes unchanged.

use serde_json::json;

use crate::failover::peers::{PODS, Three};
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, Single, lists};
use testkit::cut::Cut;
use testkit::double::{Fault, ScriptedAnswer, v1_20};
use testkit::etcd::EtcdOptions;
use testkit::kube::KubeApiServer;
use testkit::notes;
use testkit::pki::LeafOptions;
use testkit::proxy::{Proxy, Until};
use testkit::streaming::Response;
use testkit::wait::eventually;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WITHOUT_ETCD: &str = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";

fn status(code: u16, message: &str) -> Fault {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "message": message, "details": {"retryAfterSeconds": 1}});
    let answer = ScriptedAnswer::new(code).header("Content-Type", "application/json");
    let answer = answer.header("Retry-After", "1").body(body.to_string());
    Fault::Answer(Box::new(answer))
}

/// As kube-apiserver 1.31 and later answer while they build the resource's watch cache, after priority and fairness.
fn initializing() -> Fault {
    status(429, "storage is (re)initializing")
}

fn watch(path: &str) -> String {
    format!("{path}?watch=true")
}

#[track_caller]
fn assert_initializing(answer: &Response) {
    assert_eq!(answer.code(), 429, "{}", answer.text());
    assert!(answer.text().contains("storage is (re)initializing"));
}

#[tokio::test]
async fn a_500_passes_but_who_builds_its_cache_is_answered_for() {
    let three = Three::with(|options| options).await;
    a_read_that_failed_for_another_reason_passes(&three).await;
    lists_and_watches_go_on_while_one_apiserver_builds_its_cache(&three).await;
}

async fn a_read_that_failed_for_another_reason_passes(three: &Three) {
    three.servers[0].set_fault(PODS, Some(status(500, "a webhook failed")));
    assert_eq!(codes(&three.admin()).await, [500, 500]);
    let asked = three.servers.each_ref().map(|double| double.count(PODS));
    assert_eq!(asked, [2, 0, 0]);
}

async fn lists_and_watches_go_on_while_one_apiserver_builds_its_cache(three: &Three) {
    three.servers[0].set_fault(PODS, Some(initializing()));
    for client in [three.admin().http1(), three.admin().http2()] {
        let list = client.get(PODS).await;
        assert_eq!(list.code(), 200, "{}", list.text());
        assert_eq!(client.open(&watch(PODS)).await.status, 200);
        // Only lists and watches are answered so.
        let written = client.request("POST", PODS, "{}").await;
        assert_initializing(&written);
        assert_initializing(&client.get(&format!("{PODS}/x")).await);
    }
    assert_eq!(three.failovers("unavailable").await, 4.0);
    for peer in ["b", "c"] {
        assert!(!three.is_unhealthy(peer).await);
    }
    three.servers[1].set_fault(HPAS, Some(initializing()));
    for client in three.several() {
        assert_eq!(client.get(HPAS).await.code(), 200);
    }
    three.servers[2].set_fault(HPAS, Some(initializing()));
    assert_initializing(&three.admin().get(HPAS).await);
}

#[tokio::test]
async fn if_no_server_has_the_cache_its_answer_passes() {
    let single = Single::with(|options| options).await;
    single.double.set_fault(PODS, Some(initializing()));
    for client in single.admins() {
        assert_initializing(&client.get(PODS).await);
        assert_initializing(&client.get(&watch(PODS)).await);
    }
}

/// The local apiserver's `/readyz` says that its etcd is down.
async fn loses_etcd(three: &Three, servers: &[usize]) {
    for server in servers {
        let readyz = ScriptedAnswer::new(500).header("Content-Type", "text/plain");
        let readyz = Fault::Answer(Box::new(readyz.body(WITHOUT_ETCD)));
        three.servers[*server].set_fault("/readyz", Some(readyz));
        let fault = status(500, "etcdserver: request timed out");
        three.servers[*server].set_fault(PODS, Some(fault));
    }
}

async fn codes(client: &Client) -> [u16; 2] {
    let read = client.get(PODS).await.code();
    [read, client.get(&format!("{PODS}/x")).await.code()]
}

#[tokio::test]
async fn a_read_that_failed_for_want_of_etcd_is_asked_elsewhere() {
    // Of which nobody finds out but by an answer.
    let three = Three::with(|options| options.set("apiServer.probeInterval", "1h")).await;
    loses_etcd(&three, &[0]).await;
    for client in [three.admin().http1(), three.admin().http2()] {
        assert_eq!(codes(&client).await, [200, 404]);
        // New requests go there first.
        let written = client.request("POST", PODS, r#"{"metadata": {"generateName": "x-"}}"#);
        assert_eq!(written.await.code(), 201);
    }
    assert_eq!(three.failovers("unavailable").await, 1.0);
}

#[tokio::test]
async fn if_etcd_is_away_for_all_it_is_as_if_it_were_for_none() {
    let three = Three::with(|options| options).await;
    loses_etcd(&three, &[0, 1, 2]).await;
    eventually("no peer is ready, and none is asked", LONG, async || {
        three
            .servers
            .iter()
            .for_each(|double| drop(double.take_requests()));
        assert_eq!(codes(&three.admin()).await, [500, 500]);
        let asked = three.servers.each_ref().map(|double| double.count(PODS));
        (asked == [2, 0, 0])
            .then_some(())
            .ok_or(format!("{asked:?}"))
    })
    .await;
}

#[tokio::test]
async fn for_a_real_apiserver_that_has_lost_etcd_another_one_answers() {
    let address = Loopback::new();
    let ground = Ground::bootstrapped_with(EtcdOptions {
        also: vec![address.ip()],
        ..EtcdOptions::default()
    })
    .await;
    let link = Cut::start(address, ground.etcd.addr()).await;
    let cut = ground.kube("cp-a").without("etcd-servers");
    let cut = cut.arg(&format!("--etcd-servers=https://{}", link.addr()));
    let a = KubeApiServer::start(cut, &ground.pki).await;
    let ready = a.admin().get("/readyz?verbose").await.text();
    if !ready.contains("]etcd ") {
        assert!(a.abilities().minor() > 20, "{ready}");
        return notes::skipped("this kube-apiserver is ready without etcd");
    }
    let b = ground.double(v1_20()).await;
    let proxy = |id, addr| Proxy::start(ground.proxy(id, addr).until(Until::Ready));
    let (proxy, _other) = tokio::join!(proxy("a", a.addr()), proxy("b", b.addr()));
    eventually("A knows B", LONG, async || {
        let status = proxy.statusz().await;
        status["peers"][0]["initialized"] == true && lists(&status, "b", "apps")
    })
    .await;
    link.silence();
    eventually("A's apiserver is not ready", LONG, async || {
        !proxy.is_ready().await
    })
    .await;
    let client = proxy.client(&ground.pki).cert("admin");
    let object = |name: &str| json!({"metadata": {"name": name}}).to_string();
    for name in ["x", "y"] {
        let made = client.request("POST", MAPS, object(name)).await;
        assert_eq!(made.code(), 201, "{}\n{}", made.text(), proxy.log_tail());
        let read = client.get(&format!("{MAPS}/{name}")).await;
        assert_eq!(read.code(), 200, "{}", read.text());
    }
    assert!(b.count(MAPS) >= 4, "B answered");
}

/// A kubelet deletes and creates the mirror of a static pod before it starts the pod's containers: kube-apiserver's own, too.
/// client-go would send that again ten times.
#[tokio::test]
async fn a_kubelet_is_not_told_to_wait_for_the_apiserver_that_it_starts() {
    let mut single = Single::new().await;
    let node = LeafOptions::client("system:node:a").org("system:nodes");
    single.ground.pki.leaf("node", "ca", &node);
    single.double.stop().await;
    let client = single.client();
    let pod = format!("{PODS}/kube-apiserver-a");
    for (who, is_told) in [("node", false), ("admin", true)] {
        for client in [client.cert(who).http1(), client.cert(who).http2()] {
            for (method, path) in [("DELETE", pod.as_str()), ("POST", PODS)] {
                let answer = client.request(method, path, "{}").await;
                assert_eq!(answer.code(), 503, "{}", answer.text());
                let header = answer.headers.contains_key("retry-after");
                let details = answer.json()["details"]["retryAfterSeconds"].is_i64();
                assert_eq!([header, details], [is_told; 2], "{who} {method}");
            }
            for path in [PODS, &format!("{pod}/log")] {
                let answer = client.get(path).await;
                assert_eq!(answer.code(), 503, "{}", answer.text());
                assert!(answer.headers.contains_key("retry-after"), "{who} {path}");
            }
        }
    }
}
