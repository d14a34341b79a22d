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
use crate::watches::resources::kube_client_at;
use testkit::client::Client;
use testkit::cluster::{Ground, REROUTED};
use testkit::double::kept::write;
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
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

#[tokio::test]
async fn informers_end_with_what_a_restored_etcd_holds() {
    informers_end_with_what_etcd_holds(false).await;
}

/// Their etcd watches go on as if nothing had been: it has been written to meanwhile.
#[tokio::test]
async fn also_if_the_proxies_see_etcd_only_when_it_has_come_as_far_again() {
    informers_end_with_what_etcd_holds(true).await;
}

async fn informers_end_with_what_etcd_holds(are_frozen: bool) {
    let mut ground = Ground::bootstrapped().await;
    let mut servers = [
        KubeApiServer::start(ground.kube("cp-a"), &ground.pki).await,
        KubeApiServer::start(ground.kube("cp-b"), &ground.pki).await,
    ];
    let proxy = |id, server: &KubeApiServer| {
        let options = ground.proxy(id, server.addr());
        Proxy::start(
            options
                .set("watch.bookmarkOnShutdown", "true")
                .until(Until::Ready),
        )
    };
    let (proxy_a, proxy_b) = tokio::join!(proxy("a", &servers[0]), proxy("b", &servers[1]));
    let mut proxies = [proxy_a, proxy_b];
    create(servers[0].admin(), "kept", KEPT).await;

    // The watches of A's clients begin at B, and stay there.
    servers[0].process().signal(Signal::Stop);
    let mut informers = JoinSet::new();
    let known: Vec<Names> = (0..INFORMERS).map(|_| Names::default()).collect();
    for (number, names) in known.iter().enumerate() {
        let address = proxies[number % proxies.len()].addr();
        let client = kube_client_at(address, &ground, "restored");
        informers.spawn(inform(names.clone(), client));
    }
    let all_know = async |ground: &Ground, what: &str| {
        eventually(what, LONGER, async || {
            let expected = in_etcd(ground).await;
            let wrong = known.iter().map(|names| names.lock().unwrap().clone());
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
    };
    all_know(&ground, "they know what is there").await;
    let of_maps = [("resource", "configmaps")];
    // Lists and watches.
    let are_sent_to_b = |count| count >= INFORMERS as f64;
    proxies[0]
        .until_metric(REROUTED, &of_maps, are_sent_to_b)
        .await;
    servers[0].process().signal(Signal::Cont);
    ground.etcd.back_up().await;
    let backed_up = write(
        &mut ground.etcd.client().await,
        "/registry/other",
        &json!(0),
    )
    .await;
    eventually("the apiserver writes again", LONGER, async || {
        let made = servers[0]
            .admin()
            .request("POST", MAPS, r#"{"metadata": {"name": "first"}}"#);
        matches!(made.await.code(), 201 | 409)
    })
    .await;
    create(servers[0].admin(), "lost", LOST).await;
    all_know(&ground, "they know what will be lost").await;

    // By these keys they notice.
    eventually("the proxies have written since", LONGER, async || {
        let keys = ground
            .etcd
            .below("/kube-interop-proxy/registry/live/")
            .await;
        let are_newer = keys.iter().all(|key| key.mod_revision() > backed_up);
        keys.len() == proxies.len() && are_newer
    })
    .await;
    if are_frozen {
        proxies.iter_mut().for_each(Proxy::stop);
    }
    ground.etcd.restore().await;
    // Written past the apiservers: these wait for revisions that etcd has not reached again.
    let mut etcd = ground.etcd.client().await;
    for number in 0..LATER {
        etcd.put("/registry/other", number.to_string(), None)
            .await
            .unwrap();
    }
    if are_frozen {
        proxies.iter_mut().for_each(Proxy::cont);
    }
    for proxy in &proxies {
        until_all_is_listed_again(proxy).await;
        eventually("both histories are void", LONGER, async || {
            let page = proxy.statusz().await;
            let known = [&page["server"], &page["peers"][0]];
            let are_void = known.iter().all(|it| it["historyStart"].is_null());
            are_void.then_some(()).ok_or(page)
        })
        .await;
    }
    for (server, prefix) in servers.iter_mut().zip(["a", "b"]) {
        server.stop().await;
        // An apiserver that starts at the very revision that the one before has delivered last goes on with its watches.
        etcd.put("/registry/other", prefix, None).await.unwrap();
        server.start_again();
        server.wait_ready().await;
        create(server.admin(), prefix, 2).await;
    }
    all_know(&ground, "they know what etcd holds").await;
    eventually("histories count again", LONGER, async || {
        let page = proxies[0].statusz().await;
        page["server"]["historyStart"].is_i64() && page["peers"][0]["historyStart"].is_i64()
    })
    .await;
    informers.shutdown().await;
}
