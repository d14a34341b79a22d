//! `X-Kubernetes-If-Ready`: the four cases of KEP-3028's test plan, restarts, and rerouted requests.

use crate::cluster::{Cluster, Ground, HPAS, LONG, assert_refused};
use crate::double::{Double, DoubleOptions, Phase, v1_20};
use crate::support::proxy::{Proxy, Until};
use crate::support::wait::eventually;

const ASKED: &str = "X-Kubernetes-If-Ready";
const TOLD: &str = "x-kubernetes-ready";
const PODS: &str = "/api/v1/pods";

async fn starting() -> (Ground, Double, Proxy) {
    let ground = Ground::new().await;
    let options = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
    let double = Double::start(options).await;
    // Not to be stopped by a routing table that needs an initialized apiserver to be complete.
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Live)).await;
    eventually("etcd is read", LONG, async || {
        proxy.statusz().await["etcd"]["synced"] == true
    })
    .await;
    (ground, double, proxy)
}

#[tokio::test]
async fn the_four_cases_of_the_kep() {
    let (ground, double, proxy) = starting().await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for value in ["", "1", "true", "false"] {
        let answer = admin.header(ASKED, value).get(PODS).await;
        assert_refused(&answer, "not initialized");
        assert_eq!(answer.header(TOLD), "false");
    }
    assert_eq!(double.count(PODS), 0, "nothing reaches the apiserver");
    let answer = admin.get(PODS).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    assert!(!answer.headers.contains_key(TOLD));

    double.set_ready(true);
    eventually("the proxy sees it", LONG, async || {
        proxy.statusz().await["server"]["initialized"] == true
    })
    .await;
    let answer = admin.header(ASKED, "1").get(PODS).await;
    assert_eq!((answer.code(), answer.header(TOLD)), (200, "true"));
    let answer = admin.get(PODS).await;
    assert_eq!(answer.code(), 200);
    assert!(!answer.headers.contains_key(TOLD));
    let seen = double.requests();
    assert!(
        seen.iter()
            .all(|request| !request.headers.contains_key("x-kubernetes-if-ready"))
    );
}

#[tokio::test]
async fn errors_carry_the_answer_too() {
    let cluster = Cluster::new().await;
    let asking = cluster.client().header(ASKED, "1");
    for (client, path, code) in [
        (
            asking.cert("admin"),
            "/api/v1/namespaces/default/pods/missing",
            404,
        ),
        (asking.cert("admin"), "/no/such/path", 404),
        (asking.cert("alice"), PODS, 403),
        (asking.cert("rogue"), PODS, 401),
        (asking.cert("admin"), HPAS, 200),
    ] {
        let answer = client.get(path).await;
        assert_eq!(
            (answer.code(), answer.header(TOLD)),
            (code, "true"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn later_failures_of_readyz_do_not_undo_it_but_a_restart_does() {
    let mut cluster = Cluster::new().await;
    let asking = cluster.client().cert("admin").header(ASKED, "1");
    cluster.a.set_ready(false);
    eventually("the proxy sees that /readyz fails", LONG, async || {
        !cluster.proxy_a.is_ready().await
    })
    .await;
    assert_eq!(asking.get(PODS).await.code(), 200);
    let on_tls = cluster.client().get("/readyz").await;
    assert_eq!(on_tls.code(), 503, "load balancers look elsewhere");

    cluster.a.stop().await;
    eventually("a refused connection", LONG, async || {
        cluster.proxy_a.statusz().await["server"]["initialized"] == false
    })
    .await;
    assert_refused(&asking.get(PODS).await, "not initialized");
    cluster.a.start_again().await;
    assert_refused(&asking.get(PODS).await, "not initialized");
    cluster.a.set_ready(true);
    eventually("initialized again", LONG, async || {
        asking.get(PODS).await.code() == 200
    })
    .await;
}

#[tokio::test]
async fn rerouted_requests_are_gated_at_both_ends() {
    let mut cluster = Cluster::new().await;
    let asking = cluster.client().cert("admin").header(ASKED, "1");
    let answer = asking.get(HPAS).await;
    assert_eq!((answer.code(), answer.header(TOLD)), (200, "true"));
    let at_b = cluster.b.requests();
    assert!(
        at_b.iter()
            .all(|request| !request.headers.contains_key("x-kubernetes-if-ready"))
    );

    // The peer is not initialized: its proxy says so, before A's learns of it.
    cluster.b.stop().await;
    eventually("its proxy has seen it", LONG, async || {
        cluster.proxy_b.statusz().await["server"]["initialized"] == false
    })
    .await;
    cluster.b.start_again().await;
    let answer = asking.get(HPAS).await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert_eq!(cluster.b.count(HPAS), 1, "only the one from before");
}

#[tokio::test]
async fn switched_off_the_header_is_passed_on_and_nothing_is_added() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let options = ground
        .proxy("a", double.addr())
        .set("ifReady.enabled", "false");
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    let answer = proxy
        .client(&ground.pki)
        .cert("admin")
        .header(ASKED, "1")
        .get(PODS)
        .await;
    assert_eq!(answer.code(), 200);
    assert!(!answer.headers.contains_key(TOLD));
    let seen = double.requests();
    let request = seen.iter().find(|request| request.path == PODS).unwrap();
    assert_eq!(request.header("x-kubernetes-if-ready"), "1");
}
