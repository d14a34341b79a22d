//! etcd is restored from a backup, and real kube-apiservers v1.20.2 are restarted one after the other: informers through
//! the proxies end with what etcd holds. An apiserver that was not restarted yet has the old history: it would serve on a
//! watch that a restarted one answers with 410, and its client would keep what etcd has lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;

use crate::etcd::restored::until_all_is_listed_again;
use crate::routing::real_apiservers::LONGER;
use crate::watches::compaction::topics;
use crate::watches::resources::kube_client_at;
use testkit::client::Client;
use testkit::cluster::{Ground, REROUTED};
use testkit::double::kept::write;
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const KEPT: usize = 6;
const LOST: usize = 40;
/// Writes after the restore: etcd's revision passes that of before.
const LATER: usize = 200;
const INFORMERS: usize = 4;

type Names = Arc<Mutex<BTreeSet<String>>>;

/// Keeps the names of all objects, as it is told.
async fn inform(names: Names, client: kube::Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let config = watcher::Config::default();
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let mut names = names.lock().unwrap();
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => drop(listed.insert(object.name_any())),
            Ok(watcher::Event::InitDone) => names.clone_from(&listed),
            Ok(watcher::Event::Apply(object)) => drop(names.insert(object.name_any())),
            Ok(watcher::Event::Delete(object)) => drop(names.remove(&object.name_any())),
            Err(_) => {}
        }
    }
}

async fn create(admin: &Client, prefix: &str, count: usize) {
    for number in 0..count {
        let object = json!({"metadata": {"name": format!("{prefix}-{number}")}});
        let made = admin.request("POST", MAPS, object.to_string()).await;
        assert_eq!(made.code(), 201, "{}", made.text());
    }
}

async fn in_etcd(ground: &Ground) -> BTreeSet<String> {
    let prefix = "/registry/configmaps/default/";
    let keys = ground.etcd.below(prefix).await;
    let names = keys.iter().map(|kv| kv.key_str().unwrap());
    names.map(|key| key[prefix.len()..].to_owned()).collect()
}

struct Informers {
    known: Vec<Names>,
    tasks: JoinSet<()>,
}

impl Informers {
    async fn all_know(&self, ground: &Ground, what: &str) {
        eventually(what, LONGER, async || {
            let expected = in_etcd(ground).await;
            let wrong = self.known.iter().map(|names| names.lock().unwrap().clone());
            let wrong: Vec<_> = wrong
                .enumerate()
                .filter(|(_, names)| *names != expected)
                .collect();
            match wrong.is_empty() {
                true => Ok(()),
                false => Err(format!("{expected:?}, but {wrong:?}")),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn informers_end_with_what_a_restored_etcd_holds() {
    let pair = Pair::options().proxies(|options| options.set("watch.bookmarkOnShutdown", "true"));
    let mut pair = pair.start().await;
    informers_end_with_what_etcd_holds(&mut pair, false).await;
    // The proxies see etcd only when it has come as far again: their etcd watches go on as if nothing had been.
    informers_end_with_what_etcd_holds(&mut pair, true).await;
}

/// `are_frozen`: whether the proxies are while etcd is restored, until it has come as far again.
async fn informers_end_with_what_etcd_holds(pair: &mut Pair, are_frozen: bool) {
    let round = if are_frozen { "frozen" } else { "awake" };
    create(pair.a.admin(), &format!("kept-{round}"), KEPT).await;
    let mut informers = informed_by_b(pair).await;
    back_up_and_write(pair, &informers).await;
    restore(pair, are_frozen).await;
    restart_one_after_the_other(pair, round).await;
    informers
        .all_know(&pair.ground, "they know what etcd holds")
        .await;
    pair.until_histories_are_known().await;
    informers.tasks.shutdown().await;
}

/// The watches of A's clients begin at B, and stay there.
async fn informed_by_b(pair: &mut Pair) -> Informers {
    let of_maps = [("resource", "configmaps")];
    let before = pair.proxy_a.metric(REROUTED, &of_maps).await;
    pair.a.process().signal(Signal::Stop);
    let mut tasks = JoinSet::new();
    let known: Vec<Names> = (0..INFORMERS).map(|_| Names::default()).collect();
    for (names, proxy) in known.iter().zip(proxies(pair).into_iter().cycle()) {
        let client = kube_client_at(proxy.addr(), &pair.ground, "restored");
        tasks.spawn(inform(names.clone(), client));
    }
    let informers = Informers { known, tasks };
    informers
        .all_know(&pair.ground, "they know what is there")
        .await;
    // Lists and watches.
    let are_sent_to_b = |count| count >= before + INFORMERS as f64;
    pair.proxy_a
        .until_metric(REROUTED, &of_maps, are_sent_to_b)
        .await;
    pair.a.process().signal(Signal::Cont);
    informers
}

fn proxies(pair: &Pair) -> [&Proxy; 2] {
    [&pair.proxy_a, &pair.proxy_b]
}

/// What is written here will be lost.
async fn back_up_and_write(pair: &mut Pair, informers: &Informers) {
    let etcd = &mut pair.ground.etcd;
    etcd.back_up().await;
    let backed_up = write(&mut etcd.client().await, "/registry/other", &json!(0)).await;
    let admin = pair.a.admin();
    eventually("the apiserver writes again", LONGER, async || {
        let made = admin.request("POST", MAPS, r#"{"metadata": {"name": "first"}}"#);
        matches!(made.await.code(), 201 | 409)
    })
    .await;
    create(admin, "lost", LOST).await;
    informers
        .all_know(&pair.ground, "they know what will be lost")
        .await;
    // By these keys they notice.
    eventually("the proxies have written since", LONGER, async || {
        let live = "/kube-interop-proxy/registry/live/";
        let keys = pair.ground.etcd.below(live).await;
        let are_newer = keys.iter().all(|key| key.mod_revision() > backed_up);
        keys.len() == proxies(pair).len() && are_newer
    })
    .await;
}

async fn restore(pair: &mut Pair, are_frozen: bool) {
    let mut before = Vec::new();
    for proxy in proxies(pair) {
        before.push(topics(&proxy.statusz().await));
    }
    if are_frozen {
        pair.proxy_a.stop();
        pair.proxy_b.stop();
    }
    pair.ground.etcd.restore().await;
    // Written past the apiservers: these wait for revisions that etcd has not reached again.
    let mut etcd = pair.ground.etcd.client().await;
    for number in 0..LATER {
        etcd.put("/registry/other", number.to_string(), None)
            .await
            .unwrap();
    }
    if are_frozen {
        pair.proxy_a.cont();
        pair.proxy_b.cont();
    }
    for (proxy, before) in proxies(pair).into_iter().zip(&before) {
        until_all_is_listed_again(proxy, before).await;
        eventually("both histories are void", LONGER, async || {
            let page = proxy.statusz().await;
            let known = [&page["server"], &page["peers"][0]];
            let are_void = known.iter().all(|it| it["historyStart"].is_null());
            are_void.then_some(()).ok_or(page)
        })
        .await;
    }
}

async fn restart_one_after_the_other(pair: &mut Pair, round: &str) {
    let mut etcd = pair.ground.etcd.client().await;
    for (server, id) in [(&mut pair.a, "a"), (&mut pair.b, "b")] {
        server.stop().await;
        // An apiserver that starts at the very revision that the one before has delivered last goes on with its watches.
        etcd.put("/registry/other", id, None).await.unwrap();
        server.start_again();
        server.wait_ready().await;
        create(server.admin(), &format!("{id}-{round}"), 2).await;
    }
}
