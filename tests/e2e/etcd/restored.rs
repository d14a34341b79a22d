//! An etcd that returns with an earlier state, or as another etcd: the proxy drops what etcd has lost, and keeps what
//! is still true.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::KeyValue;
use serde_json::json;

use crate::etcd::following::{Following, LISTED, SERVERS};
use crate::etcd::outages::{LISTS, asking};
use crate::etcd::reconnecting::ids;
use crate::watches::compaction::{is_local, topics};
use testkit::cluster::{Cluster, HPAS, LONG};
use testkit::double::{Double, ServedResource, v1_20};
use testkit::proxy::Proxy;
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::streaming::Streaming;
use testkit::wait::eventually;

const PODS: &str = "/api/v1/pods";
const RESTORES: &str = "kube_interop_proxy_etcd_restores_total";

/// What B alone serves may be refused for a moment, but is never nobody's.
fn never_a_404(cluster: &Cluster) -> Steady {
    let client = cluster.client().cert("admin").fresh();
    Steady::start("200 or 503", Duration::from_millis(50), 2000, move || {
        let client = client.clone();
        async move {
            match client.try_get(HPAS).await.map(|answer| answer.code()) {
                Ok(200 | 503) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        }
    })
}

/// Every prefix was found to be another and listed again once more.
async fn is_listed_again(proxy: &Proxy, prefixes: f64) {
    eventually("every prefix is listed again", LONG, async || {
        let (lists, restores) = (
            proxy.metric(LISTS, &[]).await,
            proxy.metric(RESTORES, &[]).await,
        );
        if (lists, restores) == (2.0 * prefixes, prefixes) {
            Ok(())
        } else {
            Err(format!("{lists} lists, {restores} restores"))
        }
    })
    .await;
}

#[tokio::test]
async fn what_an_etcd_restored_from_a_backup_has_forgotten_is_forgotten() {
    let mut cluster = Cluster::with(v1_20(), |options| options).await;
    let things = ServedResource::new("w.example", "v1", "things", "Thing");
    cluster.a.add_resource(things);
    let registry = |client| Registry::new(client, "/registry");
    let old = registry(cluster.ground.etcd.client().await);
    old.put_record("kept", 20001, "w.example/v1", &[]).await;
    cluster.ground.etcd.back_up().await;

    let old = registry(cluster.ground.etcd.client().await);
    for number in 0..200 {
        old.put("/registry/pods/default/other", &number.to_string())
            .await;
    }
    old.put_record("lost", 20002, "w.example/v1", &[]).await;
    old.put_definition("things.w.example").await;
    eventually("A knows all of it", LONG, async || {
        let status = cluster.proxy_a.statusz().await;
        ids(&status) == ["b", "kept", "lost"] && !is_local(&status, "w.example", "things")
    })
    .await;
    let lost = old.put("/registry/pods/default/other", "last").await;
    eventually("all watches have come so far", LONG, async || {
        let topics = topics(&cluster.proxy_a.statusz().await);
        topics.values().all(|(revision, _)| *revision >= lost)
    })
    .await;
    let prefixes = cluster.proxy_a.metric(LISTS, &[]).await;
    assert_eq!(cluster.proxy_a.metric(RESTORES, &[]).await, 0.0);
    let local = asking(&cluster.client().cert("admin"), "/api/v1/pods");
    let rerouted = never_a_404(&cluster);

    cluster.ground.etcd.restore().await;
    is_listed_again(&cluster.proxy_a, prefixes).await;
    eventually("A knows what is true now", LONG, async || {
        let status = cluster.proxy_a.statusz().await;
        ids(&status) == ["b", "kept"] && is_local(&status, "w.example", "things")
    })
    .await;
    let page = cluster.proxy_a.statusz().await;
    assert!(page["etcd"]["revision"].as_i64() < Some(lost), "{page:#}");
    cluster.until_a_knows("b", "autoscaling").await;
    let restored = registry(cluster.ground.etcd.client().await);
    restored.put_record("new", 20003, "w.example/v1", &[]).await;
    eventually("changes arrive", LONG, async || {
        ids(&cluster.proxy_a.statusz().await) == ["b", "kept", "new"]
    })
    .await;
    local.stop().await;
    rerouted.stop().await;
    is_listed_again(&cluster.proxy_a, prefixes).await;
}

/// Both apiservers ran while etcd was restored.
async fn restored() -> Cluster {
    let mut cluster = Cluster::new().await;
    restore(&mut cluster).await;
    cluster
}

async fn restore(cluster: &mut Cluster) {
    let etcd = &mut cluster.ground.etcd;
    etcd.back_up().await;
    let registry = Registry::new(etcd.client().await, "/registry");
    let before = registry.put("/registry/other", "lost").await;
    // By these keys they notice.
    let live = "/kube-interop-proxy/registry/live/";
    eventually("the proxies have written since", LONG, async || {
        let keys = etcd.below(live).await;
        keys.len() == 2 && keys.iter().all(|key| key.mod_revision() > before)
    })
    .await;
    let before = [
        topics(&cluster.proxy_a.statusz().await),
        topics(&cluster.proxy_b.statusz().await),
    ];
    etcd.restore().await;
    let records = "/kube-interop-proxy/registry/servers/";
    eventually("both histories are void", LONG, async || {
        let is_void = |kv: &KeyValue| String::from_utf8_lossy(kv.value()).contains("historyVoid");
        let records = etcd.below(records).await;
        records.len() == 2 && records.iter().all(is_void)
    })
    .await;
    // Whoever notices later takes what was written until then for restored.
    let proxies = [&cluster.proxy_a, &cluster.proxy_b];
    for (proxy, before) in proxies.into_iter().zip(&before) {
        until_all_is_listed_again(proxy, before).await;
    }
}

/// All that follow etcd have noticed that it was restored. `before`: the topics as they were.
pub async fn until_all_is_listed_again(proxy: &Proxy, before: &BTreeMap<String, (i64, u64)>) {
    eventually("all is listed again", LONG, async || {
        let topics = topics(&proxy.statusz().await);
        let mut each = topics.iter();
        each.all(|(name, (_, lists))| *lists > before[name].1)
    })
    .await;
}

/// A new process, as its proxy sees it.
async fn restart(double: &mut Double, proxy: &Proxy) {
    double.stop().await;
    eventually("its proxy has noticed", LONG, async || {
        proxy.statusz().await["server"]["initialized"] == false
    })
    .await;
    double.start_again().await;
    double.set_ready(true);
}

/// A newer apiserver lists then what etcd has lost, at a revision of the restored etcd, and an informer would go on from
/// there at A's when it has started again.
#[tokio::test]
async fn a_list_of_what_the_local_apiserver_serves_does_not_go_to_one_with_a_lost_history() {
    let mut cluster = restored().await;
    let client = cluster.client().cert("admin");
    assert_eq!(client.get(PODS).await.code(), 200);
    cluster.a.stop().await;
    eventually("A's proxy has seen the record", LONG, async || {
        client.get(PODS).await.code() == 503
    })
    .await;
    let refused = client.get(PODS).await;
    assert_ne!(refused.header("retry-after"), "", "{}", refused.text());
    // Nobody would go on from there but B itself.
    assert_eq!(client.get(HPAS).await.code(), 200);

    restart(&mut cluster.b, &cluster.proxy_b).await;
    eventually("B's history counts again", LONG, async || {
        client.get(PODS).await.code() == 200
    })
    .await;
}

/// What it was told last has a revision from which a server with the present history would go on: the one that has started again,
/// or another one behind a load balancer.
#[tokio::test]
async fn who_was_told_of_a_lost_history_lists_anew_when_its_watch_ends() {
    let mut cluster = Cluster::new().await;
    let client = cluster.client().cert("admin");
    let watch = async |path: &str, accept: &str| {
        let path = format!("{path}?watch=true&resourceVersion=1");
        client.header("accept", accept).open(&path).await
    };
    let json = "application/json";
    let mut ended = watch(PODS, json).await;
    let mut at_b = watch(HPAS, json).await;
    restore(&mut cluster).await;

    let is_told = async |watch: &mut Streaming| {
        let told = watch.next_event(LONG).await.unwrap().expect("an event");
        let error = (
            &told["type"],
            &told["object"]["code"],
            &told["object"]["reason"],
        );
        assert_eq!(json!(error), json!(["ERROR", 410, "Expired"]));
        assert_eq!(watch.next_event(LONG).await.unwrap(), None);
    };
    cluster.a.end_watches();
    is_told(&mut ended).await;
    // A list may come from its watch cache, with what etcd has lost.
    let mut later = watch(PODS, json).await;
    cluster.a.end_watches();
    is_told(&mut later).await;

    let mut stopped = watch(PODS, json).await;
    let mut protobuf = watch(PODS, "application/vnd.kubernetes.protobuf;stream=watch").await;
    cluster.a.stop().await;
    is_told(&mut stopped).await;
    let event = protobuf.next_chunk(LONG).await.unwrap().expect("an event");
    assert!(
        String::from_utf8_lossy(&event).contains("Expired"),
        "{event:?}"
    );
    cluster.b.stop().await;
    is_told(&mut at_b).await;
    let told = [("reason", "history_lost")];
    let told = cluster
        .proxy_a
        .metric("kube_interop_proxy_refusals_total", &told);
    assert_eq!(told.await, 5.0);

    restart(&mut cluster.a, &cluster.proxy_a).await;
    eventually("A's history counts", LONG, async || {
        cluster.proxy_a.statusz().await["server"]["historyStart"].is_i64()
    })
    .await;
    let mut present = client.open(&format!("{PODS}?watch=true")).await;
    cluster.a.end_watches();
    assert_eq!(present.next_event(LONG).await.unwrap(), None);
}

/// A's proxy starts again with its apiserver, as a sidecar does, and knows the lost history only by its record.
#[tokio::test]
async fn a_watch_of_a_lost_history_does_not_go_elsewhere_after_its_proxy_has_restarted() {
    let mut cluster = restored().await;
    restart(&mut cluster.b, &cluster.proxy_b).await;
    let start = async |proxy: &Proxy| proxy.statusz().await["server"]["historyStart"].as_i64();
    eventually("B's history counts again", LONG, async || {
        start(&cluster.proxy_b).await.is_some()
    })
    .await;
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    let since = registry.put("/registry/other", "seen").await;

    assert!(cluster.proxy_a.terminate().await.success());
    cluster.a.stop().await;
    cluster.a.start_again().await;
    cluster.a.set_ready(true);
    registry.put("/registry/other", "missed").await;
    cluster.proxy_a.start_again().await;
    eventually(
        "A's history begins later, and B's before",
        LONG,
        async || {
            let status = cluster.proxy_a.statusz().await;
            let of_b = status["peers"][0]["historyStart"].as_i64();
            let known = start(&cluster.proxy_a).await > Some(since) && of_b <= Some(since);
            (known && of_b.is_some()).then_some(()).ok_or(status)
        },
    )
    .await;
    let (at_a, at_b) = (cluster.a.count(PODS), cluster.b.count(PODS));
    let watch = format!("{PODS}?watch=true&resourceVersion={since}");
    let client = cluster.client().cert("admin");
    assert_eq!(client.open(&watch).await.status, 200);
    assert_eq!(
        (cluster.a.count(PODS), cluster.b.count(PODS)),
        (at_a + 1, at_b)
    );
}

#[tokio::test]
async fn another_cluster_is_listed_whatever_its_revision() {
    let following = Following::start("3.6.0").await;
    following.put_record("lost", 20001);
    following.until_known(&["lost"]).await;
    let prefixes = following.proxy.metric(LISTS, &[]).await;
    following.etcd.replace(2, LISTED + 1000);
    let new = following.put_record("new", 20002);
    is_listed_again(&following.proxy, prefixes).await;
    following.until_known(&["new"]).await;
    let later = following.put_record("later", 20003);
    following.until_known(&["later", "new"]).await;
    assert!(new < later);
}

#[tokio::test]
async fn a_member_that_lags_behind_is_no_restored_etcd() {
    let following = Following::start("3.6.0").await;
    let known = following.put_record("known", 20001);
    following.until_known(&["known"]).await;
    let prefixes = following.proxy.metric(LISTS, &[]).await;
    following.etcd.lag(50);
    following.etcd.cut();
    eventually("records are watched again", LONG, async || {
        following.etcd.asked(SERVERS).watched_from == [LISTED + 1, known + 1]
    })
    .await;
    following.put_record("later", 20002);
    following.until_known(&["known", "later"]).await;
    // A list that is made meanwhile stays counted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(following.proxy.metric(LISTS, &[]).await, prefixes);
    assert_eq!(following.proxy.metric(RESTORES, &[]).await, 0.0);
}
