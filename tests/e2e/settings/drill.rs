//! The table of docs/troubleshooting.md, "Turn it off": each feature alone, and the whole proxy, with what clients see.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, assert_refused, patient};
use testkit::double::{Double, DoubleOptions, Phase, Store, v1_20};
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

use super::PODS;
use crate::routing::unsynced::without_etcd;
use crate::watches::bookmarks::{self, CONFIG_MAPS, Events, last_bookmark, watch_path};

const ASKED: &str = "X-Kubernetes-If-Ready";
const TOLD: &str = "x-kubernetes-ready";
const VERSION: &str = "X-Kubernetes-Compatibility-Version";

/// Sets a key and waits until it is in force.
async fn set(proxy: &mut Proxy, key: &str, value: &str) {
    proxy.reconfigure(key, value);
    proxy.until_setting(key, value).await;
}

async fn code(client: &Client, path: &str) -> u16 {
    client.get(path).await.code()
}

/// Whether the list of groups has what only B serves.
async fn lists_autoscaling(client: &Client) -> bool {
    let groups = client.get("/apis").await;
    assert_eq!(groups.code(), 200, "{}", groups.text());
    groups.text().contains("\"autoscaling\"")
}

#[tokio::test]
async fn if_ready() {
    let ground = Ground::new().await;
    let double = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
    let double = Double::start(double).await;
    let mut proxy = Proxy::start(ground.proxy("a", double.addr())).await;
    eventually("etcd is read", LONG, async || {
        proxy.statusz().await["etcd"]["synced"] == true
    })
    .await;
    let plain = proxy.client(&ground.pki).cert("admin");
    let asking = plain.header(ASKED, "1");
    assert_refused(&asking.get(PODS).await, "not initialized");

    set(&mut proxy, "ifReady.mode", "Annotate").await;
    let answer = asking.get(PODS).await;
    assert_eq!((answer.code(), answer.header(TOLD)), (200, "false"));

    double.take_requests();
    set(&mut proxy, "ifReady.enabled", "false").await;
    let answer = asking.get(PODS).await;
    assert!(answer.code() == 200 && !answer.headers.contains_key(TOLD));
    let seen = double.requests();
    let seen = seen.iter().find(|request| request.path == PODS).unwrap();
    assert_eq!(seen.header("x-kubernetes-if-ready"), "1");

    proxy.changed_config("ifReady.enabled", "true");
    proxy.changed_config("ifReady.mode", "Retry");
    set(&mut proxy, "ifReady.enforce", "Always").await;
    assert_refused(&plain.get(PODS).await, "not initialized");
    set(&mut proxy, "ifReady.enforce", "OptIn").await;
    assert_eq!(code(&plain, PODS).await, 200);
}

#[tokio::test]
async fn rerouting() {
    let mut cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    for _ in 0..2 {
        assert_eq!(code(&admin, HPAS).await, 200);
        assert!(lists_autoscaling(&admin).await);
        set(&mut cluster.proxy_a, "rerouting.enabled", "false").await;
        assert_eq!(code(&admin, HPAS).await, 404, "A's own answer");
        assert!(!lists_autoscaling(&admin).await);
        assert_eq!(code(&admin, PODS).await, 200);
        set(&mut cluster.proxy_a, "rerouting.enabled", "true").await;
    }
    // The first answers after the change are whole already.
    assert_eq!(code(&admin, HPAS).await, 200);
    assert!(lists_autoscaling(&admin).await);
    // The same if it starts so.
    set(&mut cluster.proxy_a, "rerouting.enabled", "false").await;
    cluster.proxy_a.terminate().await;
    cluster.proxy_a.start_again().await;
    assert_eq!(code(&admin.fresh(), HPAS).await, 404);
}

#[tokio::test]
async fn merged_discovery() {
    let mut cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    assert!(lists_autoscaling(&admin).await);
    for other in ["Local", "Newest", "Local"] {
        set(&mut cluster.proxy_a, "discovery.mode", other).await;
        assert!(!lists_autoscaling(&admin).await, "{other}");
        assert_eq!(code(&admin, HPAS).await, 200, "requests are still rerouted");
        set(&mut cluster.proxy_a, "discovery.mode", "Merged").await;
        assert!(lists_autoscaling(&admin).await, "at once, after {other}");
    }
    eventually("B's documents are read again", LONG, async || {
        let discovery = &cluster.proxy_a.statusz().await["discovery"];
        let read = discovery["sources"][0]["state"] == "read" && discovery["current"] == true;
        read.then_some(()).ok_or(discovery.clone())
    })
    .await;
}

#[tokio::test]
async fn refusals_while_etcd_was_not_read() {
    let (_dir, pki, _double, mut proxy, _silent) = without_etcd("Reject").await;
    let admin = proxy.client(&pki).cert("admin");
    assert_refused(&admin.get(PODS).await, "not known yet");
    assert_refused(&admin.get("/apis").await, "not known yet");
    set(&mut proxy, "rerouting.unsynced", "ServeLocal").await;
    assert_eq!(code(&admin, PODS).await, 200);
    assert_eq!(code(&admin, "/apis").await, 200);
    set(&mut proxy, "rerouting.unsynced", "Reject").await;
    assert_refused(&admin.get(PODS).await, "not known yet");
}

#[tokio::test]
async fn version_awareness() {
    let mut cluster = Cluster::new().await;
    let asking = cluster.client().cert("admin").header(VERSION, "none");
    for _ in 0..2 {
        assert_eq!(code(&asking, PODS).await, 400);
        set(&mut cluster.proxy_a, "versionAwareness.enabled", "false").await;
        assert_eq!(code(&asking, PODS).await, 200);
        set(&mut cluster.proxy_a, "versionAwareness.enabled", "true").await;
    }
}

#[tokio::test]
async fn resume_routing() {
    const DEFAULT_PODS: &str = "/api/v1/namespaces/default/pods";
    let ground = Ground::new().await;
    let store = Store::new();
    let double = || Double::start(DoubleOptions::new(ground.pki.dir(), v1_20()).store(&store));
    let (a, b) = (double().await, double().await);
    let proxy = |id, double: &Double| {
        Proxy::start(patient(ground.proxy(id, double.addr())).until(Until::Ready))
    };
    let (mut proxy_a, _proxy_b) = tokio::join!(proxy("a", &a), proxy("b", &b));
    eventually("A's proxy knows B", LONG, async || {
        let status = proxy_a.statusz().await;
        let known = status["server"]["historyStart"].is_i64()
            && status["peers"][0]["target"] == true
            && status["peers"][0]["known"] == true;
        known.then_some(()).ok_or(status["peers"].clone())
    })
    .await;
    // Above every revision of the test's etcd: both histories are known to reach back.
    while store.tick() < 1000 {}
    let from = store.revision();
    let direct = Client::new(b.addr(), &ground.pki).cert("admin");
    let object = json!({"metadata": {"name": "missed"}}).to_string();
    assert_eq!(
        direct.request("POST", DEFAULT_PODS, object).await.code(),
        201
    );
    a.set_history_start(store.revision() + 1);

    let admin = proxy_a.client(&ground.pki).cert("admin");
    let path = format!("{DEFAULT_PODS}?watch=true&resourceVersion={from}");
    let first_event = async || -> Value {
        let mut watch = admin.open(&path).await;
        watch.next_event(LONG).await.unwrap().unwrap()
    };
    for _ in 0..2 {
        assert_eq!(first_event().await["object"]["metadata"]["name"], "missed");
        set(&mut proxy_a, "watch.resumeRouting", "false").await;
        assert_eq!(first_event().await["object"]["code"], 410);
        set(&mut proxy_a, "watch.resumeRouting", "true").await;
    }
}

#[tokio::test]
async fn last_bookmarks() {
    let ground = Ground::bootstrapped().await;
    let server = KubeApiServer::start(ground.kube("cp-a"), &ground.pki).await;
    let admin = server.admin();
    let mut proxy = bookmarks::proxy(&ground, &server, "8s").await;
    bookmarks::write(admin, CONFIG_MAPS, "a", &json!({})).await;
    let from = bookmarks::list_revision(admin, CONFIG_MAPS).await;
    let client = proxy.client(&ground.pki).cert("admin");

    // A watch that is open already gets none either.
    let watch = Events::open(&client, &watch_path(CONFIG_MAPS, from)).await;
    set(&mut proxy, "watch.bookmarkOnShutdown", "false").await;
    proxy.process().signal(Signal::Term);
    let (seen, _) = watch.rest().await;
    assert_eq!(last_bookmark(&seen), None, "{seen:?}");
    assert_eq!(proxy.process().wait(2 * LONG).await.code(), Some(0));

    proxy.start_again().await;
    client.reconnect().await;
    set(&mut proxy, "watch.bookmarkOnShutdown", "true").await;
    let watch = Events::open(&client, &watch_path(CONFIG_MAPS, from)).await;
    proxy.process().signal(Signal::Term);
    let (seen, _) = watch.rest().await;
    assert!(
        last_bookmark(&seen).is_some(),
        "{seen:?}\n{}",
        proxy.log_tail()
    );
}

#[tokio::test]
async fn bare_servers_after_a_restart() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    registry.advertise(b.addr()).await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let options = ground.proxy("a", a.addr()).until(Until::Ready);
    let mut proxy = Proxy::start(options).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    let until = async |expected: u16| {
        let what = format!("{HPAS} is {expected}");
        let expected = async || code(&admin, HPAS).await == expected;
        eventually(&what, 2 * LONG, expected).await;
    };
    until(200).await;
    proxy.reconfigure("rerouting.bareServers", "Ignore");
    eventually("it is said that this takes a restart", LONG, async || {
        let config = &proxy.statusz().await["config"];
        config["needsRestart"] == json!(["rerouting.bareServers: Auto -> Ignore"])
    })
    .await;
    // A busy machine may keep B from answering in time now and then.
    until(200).await;
    proxy.terminate().await;
    let before = b.accepted_connections();
    proxy.start_again().await;
    admin.reconnect().await;
    until(404).await;
    holds("nobody serves it", Duration::from_secs(1), async || {
        let code = code(&admin, HPAS).await;
        (code == 404).then_some(()).ok_or(code)
    })
    .await;
    assert_eq!(b.accepted_connections(), before);
    assert_eq!(code(&admin, PODS).await, 200);
}

/// A's proxy goes, and its apiserver gets the address back.
#[tokio::test]
async fn the_whole_proxy() {
    let mut cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    assert_eq!(code(&admin, HPAS).await, 200);
    let at_b = cluster.proxy_b.client(&cluster.ground.pki).cert("admin");
    cluster.proxy_a.terminate().await;
    let mut options = DoubleOptions::new(
        cluster.ground.pki.dir(),
        v1_20().without_group("autoscaling"),
    );
    options.listen = Some(cluster.proxy_a.addr());
    let bare = Double::start(options).await;
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    registry.advertise(bare.addr()).await;

    // Its clients see what they saw before there was a proxy.
    admin.reconnect().await;
    assert_eq!(code(&admin, PODS).await, 200);
    assert_eq!(code(&admin, HPAS).await, 404);
    // For B's it is a bare server.
    eventually("B's proxy asks A's apiserver itself", LONG, async || {
        let peers = cluster.proxy_b.statusz().await["peers"].clone();
        let all = peers.as_array().into_iter().flatten();
        let found = all.filter(|peer| peer["bare"] == true && peer["target"] == true);
        (found.count() == 1).then_some(()).ok_or(peers)
    })
    .await;
    for path in [PODS, HPAS] {
        assert_eq!(code(&at_b, path).await, 200, "{path}");
    }
}
