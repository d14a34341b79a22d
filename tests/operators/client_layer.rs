//! The client layer with kube-rs, as in `crates/if-ready/examples/kube-rs`: with a proxy whose apiserver is starting,
//! and with servers that ask it to wait or break the connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Mutex;

use futures_util::TryStreamExt as _;
use http::Request;
use if_ready::is_ready;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};

use testkit::cluster::{Ground, LONG, Single};
use testkit::double::{Double, DoubleOptions, Fault, Phase, v1_20};
use testkit::pki::Pki;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

#[allow(dead_code, reason = "its main() is for people")]
#[path = "../../crates/if-ready/examples/kube-rs/main.rs"]
mod example;

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// An apiserver that is not initialized yet, and its proxy, which says so to those who ask.
pub struct Starting {
    pub double: Double,
    pub proxy: Proxy,
    pub ground: Ground,
}

impl Starting {
    pub async fn new() -> Self {
        let ground = Ground::new().await;
        let options = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
        let double = Double::start(options).await;
        let options = ground
            .proxy("a", double.addr())
            .set("ifReady.retryAfterSeconds", "1")
            .set("ifReady.retryAfterJitterSeconds", "0");
        let proxy = Proxy::start(options.until(Until::Live)).await;
        eventually("etcd is read", LONG, async || {
            proxy.statusz().await["etcd"]["synced"] == true
        })
        .await;
        Self {
            double,
            proxy,
            ground,
        }
    }

    /// Waits until so many requests were told to wait; then it is initialized.
    pub async fn initialize_after(&self, refusals: u32) {
        let labels = [("reason", "not_initialized")];
        eventually("clients are told to wait", LONG, async || {
            let metric = "kube_interop_proxy_refusals_total";
            self.proxy.metric(metric, &labels).await >= f64::from(refusals)
        })
        .await;
        assert_eq!(self.double.count(CONFIG_MAPS), 0, "nothing reaches it");
        self.double.set_ready(true);
    }
}

/// The administrator's.
pub fn kubeconfig(pki: &Pki, addr: SocketAddr) -> PathBuf {
    let path = pki.path("kubeconfig");
    std::fs::write(&path, pki.kubeconfig(addr)).unwrap();
    path
}

/// The example's client, as the administrator.
async fn client(addr: SocketAddr, pki: &Pki) -> kube::Client {
    let file = Kubeconfig::read_from(kubeconfig(pki, addr)).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options);
    example::client(config.await.unwrap()).unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    let text = "\u{e4} \"and\" more, ".repeat(1000);
    object.data = Some(BTreeMap::from([("text".to_owned(), text)]));
    object
}

/// The status of what kube takes for an error.
fn status<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_asks_a_starting_server_gets_one_answer_once_it_is_initialized() {
    let starting = Starting::new().await;
    let client = client(starting.proxy.addr(), &starting.ground.pki).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let (post, list) = (PostParams::default(), ListParams::default());
    let object = config_map("made");
    let (made, listed, ()) = tokio::join!(
        api.create(&post, &object),
        api.list(&list),
        starting.initialize_after(2),
    );
    assert_eq!(made.unwrap().data, object.data);
    listed.unwrap();
    let arrived = starting.double.requests();
    let posts = arrived.iter().filter(|request| request.method == "POST");
    assert_eq!(posts.count(), 1);
    let answer = Request::get("/api").body(Body::empty()).unwrap();
    let answer = client.send(answer).await.unwrap();
    assert_eq!(is_ready(answer.headers()), Some(true));
}

#[tokio::test]
async fn a_write_that_is_told_to_wait_is_repeated_with_its_body() {
    let single = Single::new().await;
    let client = client(single.proxy.addr(), &single.ground.pki).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for (code, name) in [(429, "a"), (500, "b"), (503, "c")] {
        let fault = Fault::Status(code, Some(1));
        single.double.set_fault(CONFIG_MAPS, Some(fault));
        let object = config_map(name);
        let post = PostParams::default();
        let heal = async {
            eventually("it was told to wait", LONG, async || {
                single.double.count(CONFIG_MAPS) == 1
            })
            .await;
            single.double.set_fault(CONFIG_MAPS, None);
        };
        let (made, ()) = tokio::join!(api.create(&post, &object), heal);
        assert_eq!(made.unwrap().data, object.data, "{code}");
        assert_eq!(single.double.count(CONFIG_MAPS), 2, "{code}");
        single.double.take_requests();
    }
}

#[tokio::test]
async fn after_ten_retries_the_servers_last_answer_is_the_error() {
    let single = Single::new().await;
    let client = client(single.proxy.addr(), &single.ground.pki).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for (retry_after, tries) in [(Some(0), 11), (None, 1)] {
        single.double.take_requests();
        let fault = Fault::Status(503, retry_after);
        single.double.set_fault(CONFIG_MAPS, Some(fault));
        let made = api.create(&PostParams::default(), &config_map("a")).await;
        assert_eq!(status(made), (503, "Told".to_owned()));
        assert_eq!(single.double.count(CONFIG_MAPS), tries, "{retry_after:?}");
    }
}

#[tokio::test]
async fn a_write_whose_connection_breaks_is_sent_once_and_a_read_is_repeated() {
    let single = Single::new().await;
    let double = &single.double;
    // Without the proxy, which never breaks off itself; and with it.
    for (addr, proxied) in [(double.addr(), false), (single.proxy.addr(), true)] {
        let api: Api<ConfigMap> = Api::default_namespaced(client(addr, &single.ground.pki).await);
        double.set_fault(CONFIG_MAPS, Some(Fault::Reset));
        let made = api.create(&PostParams::default(), &config_map("a")).await;
        match proxied {
            true => assert_eq!(status(made).0, 503),
            false => assert!(!matches!(made, Ok(_) | Err(kube::Error::Api(_)))),
        }
        assert_eq!(double.count(CONFIG_MAPS), 1);
        double.take_requests();

        let heal = async {
            eventually("a read broke", LONG, async || double.count(CONFIG_MAPS) > 0).await;
            double.set_fault(CONFIG_MAPS, None);
        };
        let list = ListParams::default();
        let (listed, ()) = tokio::join!(api.list(&list), heal);
        listed.unwrap();
        double.take_requests();
    }
}

#[tokio::test]
async fn watches_and_upgrades_pass_through_it() {
    let single = Single::new().await;
    let client = client(single.proxy.addr(), &single.ground.pki).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut events = pin!(api.watch(&WatchParams::default(), "0").await.unwrap());
    api.create(&PostParams::default(), &config_map("a"))
        .await
        .unwrap();
    let event = tokio::time::timeout(LONG, events.try_next()).await;
    let event = event.unwrap().unwrap().unwrap();
    let WatchEvent::Added(added) = event else {
        panic!("{event:?}");
    };
    assert_eq!(added, api.get("a").await.unwrap());

    let upgrade = Request::get("/_double/upgrade")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(Body::empty());
    let answer = client.send(upgrade.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(is_ready(answer.headers()), Some(true));
}

#[tokio::test]
async fn the_example_lists_and_follows() {
    let single = Single::new().await;
    let client = client(single.proxy.addr(), &single.ground.pki).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let post = PostParams::default();
    api.create(&post, &config_map("found")).await.unwrap();
    let said = Mutex::new(Vec::new());
    let says = async |line: &str| {
        eventually(line, LONG, async || {
            let said = said.lock().unwrap();
            said.iter().any(|found| found == line)
        })
        .await;
    };
    let script = async {
        says("changed: found").await;
        api.create(&post, &config_map("later")).await.unwrap();
        says("changed: later").await;
    };
    tokio::select! {
        end = example::follow(client, |line| said.lock().unwrap().push(line)) => panic!("{end:?}"),
        () = script => {}
    }
    let said = said.into_inner().unwrap();
    assert_eq!(said[..2], ["initialized: true", "there is found"]);
}
