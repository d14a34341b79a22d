//! `tracing`: spans of sampled requests, for a receiver of the test's own.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpListener;

use super::receiver::{Receiver, text};
use testkit::cluster::{Cluster, HPAS, LONG, Single, patient};
use testkit::double::{Double, Fault, v1_20};
use testkit::proxy::ProxyOptions;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLIENTS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
const SPANS: &str = "kube_interop_proxy_spans_total";
const SERVER: i32 = 2;
const UNSET: i32 = 0;
const ERROR: i32 = 2;

/// Every request without a `traceparent` is sampled.
fn all(options: ProxyOptions, receiver: &Receiver) -> ProxyOptions {
    options
        .set("tracing.endpoint", &receiver.addr.to_string())
        .set("tracing.samplingRatePerMillion", "1000000")
}

/// The headers of this name in the one request for `path`.
fn arrived(double: &Double, path: &str, name: &str) -> Vec<String> {
    let requests = double.take_requests();
    let mut of_path = requests.iter().filter(|it| it.path == path);
    let request = of_path.next().expect("a request");
    assert!(of_path.next().is_none());
    request.header_values(name)
}

#[tokio::test]
async fn a_rerouted_request_has_one_trace_through_both_proxies_and_their_apiserver() {
    let receiver = Receiver::start().await;
    let cluster = Cluster::with(v1_20(), |options| all(patient(options), &receiver)).await;
    let admin = cluster.client().cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);
    let mut spans = receiver.spans(HPAS, 2).await;
    spans.sort_by_key(|it| it.span.parent_span_id.len());
    let [of_a, of_b] = spans.as_slice() else {
        unreachable!()
    };
    assert!(of_a.span.parent_span_id.is_empty());
    assert_eq!(of_b.span.parent_span_id, of_a.span.span_id);
    assert_eq!(of_b.span.trace_id, of_a.span.trace_id);
    for (received, decision, target) in [
        (of_a, "peers", cluster.proxy_b.addr()),
        (of_b, "already_rerouted", cluster.b.addr()),
    ] {
        let attribute = |key| received.attribute(key);
        let own = |key| received.attribute(&format!("kube_interop_proxy.{key}"));
        assert_eq!(
            (received.span.name.as_str(), received.span.kind),
            ("GET", SERVER)
        );
        assert_eq!(attribute("http.request.method"), "GET");
        assert_eq!(attribute("http.response.status_code"), "200");
        assert_eq!(
            (own("decision"), own("verb_class")),
            (decision.into(), "list".into())
        );
        assert_eq!(
            received.events(),
            [("attempt".to_owned(), target.to_string())]
        );
        assert_eq!(received.span.status.clone().unwrap_or_default().code, UNSET);
        assert!(received.span.start_time_unix_nano <= received.span.end_time_unix_nano);
    }
    let instances: Vec<_> = [of_a, of_b]
        .map(|it| text(&it.resource, "service.instance.id"))
        .into();
    assert_eq!(
        instances,
        [cluster.proxy_a.addr(), cluster.proxy_b.addr()].map(|it| it.to_string())
    );
    assert_eq!(text(&of_a.resource, "service.name"), "kube-interop-proxy");
    assert_eq!(
        arrived(&cluster.b, HPAS, "traceparent"),
        [of_b.traceparent()]
    );
}

#[tokio::test]
async fn a_span_names_every_attempt_and_why_the_proxy_answered_itself() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::with(v1_20(), |options| all(patient(options), &receiver)).await;
    let admin = cluster.client().cert("admin");
    cluster.a.set_fault(PODS, Some(Fault::Reset));
    assert_eq!(admin.get(PODS).await.code(), 200);
    let spans = receiver.spans(PODS, 2).await;
    let of_a = spans
        .iter()
        .find(|it| it.span.parent_span_id.is_empty())
        .unwrap();
    let (a, b) = (
        cluster.a.addr().to_string(),
        cluster.proxy_b.addr().to_string(),
    );
    let (first, last) = (("attempt".to_owned(), a), ("attempt".to_owned(), b));
    let events = of_a.events();
    let failed = ("attempt failed".to_owned(), "broke_off".to_owned());
    // A connection that was used before is tried once more.
    assert!(
        events.starts_with(&[first, failed]) && events.ends_with(&[last]),
        "{events:?}"
    );
    assert_eq!(of_a.attribute("kube_interop_proxy.decision"), "local");

    cluster.proxy_b.kill();
    let refused = admin.get(HPAS).await;
    assert_eq!(refused.code(), 503);
    let spans = receiver.spans(HPAS, 1).await;
    assert_eq!(spans[0].attribute("http.response.status_code"), "503");
    let refusal = spans[0].attribute("kube_interop_proxy.refusal");
    assert!(
        ["failed", "unreachable"].contains(&refusal.as_str()),
        "{refusal}"
    );
    assert_eq!(spans[0].span.status.as_ref().unwrap().code, ERROR);
}

#[tokio::test]
async fn traceparent_passes_as_it_came_unless_the_request_is_sampled() {
    let receiver = Receiver::start().await;
    let endpoint = receiver.addr.to_string();
    let (without, with) = tokio::join!(
        Single::new(),
        Single::with(|options| options.set("tracing.endpoint", &endpoint)),
    );
    let unsampled = format!("{CLIENTS}-00");
    let sampled = format!("{CLIENTS}-01");
    for (world, value) in [
        (&without, sampled.as_str()),
        (&without, "whatever"),
        (&with, unsampled.as_str()),
        (&with, "whatever"),
    ] {
        for client in world.admins() {
            let client = client
                .header("traceparent", value)
                .header("tracestate", "a=b");
            world.double.take_requests();
            assert_eq!(client.get(PODS).await.code(), 200);
            assert_eq!(arrived(&world.double, PODS, "traceparent"), [value]);
            assert_eq!(client.get(PODS).await.code(), 200);
            assert_eq!(arrived(&world.double, PODS, "tracestate"), ["a=b"]);
        }
    }
    // The administrator's trace goes on, through this proxy's span.
    let client = with.client().cert("admin");
    let client = client
        .header("traceparent", &sampled)
        .header("tracestate", "a=b");
    assert_eq!(client.get(PODS).await.code(), 200);
    let spans = receiver.spans(PODS, 1).await;
    assert_eq!(
        arrived(&with.double, PODS, "traceparent"),
        [spans[0].traceparent()]
    );
    assert!(spans[0].traceparent().starts_with(&CLIENTS[..36]));
    assert_eq!(
        spans[0].span.parent_span_id,
        [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]
    );
    // Who a token is only the apiserver knows: it cannot have everything recorded.
    let token = with.client().token("admin-token");
    for client in [token, with.client()] {
        let answer = client.header("traceparent", &sampled).get(PODS).await;
        assert!(
            [200, 401, 403].contains(&answer.code()),
            "{}",
            answer.code()
        );
        assert_eq!(
            arrived(&with.double, PODS, "traceparent"),
            [sampled.as_str()]
        );
    }
    assert_eq!(receiver.all(PODS).len(), 1);
    assert_eq!(without.proxy.metric(SPANS, &[]).await, 0.0);
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_process_ends() {
    let receiver = Receiver::start().await;
    let mut world = Single::with(|options| {
        all(options, &receiver)
            .set("shutdown.delay", "0s")
            .set("shutdown.drain", "1s")
    })
    .await;
    assert_eq!(
        world.client().cert("admin").http1().get(PODS).await.code(),
        200
    );
    assert!(world.proxy.terminate().await.success());
    assert_eq!(receiver.all(PODS).len(), 1);
}

#[tokio::test]
async fn a_receiver_that_is_away_or_hangs_costs_no_request_and_few_spans_wait_for_it() {
    const CLIENTS: usize = 20;
    const EACH: usize = 200;
    // Queue and one batch.
    const MOST: usize = 2048 + 512;
    // Takes connections and never says anything.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [hanging.local_addr().unwrap(), away.local_addr().unwrap()];
    drop(away);
    for address in addresses {
        let mut world = Single::with(|options| {
            options
                .set("tracing.endpoint", &address.to_string())
                .set("tracing.samplingRatePerMillion", "1000000")
                .set("shutdown.delay", "0s")
                .set("shutdown.drain", "1s")
        })
        .await;
        let client = world.client().cert("admin").timeout(LONG);
        join_all((0..CLIENTS).map(async |_| {
            let client = client.fresh();
            for _ in 0..EACH {
                assert_eq!(client.get("/version").await.code(), 200);
            }
        }))
        .await;
        let of = async |result| world.proxy.metric(SPANS, &[("result", result)]).await;
        let lost = of("dropped").await + of("failed").await;
        assert!(lost >= (CLIENTS * EACH - MOST) as f64, "{address}: {lost}");
        assert_eq!(of("exported").await, 0.0);
        world.proxy.process().signal(testkit::process::Signal::Term);
        let ended = world.proxy.process().wait(Duration::from_secs(20)).await;
        assert!(ended.success(), "{ended:?}");
    }
}
