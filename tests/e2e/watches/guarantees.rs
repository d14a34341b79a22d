//! What etcd guarantees of its watches, through proxies of two real kube-apiservers v1.20.2 that are restarted: against
//! etcd's own watch, and the comparison itself.

mod comparison;
mod redefined;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd_client::{EventType, KeyValue, PutOptions, Txn, TxnOp};
use futures_util::future::join_all;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::redefined::{Redefined, define_anew};
use self::watcher::Watcher;
use crate::watches::writing::Writing;
use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::etcd::Etcd;
use testkit::guarantees::{Data, Event, Kind};
use testkit::pair::Pair;

const PREFIX: &str = "/registry/configmaps/";
const NAMESPACES: [&str; 3] = ["", "default", "quiet"];
/// The last object that is written, in both namespaces.
const LAST: &str = "last";
/// Between two writes.
const PACE: Duration = Duration::from_millis(30);
/// Watch caches keep the changes of 75 seconds, and older ones only while they are not full.
const KEPT: Duration = Duration::from_secs(60);
/// How many watches from revisions of the past are opened.
const FROM_THE_PAST: usize = 40;

async fn pair() -> Pair {
    let pair = Pair::options().proxies(|options| {
        options
            .set("watch.bookmarkOnShutdown", "true")
            .set("watch.handOver", "true")
            .set("shutdown.drain", "1s")
            .env(
                "RUST_LOG",
                "info,kube_interop_proxy::watches::stored_here=debug",
            )
    });
    let pair = pair.start().await;
    pair.until_histories_are_known().await;
    pair
}

fn clients(pair: &Pair) -> [Client; 2] {
    [&pair.proxy_a, &pair.proxy_b].map(|proxy| proxy.client(&pair.ground.pki).cert("admin"))
}

/// Each restart while changes are written and watched: a proxy that is told to stop, the other one without a warning,
/// and an apiserver, whose history then begins anew, and during whose absence a definition is made anew.
/// Returns revisions, and when they were the newest ones, and the watch of what is defined.
async fn restart(pair: &mut Pair, writing: &Writing) -> (Vec<(Instant, i64)>, Redefined) {
    let mut revisions = Vec::new();
    let mut etcd = pair.ground.etcd.client().await;
    let mut more = async || {
        writing.more(4).await;
        let header = etcd.status().await.unwrap().header().cloned();
        revisions.push((Instant::now(), header.unwrap().revision()));
    };
    more().await;
    assert!(pair.proxy_a.terminate().await.success());
    more().await;
    pair.proxy_a.start_again().await;
    pair.proxy_b.kill();
    more().await;
    pair.proxy_b.start_again().await;
    pair.until_histories_are_known().await;
    let redefined = Redefined::watch(pair).await;
    pair.a.kill();
    more().await;
    define_anew(pair.b.admin()).await;
    pair.a.start_again();
    pair.a.wait_ready().await;
    more().await;
    redefined.create(pair).await;
    (revisions, redefined)
}

/// One object after the other through the API: created, changed, deleted.
async fn write_by_api(client: Client, writing: Arc<Writing>) {
    let collection = "/api/v1/namespaces/default/configmaps";
    for number in 0.. {
        if writing.stop.load(Ordering::Relaxed) {
            return;
        }
        let (round, step) = (number / 4, number % 4);
        let path = format!("{collection}/single-{round}");
        let object = object("default", &format!("single-{round}"), number).to_string();
        let answer = match step {
            0 => client.try_request("POST", collection, object).await,
            1 | 2 => client.try_request("PUT", &path, object).await,
            _ => client.try_request("DELETE", &path, "").await,
        };
        match answer {
            Ok(answer) if answer.code() < 300 => {
                _ = writing.written.fetch_add(1, Ordering::Relaxed);
            }
            // It may have been written or not: etcd tells.
            _ => client.reconnect().await,
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Several objects at one revision, which the API cannot do: written to etcd, some created, some changed, one deleted.
async fn write_transactions(mut etcd: etcd_client::Client, writing: Arc<Writing>) {
    for number in 0.. {
        if writing.stop.load(Ordering::Relaxed) {
            break;
        }
        let old = number % 3;
        let puts = (0..3)
            .filter(|it| *it != old)
            .map(|it| put("default", &format!("together-{it}"), number));
        let delete = TxnOp::delete(format!("{PREFIX}default/together-{old}"), None);
        let operations: Vec<_> = puts.chain([delete]).collect();
        etcd.txn(Txn::new().and_then(operations)).await.unwrap();
        tokio::time::sleep(PACE).await;
    }
    let last = ["default", "quiet"].map(|namespace| put(namespace, LAST, 0));
    etcd.txn(Txn::new().and_then(last)).await.unwrap();
}

fn put(namespace: &str, name: &str, number: usize) -> TxnOp {
    let object = object(namespace, name, number).to_string();
    TxnOp::put(
        format!("{PREFIX}{namespace}/{name}"),
        object,
        None::<PutOptions>,
    )
}

fn object(namespace: &str, name: &str, number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
        "data": {"number": number.to_string()}})
}

/// All changes from the first revision, as a watch of etcd tells them, up to the last objects.
async fn history(etcd: &Etcd) -> Vec<Event> {
    let mut watch = etcd.changes(PREFIX).await;
    let mut history: Vec<Event> = Vec::new();
    while !history.iter().any(|event| event.object == "quiet/last") {
        let message = watch.message().await.unwrap().unwrap();
        history.extend(message.events().iter().map(event));
    }
    history
}

fn event(event: &etcd_client::Event) -> Event {
    let kv = event.kv().unwrap();
    let (kind, of) = match (event.event_type(), event.prev_kv()) {
        (EventType::Put, None) => (Kind::Added, kv),
        (EventType::Put, Some(_)) => (Kind::Modified, kv),
        (EventType::Delete, before) => (Kind::Deleted, before.expect("what it was before")),
    };
    Event {
        revision: kv.mod_revision(),
        object: kv
            .key_str()
            .unwrap()
            .strip_prefix(PREFIX)
            .unwrap()
            .to_owned(),
        kind,
        data: data(of),
    }
}

/// The apiserver writes protobuf, this test JSON.
fn data(kv: &KeyValue) -> Data {
    let Some(envelope) = kv.value().strip_prefix(b"k8s\0") else {
        return data_of(&serde_json::from_slice(kv.value()).unwrap());
    };
    let unknown = Unknown::decode(envelope).unwrap();
    let object = k8s_pb::api::core::v1::ConfigMap::decode(unknown.raw()).unwrap();
    object.data.into_iter().collect()
}

fn data_of(object: &Value) -> Data {
    let data = object["data"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    data.map(|(key, value)| (key.clone(), text(value)))
        .collect()
}

/// Of both proxies and each namespace.
fn watchers(pair: &Pair, from: i64) -> Vec<Arc<Watcher>> {
    let of_client = |client: Client| {
        NAMESPACES.map(|namespace| Arc::new(Watcher::new(namespace, client.fresh(), from)))
    };
    clients(pair).into_iter().flat_map(of_client).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcds_guarantees_of_watches_hold_through_restarts_of_proxies_and_an_apiserver() {
    testkit::install_crypto_provider();
    let mut pair = pair().await;
    let client = pair.b.admin();
    let list = client.get("/api/v1/configmaps").await.json();
    let from: i64 = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let watchers = watchers(&pair, from);
    let mut watching = JoinSet::new();
    for watcher in &watchers {
        let watcher = watcher.clone();
        watching.spawn(async move { watcher.run().await });
    }
    let writing = Arc::new(Writing::default());
    let mut writers = JoinSet::new();
    writers.spawn(write_by_api(client.fresh(), writing.clone()));
    writers.spawn(write_transactions(
        pair.ground.etcd.client().await,
        writing.clone(),
    ));
    let (revisions, redefined) = restart(&mut pair, &writing).await;
    writing.stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    let history = tokio::time::timeout(LONG, history(&pair.ground.etcd));
    let history = history.await.expect("all of etcd's changes");
    let all = tokio::time::timeout(LONG, watching.join_all()).await;
    let mut wrong: Vec<_> = watchers
        .iter()
        .flat_map(|it| it.violations(&history))
        .collect();
    assert!(all.is_ok(), "not told everything; {wrong:?}");
    let bookmarks: usize = watchers.iter().map(|watcher| watcher.bookmarks()).sum();
    // On a slow machine the first changes are no longer kept.
    let kept = revisions.iter().find(|(at, _)| at.elapsed() < KEPT);
    let first = kept.or(revisions.last()).map(|(_, revision)| *revision);
    let first = first.filter(|_| revisions[0].0.elapsed() >= KEPT);
    let again = from_the_past(&pair, &history, first.unwrap_or(from)).await;
    assert!(!again.is_empty(), "no watch of the past");
    wrong.extend(again.iter().flat_map(|it| it.violations(&history)));
    println!(
        "{} events, {} watchers, {} watches of the past, {bookmarks} bookmarks: {} violations",
        history.len(),
        watchers.len(),
        again.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    redefined.assert_nothing_hidden().await;
}

/// Watches from revisions all over the history, of either proxy in turn, to its end.
async fn from_the_past(pair: &Pair, history: &[Event], first: i64) -> Vec<Arc<Watcher>> {
    let judged = history.iter().filter(|event| event.revision > first);
    let revisions: Vec<_> = judged.map(|event| event.revision).collect();
    let some = revisions
        .iter()
        .step_by(revisions.len() / FROM_THE_PAST + 1);
    let clients = clients(pair);
    let watchers: Vec<_> = (some.zip(clients.iter().cycle()))
        .map(|(revision, client)| Arc::new(Watcher::new("", client.fresh(), revision - 1)))
        .collect();
    let all = join_all(watchers.iter().map(|watcher| watcher.run()));
    tokio::time::timeout(LONG, all).await.expect("told all");
    watchers
}
