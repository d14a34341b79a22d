//! Requests with a version: which of several apiservers serves them.

mod window;

use serde_json::{Value, json};

use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, REROUTED, Single, decode_status};
use testkit::double::{Double, DoubleOptions, Preset, ServedResource, Store, v1_20, v1_36};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::streaming::Response;
use testkit::wait::eventually;

const HEADER: &str = "X-Kubernetes-Compatibility-Version";
const PODS: &str = "/api/v1/namespaces/default/pods";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three apiservers of one store, a proxy beside each.
struct Three {
    doubles: [Double; 3],
    proxies: [Proxy; 3],
    ground: Ground,
}

impl Three {
    /// 1.31, 1.32 and 1.33, which serve the same.
    async fn new() -> Self {
        Self::with(
            ["v1.31.4", "v1.32.0", "v1.33.1"].map(|version| v1_36().git_version(version)),
            |options| options,
        )
        .await
    }

    /// `change`: of all proxies' options.
    async fn with(presets: [Preset; 3], change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::new().await;
        let store = Store::new();
        let start =
            |preset| Double::start(DoubleOptions::new(ground.pki.dir(), preset).store(&store));
        let [a, b, c] = presets.map(start);
        let doubles = [a.await, b.await, c.await];
        let start = |index: usize| {
            let options = ground.proxy(NAMES[index], doubles[index].addr());
            Proxy::start(change(options).until(Until::Ready))
        };
        let (a, b, c) = tokio::join!(start(0), start(1), start(2));
        let three = Self {
            doubles,
            proxies: [a, b, c],
            ground,
        };
        for at in 0..3 {
            three.knows(at, 2).await;
        }
        three
    }

    /// Waits until one of the proxies knows so many of the others as targets.
    async fn knows(&self, at: usize, count: usize) {
        let proxy = &self.proxies[at];
        eventually("it knows the others", LONG, async || {
            targets(&proxy.statusz().await).len() == count
        })
        .await;
    }

    /// The administrator at one of the proxies, asking for a version.
    fn asking(&self, index: usize, version: &str) -> Client {
        self.plain(index).header(HEADER, version)
    }

    /// The same without the header.
    fn plain(&self, index: usize) -> Client {
        self.proxies[index].client(&self.ground.pki).cert("admin")
    }

    /// Whose apiserver answers `client`.
    async fn server_of(&self, client: &Client, path: &str) -> String {
        for double in &self.doubles {
            double.take_requests();
        }
        let answer = client.get(path).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
        let asked = NAMES.iter().zip(&self.doubles);
        let asked = asked.filter(|(_, double)| double.count(path) > 0);
        asked.map(|(name, _)| *name).collect()
    }

    async fn expect(&self, at: usize, path: &str, cases: &[(&str, &str)]) {
        for (version, server) in cases {
            let found = self.server_of(&self.asking(at, version), path).await;
            assert_eq!(found, *server, "{version} at {}", NAMES[at]);
        }
    }
}

/// The versions of peers that requests can be sent to.
fn targets(status: &Value) -> Vec<&Value> {
    let peers = status["peers"].as_array().into_iter().flatten();
    peers
        .filter(|peer| peer["target"] == true && peer["known"] == true)
        .map(|peer| &peer["compatibilityVersion"])
        .collect()
}

#[track_caller]
fn assert_malformed(answer: &Response) {
    assert_eq!(answer.code(), 400, "{}", answer.text());
    assert!(!answer.headers.contains_key("retry-after"));
    let status = answer.json();
    assert_eq!(
        (&status["kind"], &status["apiVersion"], &status["status"]),
        (&json!("Status"), &json!("v1"), &json!("Failure"))
    );
    assert_eq!(
        (&status["reason"], &status["code"]),
        (&json!("BadRequest"), &json!(400))
    );
    let said = status["message"].as_str().unwrap();
    assert!(said.contains("major.minor"), "{said}");
}

#[tokio::test]
async fn the_version_asked_for_is_served_by_who_has_it_from_wherever_it_is_asked() {
    let three = Three::new().await;
    for (at, own) in ["a", "b", "c"].into_iter().enumerate() {
        let all = [
            ("1.31", "a"),
            ("1.32", "b"),
            ("v1.32", "b"),
            ("1.33", "c"),
            // Nobody has it: the local one is later.
            ("1.30", own),
            ("0.99", own),
            // All are older, and alike.
            ("1.34", own),
            ("2.0", own),
        ];
        three.expect(at, PODS, &all).await;
        assert_eq!(three.server_of(&three.plain(at), PODS).await, own);
        let repeated = three.asking(at, "1.32").header(HEADER, "v1.32");
        assert_eq!(three.server_of(&repeated, PODS).await, "b");
    }
    let status = three.proxies[0].statusz().await;
    assert_eq!(status["server"]["compatibilityVersion"], "1.31");
    assert_eq!(targets(&status), [&json!("1.32"), &json!("1.33")]);
}

#[tokio::test]
async fn only_those_that_serve_the_resource_are_compared() {
    let [old, middle, new] =
        ["v1.31.0", "v1.32.0", "v1.33.0"].map(|version| v1_20().git_version(version));
    let presets = [old.without_group("autoscaling"), middle, new];
    let three = Three::with(presets, |options| options).await;
    let cases = [("1.31", "b"), ("1.32", "b"), ("1.33", "c")];
    three.expect(0, HPAS, &cases).await;
    let cases = [("1.31", "c"), ("1.32", "b"), ("1.33", "c")];
    three.expect(2, HPAS, &cases).await;
    // Nobody serves it in any version.
    let nobodys = "/apis/no.such.group/v1/things";
    assert_eq!(three.asking(0, "1.33").get(nobodys).await.code(), 404);
}

#[tokio::test]
async fn what_counts_is_the_emulated_version_and_who_says_none_comes_last() {
    let presets = [
        v1_36().git_version(""),
        v1_36().emulating("1.35"),
        v1_36().git_version("v1.34.9"),
    ];
    let three = Three::with(presets, |options| options).await;
    let cases = [("1.36", "a"), ("1.35", "b"), ("1.34", "c"), ("1.20", "c")];
    three.expect(0, PODS, &cases).await;
    let status = three.proxies[2].statusz().await;
    assert_eq!(targets(&status), [&Value::Null, &json!("1.35")]);
}

#[tokio::test]
async fn the_header_is_passed_on_as_it_came() {
    let three = Three::new().await;
    let client = three.asking(0, "v1.32").header(HEADER, "1.32");
    assert_eq!(three.server_of(&client, PODS).await, "b");
    let local = three.asking(0, "1.31");
    assert_eq!(local.get("/version").await.code(), 200);
    for (double, path, expected) in [
        (&three.doubles[1], PODS, &["v1.32", "1.32"][..]),
        (&three.doubles[0], "/version", &["1.31"]),
    ] {
        let requests = double.requests();
        let mut seen = requests.iter().filter(|seen| seen.path == path);
        let seen = seen.any(|seen| seen.header_values(HEADER) == expected);
        assert!(seen, "{path}");
    }
    let labels = [("code", "200"), ("resource", "pods")];
    let once = |count| count == 1.0;
    three.proxies[0].until_metric(REROUTED, &labels, once).await;
    assert_eq!(three.proxies[1].metric(REROUTED, &[]).await, 0.0);
}

#[tokio::test]
async fn when_the_best_dies_the_next_best_serves_then_the_local_apiserver() {
    let mut three = Three::new().await;
    three.expect(0, PODS, &[("1.32", "b")]).await;

    three.proxies[1].kill();
    for _ in 0..3 {
        three.expect(0, PODS, &[("1.32", "c")]).await;
    }
    let unsent = [("reason", "unsent")];
    let failovers = "kube_interop_proxy_failovers_total";
    assert!(three.proxies[0].metric(failovers, &unsent).await >= 1.0);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}});
    let written = three
        .asking(0, "1.32")
        .request("POST", PODS, pod.to_string())
        .await;
    assert_eq!(written.code(), 201, "{}", written.text());

    three.proxies[2].kill();
    three.expect(0, PODS, &[("1.32", "a"), ("1.33", "a")]).await;
    eventually("nobody else lives", LONG, async || {
        targets(&three.proxies[0].statusz().await).is_empty()
    })
    .await;
    three.expect(0, PODS, &[("1.32", "a")]).await;
}

#[tokio::test]
async fn between_better_and_worse_peers_the_local_apiserver_has_its_place() {
    let mut three = Three::new().await;
    // At B, 1.31: A, then B itself, and only then C.
    three.expect(1, PODS, &[("1.31", "a")]).await;
    three.doubles[0].stop().await;
    three.expect(1, PODS, &[("1.31", "b")]).await;
    three.doubles[1].stop().await;
    three.expect(1, PODS, &[("1.31", "c")]).await;
}

#[tokio::test]
async fn what_is_no_version_is_told_so() {
    let world = Single::new().await;
    let admin = world.client().cert("admin");
    for version in ["", "1", "1.x", "1.32.0", "latest", "1.32,1.33", "\u{e9}"] {
        for client in [admin.http1(), admin.http2()] {
            for path in [PODS, "/version", "/apis/no.such.group/v1/things"] {
                assert_malformed(&client.header(HEADER, version).get(path).await);
            }
        }
    }
    let contradicting = admin.header(HEADER, "1.32").header(HEADER, "1.33");
    assert_malformed(&contradicting.get(PODS).await);
    let protobuf = "application/vnd.kubernetes.protobuf";
    let answer = contradicting.header("accept", protobuf).get(PODS).await;
    let status = decode_status(&answer);
    assert_eq!((status.reason(), status.code()), ("BadRequest", 400));
    assert_eq!(world.double.count(PODS), 0);
    let counted = world.proxy.metric(
        "kube_interop_proxy_refusals_total",
        &[("reason", "bad_version")],
    );
    assert_eq!(counted.await, 44.0);
    // Who asks comes before what is asked.
    let rogue = world.client().cert("rogue").header(HEADER, "x");
    assert_eq!(rogue.get(PODS).await.code(), 401);
}

#[tokio::test]
async fn switched_off_the_header_is_any_other_header() {
    let presets = ["v1.31.0", "v1.32.0", "v1.33.0"].map(|version| v1_36().git_version(version));
    let three = Three::with(presets, |options| {
        options.set("versionAwareness.enabled", "false")
    });
    let three = three.await;
    let cases = [("1.31", "a"), ("1.33", "a"), ("latest", "a"), ("", "a")];
    three.expect(0, PODS, &cases).await;
    let client = three.asking(0, "1.32").header(HEADER, "newest");
    assert_eq!(three.server_of(&client, PODS).await, "a");
    let seen = three.doubles[0].requests();
    let seen = seen.iter().find(|seen| seen.path == PODS).unwrap();
    assert_eq!(seen.header_values(HEADER), ["1.32", "newest"]);
}

#[tokio::test]
async fn the_header_can_have_another_name() {
    let presets = ["v1.31.0", "v1.32.0", "v1.33.0"].map(|version| v1_36().git_version(version));
    let three = Three::with(presets, |options| {
        options.set("versionAwareness.header", "X-Wanted")
    })
    .await;
    let client = three.plain(0);
    let named = client.header("X-Wanted", "1.32");
    assert_eq!(three.server_of(&named, PODS).await, "b");
    assert_malformed(&client.header("X-Wanted", "x").get(PODS).await);
    three.expect(0, PODS, &[("1.32", "a"), ("x", "a")]).await;
}

#[tokio::test]
async fn a_request_that_a_peer_sent_on_stays_whatever_its_header() {
    let three = Three::new().await;
    for mark in [
        "X-Kubernetes-APIServer-Rerouted",
        "X-Kubernetes-Peer-Proxied",
    ] {
        let peer = three.proxies[0].client(&three.ground.pki);
        let peer = peer
            .cert("front-proxy-client")
            .header(mark, "true")
            .header("X-Remote-User", "alice")
            .header("X-Remote-Group", "system:masters");
        for version in ["1.32", "1.33", "x"] {
            let found = three.server_of(&peer.header(HEADER, version), PODS).await;
            assert_eq!(found, "a", "{mark} {version}");
        }
    }
}

#[tokio::test]
async fn custom_resources_are_served_alike_whatever_the_version() {
    let widgets = ServedResource::custom("example.com", "v1", "widgets", "Widget");
    let presets = ["v1.31.0", "v1.32.0", "v1.33.0"]
        .map(|version| v1_36().git_version(version).with(widgets.clone()));
    let three = Three::with(presets, |options| options).await;
    let registry = Registry::new(three.ground.etcd.client().await, "/registry");
    registry.put_definition("widgets.example.com").await;
    let path = "/apis/example.com/v1/widgets";
    eventually("the definition is known", LONG, async || {
        let status = three.proxies[0].statusz().await;
        let resources = status["resources"].as_array().unwrap();
        !resources.iter().any(|it| it["group"] == "example.com")
    })
    .await;
    three.expect(0, path, &[("1.32", "a"), ("1.33", "a")]).await;
    assert_malformed(&three.asking(0, "x").get(path).await);
}

#[tokio::test]
async fn a_server_that_becomes_another_version_is_found_under_it() {
    let three = Three::new().await;
    three.expect(0, PODS, &[("1.32", "b")]).await;
    three.doubles[1].change_preset(|preset| preset.git_version("v1.34.0"));
    eventually("A's proxy knows B's new version", LONG, async || {
        let status = three.proxies[0].statusz().await;
        targets(&status) == [&json!("1.34"), &json!("1.33")]
    })
    .await;
    three.expect(0, PODS, &[("1.32", "c"), ("1.34", "b")]).await;
}
