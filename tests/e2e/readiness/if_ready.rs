//! `X-Kubernetes-If-Ready`: the four cases of KEP-3028's test plan, restarts, and rerouted requests.

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, assert_refused};
use testkit::double::{Double, DoubleOptions, Phase, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const ASKED: &str = "X-Kubernetes-If-Ready";
const TOLD: &str = "x-kubernetes-ready";
const PODS: &str = "/api/v1/pods";

/// An apiserver that is not ready yet, and a proxy with these settings that knows all but that.
async fn starting(settings: &[(&str, &str)], ground: &Ground) -> (Double, Proxy) {
    // It is alone: nobody is left of those before.
    ground.etcd.delete_below("/kube-interop-proxy/").await;
    let options = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
    let double = Double::start(options).await;
    // Not to be stopped by a routing table that needs an initialized apiserver to be complete.
    let options = settings
        .iter()
        .fold(ground.proxy("a", double.addr()), |options, (key, value)| {
            options.set(key, value)
        });
    let proxy = Proxy::start(options.until(Until::Live)).await;
    eventually("etcd is read", LONG, async || {
        proxy.statusz().await["etcd"]["synced"] == true
    })
    .await;
    (double, proxy)
}

async fn until_initialized(proxy: &Proxy, initialized: bool) {
    let what = format!("the proxy sees that its apiserver is initialized: {initialized}");
    eventually(&what, LONG, async || {
        proxy.statusz().await["server"]["initialized"] == initialized
    })
    .await;
}

/// Each at an apiserver of its own.
#[tokio::test]
async fn before_initialization_the_four_cases_of_the_kep_and_of_the_settings() {
    let ground = &Ground::new().await;
    the_four_cases_of_the_kep(ground).await;
    enforced_always_it_holds_for_those_that_did_not_ask(ground).await;
    annotating_it_processes_everything_and_tells_those_that_asked(ground).await;
    retries_are_spread_when_that_is_wanted(ground).await;
}

async fn the_four_cases_of_the_kep(ground: &Ground) {
    let (double, proxy) = starting(&[], ground).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for value in ["", "1", "true", "false"] {
        let answer = admin.header(ASKED, value).get(PODS).await;
        assert_refused(&answer, "not initialized");
        assert_eq!(answer.header(TOLD), "false");
    }
    // Before it is told what else would be refused.
    let malformed = admin.header("X-Kubernetes-Compatibility-Version", "x");
    let answer = malformed.header(ASKED, "1").get(PODS).await;
    assert_refused(&answer, "not initialized");
    assert_eq!(malformed.get(PODS).await.code(), 400);
    assert_eq!(double.count(PODS), 0, "nothing reaches the apiserver");
    let answer = admin.get(PODS).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    assert!(!answer.headers.contains_key(TOLD));

    double.set_ready(true);
    until_initialized(&proxy, true).await;
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
async fn whatever_is_asked_the_answer_says_it_until_a_restart() {
    let cluster = &mut Cluster::new().await;
    errors_carry_the_answer_too(cluster).await;
    watches_upgrades_and_rerouted_answers_say_it_too(cluster).await;
    // Beside a peer that could answer.
    later_failures_of_readyz_do_not_undo_it_but_a_restart_does(cluster).await;
    rerouted_requests_are_gated_at_both_ends(cluster).await;
}

async fn errors_carry_the_answer_too(cluster: &Cluster) {
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
        (
            asking.cert("admin").http1().header("expect", "nonsense"),
            PODS,
            417,
        ),
    ] {
        let answer = client.get(path).await;
        assert_eq!(
            (answer.code(), answer.header(TOLD)),
            (code, "true"),
            "{path}"
        );
    }
}

async fn later_failures_of_readyz_do_not_undo_it_but_a_restart_does(cluster: &mut Cluster) {
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
    until_initialized(&cluster.proxy_a, false).await;
    assert_refused(&asking.get(PODS).await, "not initialized");
    cluster.a.start_again().await;
    assert_refused(&asking.get(PODS).await, "not initialized");
    cluster.a.set_ready(true);
    eventually("initialized again", LONG, async || {
        asking.get(PODS).await.code() == 200
    })
    .await;
}

async fn rerouted_requests_are_gated_at_both_ends(cluster: &mut Cluster) {
    cluster.b.take_requests();
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
    until_initialized(&cluster.proxy_b, false).await;
    cluster.b.start_again().await;
    let answer = asking.get(HPAS).await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert_eq!(cluster.b.count(HPAS), 1, "only the one from before");
}

/// A protocol that the double switches to and echoes.
fn upgrading(client: &Client) -> Client {
    client
        .http1()
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
}

async fn watches_upgrades_and_rerouted_answers_say_it_too(cluster: &Cluster) {
    let asking = cluster.client().cert("admin").header(ASKED, "");
    for client in [asking.http1(), asking.http2()] {
        for (path, code) in [
            ("/api/v1/pods?watch=true", 200),
            (
                "/apis/autoscaling/v1/horizontalpodautoscalers?watch=true",
                200,
            ),
            (
                "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/missing",
                404,
            ),
        ] {
            let answer = client.open(path).await;
            let told = (answer.status.as_u16(), answer.header(TOLD));
            assert_eq!(told, (code, "true"), "{path}");
        }
        let head = client.request("HEAD", PODS, "").await;
        assert_eq!((head.code(), head.header(TOLD)), (200, "true"));
    }
    for (path, code) in [
        ("/_double/upgrade", 101),
        ("/_double/upgrade?refuse=403", 403),
    ] {
        let answer = upgrading(&asking).open(path).await;
        let told = (answer.status.as_u16(), answer.header(TOLD));
        assert_eq!(told, (code, "true"), "{path}");
    }
    for double in [&cluster.a, &cluster.b] {
        let seen = double.requests();
        assert!(
            seen.iter()
                .all(|request| !request.headers.contains_key("x-kubernetes-if-ready"))
        );
    }
}

async fn enforced_always_it_holds_for_those_that_did_not_ask(ground: &Ground) {
    let (double, proxy) = starting(&[("ifReady.enforce", "Always")], ground).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for client in [admin.http1(), admin.http2()] {
        for path in [
            PODS,
            "/api/v1/pods?watch=true",
            "/",
            "/apis",
            "/_double/echo",
        ] {
            let answer = client.get(path).await;
            assert_refused(&answer, "not initialized");
            assert!(!answer.headers.contains_key(TOLD), "{path}");
            let answer = client.header(ASKED, "1").get(path).await;
            assert_refused(&answer, "not initialized");
            assert_eq!(answer.header(TOLD), "false", "{path}");
        }
        let answer = upgrading(&client).get("/_double/upgrade").await;
        assert_refused(&answer, "not initialized");
    }
    for path in [PODS, "/_double"] {
        assert_eq!(double.count(path), 0, "nothing below {path} reaches it");
    }
    // Health, metrics and version are asked of it as it is.
    for (path, code) in [("/livez", 200), ("/healthz", 200), ("/version", 200)] {
        let answer = admin.get(path).await;
        assert_eq!(answer.code(), code, "{path}: {}", answer.text());
        assert!(!answer.headers.contains_key(TOLD), "{path}");
    }
    assert_refused(&admin.get("/readyz").await, "not ready");

    double.set_ready(true);
    until_initialized(&proxy, true).await;
    let answer = admin.get(PODS).await;
    assert_eq!(answer.code(), 200);
    assert!(!answer.headers.contains_key(TOLD));
    let answer = admin.header(ASKED, "1").get(PODS).await;
    assert_eq!((answer.code(), answer.header(TOLD)), (200, "true"));
    // Initialized once, it stays so.
    double.set_ready(false);
    eventually("the proxy sees that /readyz fails", LONG, async || {
        admin.get("/readyz").await.code() == 503
    })
    .await;
    assert_eq!(admin.get(PODS).await.code(), 200);
    let answer = admin.header(ASKED, "1").get(PODS).await;
    assert_eq!((answer.code(), answer.header(TOLD)), (200, "true"));
}

async fn annotating_it_processes_everything_and_tells_those_that_asked(ground: &Ground) {
    let settings = [("ifReady.mode", "Annotate"), ("ifReady.enforce", "Always")];
    let (double, proxy) = starting(&settings, ground).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for (initialized, told) in [(false, "false"), (true, "true")] {
        double.set_ready(initialized);
        until_initialized(&proxy, initialized).await;
        for (path, code) in [
            (PODS, 200),
            ("/api/v1/namespaces/default/pods/missing", 404),
            ("/api/v1/pods?watch=true", 200),
        ] {
            let answer = admin.header(ASKED, "1").open(path).await;
            let seen = (answer.status.as_u16(), answer.header(TOLD));
            assert_eq!(seen, (code, told), "{path}");
            let answer = admin.open(path).await;
            assert_eq!(answer.status.as_u16(), code, "{path}");
            assert!(!answer.headers.contains_key(TOLD), "{path}");
        }
        let answer = upgrading(&admin.header(ASKED, "1"))
            .open("/_double/upgrade")
            .await;
        assert_eq!((answer.status.as_u16(), answer.header(TOLD)), (101, told));
    }
}

async fn retries_are_spread_when_that_is_wanted(ground: &Ground) {
    let settings = [
        ("ifReady.retryAfterSeconds", "2"),
        ("ifReady.retryAfterJitterSeconds", "60"),
    ];
    let (_double, proxy) = starting(&settings, ground).await;
    let asking = proxy.client(&ground.pki).header(ASKED, "1");
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let answer = asking.get(PODS).await;
        // Header and Status agree.
        assert_refused(&answer, "not initialized");
        drawn.insert(answer.header("retry-after").parse::<u32>().unwrap());
    }
    assert!(drawn.len() > 5, "{drawn:?}");
    assert!(
        drawn.iter().all(|seconds| (2..=62).contains(seconds)),
        "{drawn:?}"
    );
}
