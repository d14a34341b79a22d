//! The key in etcd of a server that drains, and what peers send there because of it. The apiservers are doubles.

use std::time::Duration;

use serde_json::{Value, json};

use testkit::cluster::{Cluster, Ground, HPAS, HPAS_IN_DEFAULT, LONG, Single};
use testkit::double::{ServedResource, v1_20};
use testkit::process::Signal;
use testkit::proxy::{Proxy, ProxyOptions};
use testkit::wait::{eventually, holds};

const DRAINING: &str = "/kube-interop-proxy/registry/draining/";
const LIVE: &str = "/kube-interop-proxy/registry/live/";
/// Only A serves it.
const GIZMOS: &str = "/apis/gizmos.k8s.io/v1/namespaces/default/gizmos";
/// Above every revision of the test's etcd: each history is known to reach back.
const EARLY: u64 = 1000;

/// The only key of a server that drains: its name, value and revision.
async fn key(ground: &Ground) -> Option<(String, Value, i64)> {
    let keys = ground.etcd.below(DRAINING).await;
    assert!(keys.len() < 2, "{keys:?}");
    let key = keys.first()?;
    assert!(key.lease() != 0, "it would stay for ever");
    let name = key.key_str().unwrap().strip_prefix(DRAINING).unwrap();
    let value = serde_json::from_slice(key.value()).unwrap();
    Some((name.to_owned(), value, key.mod_revision()))
}

async fn lives(ground: &Ground, id: &str) -> bool {
    let live = ground.etcd.below(&format!("{LIVE}{id}")).await;
    !live.is_empty()
}

async fn until_history_is_known(proxy: &Proxy) -> i64 {
    eventually("the history is known", LONG, async || {
        let status = proxy.statusz().await;
        status["server"]["historyStart"]
            .as_i64()
            .ok_or(status.to_string())
    })
    .await
}

/// What is open at its beginning decides how long the drain takes.
fn long_drain(options: ProxyOptions) -> ProxyOptions {
    options
        .set("peer.leaseTTL", "6s")
        .set("shutdown.delay", "0s")
        .set("shutdown.drain", "1h")
}

async fn cluster() -> Cluster {
    let cluster = Cluster::with(v1_20(), long_drain).await;
    let gizmos = ServedResource::new("gizmos.k8s.io", "v1", "gizmos", "Gizmo");
    cluster.a.add_resource(gizmos);
    for double in [&cluster.a, &cluster.b] {
        while double.store().tick() < EARLY {}
    }
    eventually("B's proxy sends gizmos to A", LONG, async || {
        let client = cluster.proxy_b.client(&cluster.ground.pki).cert("admin");
        client.get(GIZMOS).await.code() == 200
    })
    .await;
    cluster
}

#[tokio::test]
async fn who_drains_says_so_until_its_apiserver_is_gone_or_the_proxy_ends() {
    let mut cluster = cluster().await;
    let start = until_history_is_known(&cluster.proxy_b).await;
    assert_eq!(key(&cluster.ground).await, None);
    // A serves it: it is open whatever B does.
    let client = cluster.proxy_b.client(&cluster.ground.pki).cert("admin");
    let open = client.open(&format!("{GIZMOS}?watch=true")).await;
    assert_eq!(open.status, 200);
    cluster.proxy_b.process().signal(Signal::Term);
    let written = eventually("B says that it drains", LONG, async || {
        key(&cluster.ground).await.ok_or("no key")
    })
    .await;
    let endpoint = cluster.proxy_b.addr().to_string();
    let value = |start| json!({"endpoint": endpoint, "historyStart": start});
    assert_eq!((&*written.0, &written.1), ("b", &value(start)));
    eventually("B is not live", LONG, async || {
        !lives(&cluster.ground, "b").await
    })
    .await;
    eventually("the key is rewritten", LONG, async || {
        let now = key(&cluster.ground).await;
        now.is_some_and(|(_, value, revision)| value == written.1 && revision > written.2)
    })
    .await;

    cluster.b.stop().await;
    eventually("the key goes with the apiserver", LONG, async || {
        key(&cluster.ground).await.is_none()
    })
    .await;
    assert!(cluster.proxy_b.process().exited().is_none(), "it drains");
    cluster.b.start_again().await;
    cluster.b.set_ready(true);
    let (_, again, _) = eventually("the next process has a history", LONG, async || {
        key(&cluster.ground).await.ok_or("no key")
    })
    .await;
    let start_again = again["historyStart"].as_i64().unwrap();
    assert!(start_again > start);
    assert_eq!(again, value(start_again));

    drop((open, client));
    let status = cluster.proxy_b.process().wait(LONG).await;
    assert_eq!(status.code(), Some(0));
    assert_eq!(key(&cluster.ground).await, None);
}

#[tokio::test]
async fn who_drains_gets_watches_that_nobody_else_has_the_history_of_and_nothing_else() {
    let mut cluster = cluster().await;
    until_history_is_known(&cluster.proxy_b).await;
    let of_b = cluster.proxy_b.client(&cluster.ground.pki).cert("admin");
    let open = of_b.open(&format!("{GIZMOS}?watch=true")).await;
    cluster.proxy_b.process().signal(Signal::Term);
    let state = async || {
        let status = cluster.proxy_a.statusz().await;
        let peer = &status["peers"][0];
        ["draining", "live", "target"].map(|field| peer[field] == true)
    };
    eventually("A knows that B drains", LONG, async || {
        state().await == [true, false, false]
    })
    .await;

    let before = cluster.b.count("/apis/autoscaling/v1/");
    let client = cluster.client().cert("admin");
    let seen = cluster.b.store().revision();
    for path in [
        HPAS.to_owned(),
        format!("{HPAS}/one"),
        format!("{HPAS}?watch=true"),
        format!("{HPAS}?watch=true&resourceVersion=0"),
    ] {
        let answer = client.get(&path).await;
        assert_eq!(answer.code(), 503, "{path}: {}", answer.text());
    }
    assert_eq!(cluster.b.count("/apis/autoscaling/v1/"), before);

    let watch = format!("{HPAS_IN_DEFAULT}?watch=true&resourceVersion={seen}");
    let mut through = client.open(&watch).await;
    assert_eq!(through.status, 200);
    let admin = testkit::client::Client::new(cluster.b.addr(), &cluster.ground.pki).cert("admin");
    let object = json!({"metadata": {"name": "new"}}).to_string();
    assert_eq!(
        admin.request("POST", HPAS_IN_DEFAULT, object).await.code(),
        201
    );
    let event = through.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "new");

    // Also while A still counts it as draining.
    cluster.b.stop().await;
    let answer = client.get(&watch).await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    drop(open);
}

#[tokio::test]
async fn a_history_of_another_etcd_is_told_to_nobody() {
    let mut world = Single::with(|options| long_drain(options).set("peer.leaseTTL", "2s")).await;
    until_history_is_known(&world.proxy).await;
    world.ground.etcd.back_up().await;
    let revision = async || {
        let mut client = world.ground.etcd.client().await;
        let put = client.put("/elsewhere", "x", None).await.unwrap();
        put.header().unwrap().revision()
    };
    let restored = revision().await;
    eventually("etcd goes on", LONG, async || {
        revision().await > restored + 20
    })
    .await;
    world.ground.etcd.restore().await;
    let record = async || {
        let records = "/kube-interop-proxy/registry/servers/";
        let records = world.ground.etcd.below(records).await;
        let record = records.first().map(|kv| kv.value().to_vec());
        String::from_utf8(record.unwrap_or_default()).unwrap()
    };
    eventually("its history is void", LONG, async || {
        let record = record().await;
        record.contains("historyVoid").then_some(()).ok_or(record)
    })
    .await;

    let client = world.client().cert("admin");
    let slow = tokio::spawn(async move { client.get("/_double/slow?ms=600000").await });
    eventually("it is at the apiserver", LONG, async || {
        world.double.count("/_double/slow") == 1
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    eventually("it is not live", LONG, async || {
        !lives(&world.ground, "a").await
    })
    .await;
    holds("no key", Duration::from_secs(3), async || {
        key(&world.ground).await.is_none()
    })
    .await;
    assert!(world.proxy.process().exited().is_none(), "it drains");
    slow.abort();
}
