//! Watches that resume after a restart, on real kube-apiservers v1.20.2: A's watch caches begin when it starts, so A
//! answers 410 to an older watch of a quiet resource, while B still has the history.

use serde_json::json;

use crate::routing::real_apiservers::{LONGER, options};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

const QUIET: &str = "/api/v1/namespaces/default/podtemplates";
const BUSY: &str = "/api/v1/namespaces/default/configmaps";
const DECISIONS: &str = "kube_interop_proxy_requests_total";

struct World {
    a: KubeApiServer,
    proxy_a: Proxy,
    _b: KubeApiServer,
    _proxy_b: Proxy,
    ground: Ground,
}

impl World {
    async fn new(change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::new().await;
        let b = KubeApiServer::start(options(&ground, "cp-b"), &ground.pki).await;
        let a = KubeApiServer::start(options(&ground, "cp-a"), &ground.pki).await;
        let proxy = |id: &str, server: &KubeApiServer| {
            Proxy::start(change(ground.proxy(id, server.addr())).until(Until::Ready))
        };
        let (proxy_a, proxy_b) = tokio::join!(proxy("a", &a), proxy("b", &b));
        let world = Self {
            a,
            proxy_a,
            _b: b,
            _proxy_b: proxy_b,
            ground,
        };
        eventually("both histories are known", LONGER, async || {
            let status = world.proxy_a.statusz().await;
            let of_b = &status["peers"][0]["historyStart"];
            status["server"]["historyStart"].is_i64() && of_b.is_i64()
        })
        .await;
        world
    }

    fn admin(&self) -> Client {
        self.proxy_a.client(&self.ground.pki).cert("admin")
    }

    /// Restarts A's apiserver; returns when its history is known again.
    async fn restart_a(&mut self) {
        let before = self.history_start().await;
        self.a.kill();
        self.a.start_again();
        self.a.wait_ready().await;
        let what = "A's history begins anew";
        eventually(what, LONGER, async || self.history_start().await > before).await;
    }

    async fn history_start(&self) -> i64 {
        let status = self.proxy_a.statusz().await;
        status["server"]["historyStart"]
            .as_i64()
            .unwrap_or_default()
    }

    async fn decided(&self, row: &str) -> f64 {
        self.proxy_a.metric(DECISIONS, &[("decision", row)]).await
    }
}

async fn create(client: &Client, path: &str, name: &str) -> String {
    let object = match path {
        QUIET => json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name},
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}),
    };
    let answer = client.request("POST", path, object.to_string()).await;
    assert_eq!(answer.code(), 201, "{}", answer.text());
    let version = answer.json()["metadata"]["resourceVersion"].clone();
    version.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_watch_from_before_a_restart_goes_on_where_its_history_is() {
    let mut world = World::new(|options| options).await;
    let admin = world.admin();
    let seen = create(&admin, QUIET, "seen").await;
    for number in 0..5 {
        create(&admin, BUSY, &format!("busy-{number}")).await;
    }
    world.restart_a().await;

    let watch = format!("{QUIET}?watch=1&resourceVersion={seen}");
    let mut direct = world.a.admin().open(&watch).await;
    let event = direct.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );

    let mut through = admin.open(&watch).await;
    assert_eq!(through.status, 200);
    assert_eq!(world.decided("resume").await, 1.0);
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
    assert_eq!(world.decided("resume").await, 1.0);
}

#[tokio::test]
async fn resources_of_another_etcd_and_watches_without_a_place_stay_local() {
    let mut world =
        World::new(|options| options.set("etcd.otherResources", "[podtemplates]")).await;
    let admin = world.admin();
    let seen = create(&admin, QUIET, "seen").await;
    create(&admin, BUSY, "busy").await;
    world.restart_a().await;
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
    assert_eq!(world.decided("resume").await, 0.0);
}
