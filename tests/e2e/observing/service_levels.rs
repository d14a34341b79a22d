//! The metrics that service level objectives are made of: docs/slos.md.

use std::time::Duration;

use testkit::cluster::{Cluster, HPAS, LONG, Single, assert_refused};
use testkit::double::Fault;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

const REQUESTS: &str = "kube_interop_proxy_requests_total";
const FIRST_BYTE: &str = "kube_interop_proxy_time_to_first_byte_seconds";
const OWN_TIME: &str = "kube_interop_proxy_own_duration_seconds_count";
const FAILED_REROUTES: &str = "kube_interop_proxy_failed_reroutes_total";
const IF_READY: &str = "kube_interop_proxy_if_ready_answers_total";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn counted(proxy: &Proxy, decision: &str, code: &str, class: &str) -> f64 {
    let labels = [
        ("decision", decision),
        ("code", code),
        ("verb_class", class),
    ];
    proxy.metric(REQUESTS, &labels).await
}

#[tokio::test]
async fn a_request_is_counted_by_decision_code_and_verb_class_when_its_answer_begins() {
    let world = Single::new().await;
    let proxy = &world.proxy;
    let mut open = Vec::new();
    for client in world.admins() {
        assert_eq!(client.get(PODS).await.code(), 200);
        let none = format!("{PODS}/none");
        assert_eq!(client.get(&none).await.code(), 404);
        let deleted = client.request("DELETE", &none, "").await;
        assert_eq!(deleted.code(), 404, "{}", deleted.text());
        assert_eq!(client.get("/version").await.code(), 200);
        let watch = client.open(&format!("{PODS}?watch=true")).await;
        assert_eq!(watch.status, 200);
        // It is counted although it is open.
        open.push(watch);
    }
    for (decision, code, class) in [
        ("local", "200", "list"),
        ("local", "404", "read"),
        ("local", "404", "write"),
        ("not_a_resource", "200", "read"),
        ("local", "200", "long_running"),
    ] {
        let count = counted(proxy, decision, code, class).await;
        assert_eq!(count, 2.0, "{decision} {code} {class}");
    }
    let timed = async |class| {
        let labels = [("decision", "local"), ("verb_class", class)];
        proxy.metric(&format!("{FIRST_BYTE}_count"), &labels).await
    };
    assert_eq!(timed("list").await, 2.0);
    assert_eq!(timed("long_running").await, 2.0);

    // Answers of the proxy itself: before the table and after it.
    let invalid = world.client().cert("rogue").get(PODS).await;
    assert_eq!(invalid.code(), 401);
    assert_eq!(counted(proxy, "none", "401", "list").await, 1.0);
    assert_eq!(timed("none").await, 0.0);
    let all_short = |count| count >= 8.0;
    proxy.until_metric(OWN_TIME, &[], all_short).await;
}

#[tokio::test]
async fn the_time_to_the_first_byte_is_the_servers_too_and_ends_with_the_header() {
    const SLOW: Duration = Duration::from_millis(600);
    let world = Single::new().await;
    let admin = world.client().cert("admin");
    world.double.set_fault(PODS, Some(Fault::Delay(SLOW)));
    assert_eq!(admin.get(PODS).await.code(), 200);
    world.double.set_fault(PODS, None);
    let at_most = async |bound| {
        let labels = [("decision", "local"), ("verb_class", "list"), ("le", bound)];
        let name = format!("{FIRST_BYTE}_bucket");
        world.proxy.metric(&name, &labels).await
    };
    assert_eq!(at_most("0.5").await, 0.0);
    assert_eq!(at_most("+Inf").await, 1.0);
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_answer_is_counted_without_a_code() {
    let world = Single::new().await;
    world.double.set_fault(PODS, Some(Fault::Hang));
    for client in world.admins() {
        let before = counted(&world.proxy, "local", "none", "list").await;
        let asked = world.double.count(PODS);
        let request = tokio::spawn(async move { client.timeout(LONG).try_get(PODS).await });
        eventually("the apiserver was asked", LONG, async || {
            world.double.count(PODS) > asked
        })
        .await;
        let in_flight = "kube_interop_proxy_requests_in_flight";
        let some = |count| count == 1.0;
        world.proxy.until_metric(in_flight, &[], some).await;
        request.abort();
        let gone = [("code", "none"), ("verb_class", "list")];
        let counted = |count| count == before + 1.0;
        world.proxy.until_metric(REQUESTS, &gone, counted).await;
        let none = |count| count == 0.0;
        world.proxy.until_metric(in_flight, &[], none).await;
    }
}

#[tokio::test]
async fn answers_to_if_ready_are_counted_by_their_value() {
    let world = Single::new().await;
    let asking = world
        .client()
        .cert("admin")
        .header("X-Kubernetes-If-Ready", "1");
    let count = async |ready| world.proxy.metric(IF_READY, &[("ready", ready)]).await;
    asking.get(PODS).await;
    world.client().cert("admin").get(PODS).await;
    assert_eq!((count("true").await, count("false").await), (1.0, 0.0));
    world.double.set_ready(false);
    world.double.drop_connections();
    let mut double = world.double;
    double.restart().await;
    double.set_ready(false);
    eventually("the proxy says that it is not ready", LONG, async || {
        asking.get(PODS).await.header("x-kubernetes-ready") == "false"
    })
    .await;
    let told = world.proxy.metric(IF_READY, &[("ready", "false")]).await;
    assert_eq!(told, 1.0);
    let refused = [
        ("decision", "none"),
        ("code", "503"),
        ("verb_class", "list"),
    ];
    assert_eq!(world.proxy.metric(REQUESTS, &refused).await, 1.0);
}

#[tokio::test]
async fn a_failed_reroute_is_counted_by_who_answered_then() {
    let cluster = Cluster::new().await;
    let (proxy, admin) = (&cluster.proxy_a, cluster.client().cert("admin"));
    assert_eq!(admin.get(HPAS).await.code(), 200);
    let failed = async |result| proxy.metric(FAILED_REROUTES, &[("result", result)]).await;
    assert_eq!(
        (failed("answered").await, failed("refused").await),
        (0.0, 0.0)
    );
    cluster.b.set_fault(HPAS, Some(Fault::Reset));
    assert_refused(
        &admin.get(HPAS).await,
        "Error while proxying request to destination apiserver",
    );
    assert_eq!(failed("refused").await, 1.0);
    assert_eq!(counted(proxy, "peers", "503", "list").await, 1.0);
}
