//! Watches that resume after a restart, on real kube-apiservers v1.20.2: A's watch caches begin when it starts, so A
//! answers 410 to an older watch of a quiet resource, while B still has the history.

use serde_json::{Value, json};

use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::pair::Pair;
use testkit::wait::eventually;

const QUIET: &str = "/api/v1/namespaces/default/podtemplates";
const BUSY: &str = "/api/v1/namespaces/default/configmaps";
const DECISIONS: &str = "kube_interop_proxy_requests_total";
const EXPIRED: &str = "kube_interop_proxy_expired_watches_total";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";

async fn pair() -> Pair {
    let pair = Pair::options().proxies(|options| {
        let options = options.set("watch.bookmarkOnShutdown", "true");
        options.set("shutdown.drain", "5s")
    });
    let pair = pair.start().await;
    pair.until_histories_are_known().await;
    pair
}

/// Restarts A's apiserver; returns when its history is known again.
async fn restart_a(pair: &mut Pair) {
    let before = history_start(pair).await;
    pair.a.kill();
    pair.a.start_again();
    pair.a.wait_ready().await;
    let what = "A's history begins anew";
    eventually(what, LONGER, async || history_start(pair).await > before).await;
}

async fn history_start(pair: &Pair) -> i64 {
    let status = pair.proxy_a.statusz().await;
    status["server"]["historyStart"]
        .as_i64()
        .unwrap_or_default()
}

/// How many 410s another server has saved clients from, and how many have passed.
async fn expired(pair: &Pair) -> [f64; 2] {
    let of = async |result| pair.proxy_a.metric(EXPIRED, &[("result", result)]).await;
    [of("avoided").await, of("passed").await]
}

/// How many watches were sent to B because of its history.
async fn resumed(pair: &Pair) -> f64 {
    let resumed = [("decision", "resume")];
    pair.proxy_a.metric(DECISIONS, &resumed).await
}

/// A's proxy starts again, and knows B.
async fn restart_proxy_a(pair: &mut Pair) {
    assert!(pair.proxy_a.terminate().await.success());
    pair.proxy_a.start_again().await;
    eventually("A's proxy knows B again", LONGER, async || {
        pair.proxy_a.statusz().await["peers"][0]["target"] == true
    })
    .await;
}

async fn create(client: &Client, path: &str, name: &str) -> String {
    let object = match path {
        QUIET => json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name},
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
        WIDGETS => {
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}})
        }
        DEFINITIONS => {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{name}.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": name, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
        }
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}),
    };
    let answer = client.request("POST", path, object.to_string()).await;
    assert_eq!(answer.code(), 201, "{}", answer.text());
    let version = answer.json()["metadata"]["resourceVersion"].clone();
    version.as_str().unwrap().to_owned()
}

/// Each part restarts what it needs in the cluster that the one before has left; A's apiserver is restarted once.
#[tokio::test]
async fn a_watch_from_before_a_restart_goes_on_where_its_history_is() {
    let mut pair = pair().await;
    let seen = create(&pair.admin(), QUIET, "seen").await;
    for number in 0..5 {
        create(&pair.admin(), BUSY, &format!("busy-{number}")).await;
    }
    let widget = a_custom_resource(&pair).await;
    restart_a(&mut pair).await;
    where_history_is_known(&pair, &seen).await;
    where_the_cache_of_a_custom_resource_is_older(&mut pair, &widget).await;
    not_of_another_etcd(&mut pair, &seen).await;
    where_history_is_not_known(&mut pair, &seen).await;
    where_no_cache_of_a_custom_resource_reaches_back(&mut pair, &widget).await;
}

/// The revision of the first of two objects of it.
async fn a_custom_resource(pair: &Pair) -> String {
    let admin = pair.admin();
    create(&admin, DEFINITIONS, "widgets").await;
    // The first use begins B's cache.
    eventually("B serves it", LONGER, async || {
        pair.b.admin().get(WIDGETS).await.code() == 200
    })
    .await;
    until_the_definition_is_known(pair).await;
    eventually("A serves it", LONGER, async || {
        pair.a.admin().get(WIDGETS).await.code() == 200
    })
    .await;
    let seen = create(&admin, WIDGETS, "seen").await;
    create(&admin, WIDGETS, "missed").await;
    seen
}

async fn until_the_definition_is_known(pair: &Pair) {
    eventually("A's proxy knows of it", LONGER, async || {
        let custom = pair.proxy_a.statusz().await["custom"].to_string();
        custom.contains("\"widgets\"")
    })
    .await;
}

/// A's history does not reach back to `seen`, and B's does.
async fn where_history_is_known(pair: &Pair, seen: &str) {
    let admin = pair.admin();
    let watch = format!("{QUIET}?watch=1&resourceVersion={seen}");
    assert_expired_at_a(pair, &watch).await;
    let mut through = admin.open(&watch).await;
    assert_eq!(through.status, 200);
    assert_eq!(resumed(pair).await, 1.0);
    create(&admin, QUIET, "missed").await;
    let event = through.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("missed"))
    );

    // What A has the history of stays with A.
    let now = create(&admin, QUIET, "now").await;
    let mut local = admin
        .open(&format!("{QUIET}?watch=1&resourceVersion={now}"))
        .await;
    create(&admin, QUIET, "next").await;
    let event = local.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "next");
    assert_eq!(resumed(pair).await, 1.0);
}

/// Nor watches without a revision.
async fn not_of_another_etcd(pair: &mut Pair, seen: &str) {
    const OTHERS: &str = "etcd.otherResources";
    pair.proxy_a.reconfigure(OTHERS, "[podtemplates]");
    restart_proxy_a(pair).await;
    let start: i64 = seen.parse().unwrap();
    eventually("B's history is known to reach back", LONGER, async || {
        let of_b = pair.proxy_a.statusz().await["peers"][0]["historyStart"].as_i64();
        of_b.is_some_and(|of_b| of_b <= start)
    })
    .await;
    let admin = pair.admin();
    let mut elsewhere = admin
        .open(&format!("{QUIET}?watch=1&resourceVersion={seen}"))
        .await;
    let event = elsewhere.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["object"]["code"], 410, "A's own answer");
    for start in ["0", ""] {
        let mut watch = admin
            .open(&format!("{BUSY}?watch=1&resourceVersion={start}"))
            .await;
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["type"], "ADDED");
    }
    assert_eq!(resumed(pair).await, 0.0);
    pair.proxy_a.reconfigure(OTHERS, "[]");
    restart_proxy_a(pair).await;
}

/// A's own answer to a watch is a 410.
async fn assert_expired_at_a(pair: &Pair, watch: &str) {
    let mut direct = pair.a.admin().open(watch).await;
    let event = direct.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
}

async fn where_history_is_not_known(pair: &mut Pair, seen: &str) {
    let admin = pair.admin();
    // The new proxy knows of its apiserver's history only from now on.
    pair.proxy_b.kill();
    pair.proxy_b.start_again().await;
    let start: i64 = seen.parse().unwrap();
    eventually("B's history begins later", LONGER, async || {
        let status = pair.proxy_a.statusz().await;
        let b = &status["peers"][0];
        b["target"] == true && b["historyStart"].as_i64() > Some(start)
    })
    .await;

    let watch = format!("{QUIET}?watch=1&resourceVersion={seen}");
    assert_expired_at_a(pair, &watch).await;
    for client in [admin.http1(), admin.http2()] {
        let mut json = client.open(&watch).await;
        let event = json.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["object"]["metadata"]["name"], "missed", "{event}");
        let mut protobuf = client.header("accept", PROTOBUF).open(&watch).await;
        assert_eq!(protobuf.header("content-type"), PROTOBUF);
        let piece = protobuf.next_chunk(LONG).await.unwrap().unwrap();
        assert_eq!(piece.get(4..11), Some(&b"\x0a\x05ADDED"[..]));
    }
    assert_eq!(resumed(pair).await, 0.0);
    assert_eq!(expired(pair).await, [4.0, 0.0]);
}

async fn where_the_cache_of_a_custom_resource_is_older(pair: &mut Pair, seen: &str) {
    let before = expired(pair).await;
    let admin = pair.admin();
    eventually("A serves it again", LONGER, async || {
        pair.a.admin().get(WIDGETS).await.code() == 200
    })
    .await;

    let watch = format!("{WIDGETS}?watch=1&allowWatchBookmarks=true&resourceVersion={seen}");
    assert_expired_at_a(pair, &watch).await;
    let clients = [admin.http1(), admin.http2()];
    let mut open = Vec::new();
    for client in &clients {
        let mut through = client.open(&watch).await;
        let event = through.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["object"]["metadata"]["name"], "missed", "{event}");
        open.push(through);
    }
    assert_eq!(expired(pair).await, [before[0] + 2.0, before[1]]);

    // They end with a last bookmark like any other. The next part starts the proxy again.
    pair.proxy_a.terminate().await;
    for watch in &mut open {
        let mut last = Value::Null;
        while let Some(event) = watch.next_event(LONG).await.unwrap() {
            last = event;
        }
        assert_eq!(last["type"], "BOOKMARK", "{last}");
    }
}

/// B's neither.
async fn where_no_cache_of_a_custom_resource_reaches_back(pair: &mut Pair, seen: &str) {
    let so_far = expired(pair).await;
    let admin = pair.admin();
    until_the_definition_is_known(pair).await;
    let before = seen.parse::<i64>().unwrap() - 1;
    pair.b.kill();
    pair.b.start_again();
    pair.b.wait_ready().await;
    eventually("B serves it again", LONGER, async || {
        let ready = pair.proxy_b.is_ready().await;
        ready && pair.b.admin().get(WIDGETS).await.code() == 200
    })
    .await;
    let watch = format!("{WIDGETS}?watch=1&resourceVersion={before}");
    let direct = pair.a.admin().get(&watch).await;
    let passed = admin.get(&watch).await;
    assert_eq!((passed.code(), passed.text()), (200, direct.text()));
    assert!(passed.text().contains("too old resource version"));
    assert_eq!(expired(pair).await, [so_far[0], so_far[1] + 1.0]);
}
