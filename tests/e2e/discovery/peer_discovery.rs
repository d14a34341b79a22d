//! The proxy reads peers' discovery only if it lists more than the local apiserver's. Which peers it asks, and the
//! result, as shown by the status page.

use std::time::Duration;

use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use serde_json::Value;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, lists};
use testkit::double::{Double, DoubleOptions, Fault, Recorded, ServedResource, v1_20, v1_36};
use testkit::pair::Pair;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::{eventually, holds};

const SOURCES: &str = "kube_interop_proxy_discovery_sources";
/// Longer than documents that did not change are left alone, with the interval of [`often`].
const WHILE: Duration = Duration::from_secs(3);

fn merged(ground: &Ground, id: &str, double: &Double) -> ProxyOptions {
    let options = ground.proxy(id, double.addr()).until(Until::Ready);
    options.set("discovery.mode", "Merged")
}

/// Documents are read anew about every second.
fn often(options: ProxyOptions) -> ProxyOptions {
    options.set("apiServer.discoveryInterval", "200ms")
}

/// Documents are not read anew in the time of a test.
fn once(options: ProxyOptions) -> ProxyOptions {
    options.set("apiServer.discoveryInterval", "30s")
}

/// What was asked for peers' sake: by another proxy, not by the one beside it.
fn asked_by_peers(double: &Double) -> Vec<Recorded> {
    let mut requests = double.requests();
    requests.retain(|request| !request.header("x-kubernetes-peer-proxied").is_empty());
    requests
}

fn paths(requests: &[Recorded]) -> Vec<&str> {
    let mut paths: Vec<_> = requests
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    paths.sort_unstable();
    paths
}

/// Whether others list a group version that the local apiserver lacks, and whether it is stale.
fn added(status: &Value, group: &str, version: &str) -> Option<bool> {
    let added = status["discovery"]["added"].as_array()?;
    let found = added
        .iter()
        .find(|it| it["group"] == group && it["version"] == version);
    found.and_then(|it| it["stale"].as_bool())
}

async fn until_added(proxy: &Proxy, group: &str, version: &str, stale: bool) {
    let what = format!("{group}/{version} is added, stale: {stale}");
    eventually(&what, LONG, async || {
        match added(&proxy.statusz().await, group, version) {
            Some(found) if found == stale => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

/// Waits until all that the only source has was read.
async fn until_read(proxy: &Proxy) {
    eventually("it is read completely", LONG, async || {
        proxy.metric(SOURCES, &[("state", "read")]).await == 1.0
    })
    .await;
}

#[tokio::test]
async fn where_all_list_the_same_nobody_is_asked() {
    let ground = Ground::new().await;
    let (a, b) = (ground.double(v1_36()).await, ground.double(v1_36()).await);
    let (proxy_a, proxy_b) = tokio::join!(
        Proxy::start(often(merged(&ground, "a", &a))),
        Proxy::start(often(merged(&ground, "b", &b))),
    );
    for (proxy, peer) in [(&proxy_a, "b"), (&proxy_b, "a")] {
        eventually("they know each other", LONG, async || {
            let status = proxy.statusz().await;
            lists(&status, peer, "autoscaling") && status["discovery"]["current"] == true
        })
        .await;
    }
    let nothing = |double: &Double| match &asked_by_peers(double)[..] {
        [] => Ok(()),
        asked => Err(format!("{:?}", paths(asked))),
    };
    holds("A is not asked", WHILE, async || nothing(&a)).await;
    assert_eq!(nothing(&b), Ok(()));
    for proxy in [&proxy_a, &proxy_b] {
        let status = proxy.statusz().await;
        assert_eq!(status["discovery"]["added"], Value::Array(Vec::new()));
    }
}

#[tokio::test]
async fn only_the_documents_of_what_is_lacking_are_read_and_once() {
    for (preset, versions) in [
        (v1_20(), &["v1", "v2beta1", "v2beta2"][..]),
        (v1_36(), &["v1", "v2"]),
    ] {
        let ground = Ground::new().await;
        let lacking = preset.clone().without_group("autoscaling");
        let (a, b) = (ground.double(lacking).await, ground.double(preset).await);
        let (proxy_a, proxy_b) = tokio::join!(
            Proxy::start(once(merged(&ground, "a", &a))),
            Proxy::start(once(merged(&ground, "b", &b))),
        );
        for version in versions {
            until_added(&proxy_a, "autoscaling", version, false).await;
        }
        until_read(&proxy_a).await;
        let asked = asked_by_peers(&b);
        let own = |version: &&str| format!("/apis/autoscaling/{version}");
        let mut expected: Vec<_> = versions.iter().map(own).collect();
        expected.insert(0, "/apis".to_owned());
        expected.push("/openapi/v3".to_owned());
        assert_eq!(paths(&asked), expected);
        for request in &asked {
            assert_eq!(request.user, "system:kube-interop-proxy");
            assert_eq!(request.how, "requestheader");
            assert!(request.groups.contains(&"system:masters".to_owned()));
        }
        let [merged, of_b] = [proxy_a.addr(), b.addr()].map(|addr| {
            let client = Client::new(addr, &ground.pki).cert("admin");
            async move { client.get("/apis/autoscaling").await.json() }
        });
        assert_eq!(merged.await, of_b.await, "in its order");
        // B lacks nothing of what A has.
        assert!(asked_by_peers(&a).is_empty());
        assert_eq!(added(&proxy_b.statusz().await, "autoscaling", "v1"), None);
    }
}

#[tokio::test]
async fn what_is_lacking_is_read_again_and_again_and_nothing_else() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let b = ground.double(v1_36()).await;
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(often(merged(&ground, "a", &a))),
        Proxy::start(often(merged(&ground, "b", &b))),
    );
    until_added(&proxy_a, "autoscaling", "v2", false).await;
    let read = |request: &&Recorded| request.path == "/apis/autoscaling/v2";
    eventually("it is asked again", LONG, async || {
        asked_by_peers(&b).iter().filter(read).count() >= 3
    })
    .await;
    let asked = asked_by_peers(&b);
    assert_eq!(
        asked
            .iter()
            .filter(|it| it.path.starts_with("/api/"))
            .count(),
        0,
        "nothing of it is lacking"
    );
    assert!(
        asked.iter().all(|it| it.path != "/openapi/v2"),
        "nobody wanted it"
    );
    assert_eq!(
        proxy_a.statusz().await["discovery"]["sources"][0]["state"],
        "read"
    );

    // More than a name changes only with the record; that is followed at once.
    b.add_resource(ServedResource::new(
        "invented.k8s.io",
        "v1",
        "inventions",
        "Invention",
    ));
    until_added(&proxy_a, "invented.k8s.io", "v1", false).await;
    b.remove_group("invented.k8s.io");
    eventually("it is gone again", LONG, async || {
        added(&proxy_a.statusz().await, "invented.k8s.io", "v1").is_none()
    })
    .await;
}

#[tokio::test]
async fn a_subresource_that_only_a_peer_has_is_added() {
    let ground = Ground::new().await;
    let a = ground
        .double(v1_36().without_subresource("", "pods", "resize"))
        .await;
    let b = ground.double(v1_36()).await;
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(merged(&ground, "a", &a)),
        Proxy::start(merged(&ground, "b", &b)),
    );
    until_added(&proxy_a, "", "v1", false).await;
    let status = proxy_a.statusz().await;
    let added = &status["discovery"]["added"];
    assert_eq!(added.as_array().map(Vec::len), Some(1), "{added}");
    assert_eq!(added[0]["resources"], serde_json::json!(["pods"]));
}

#[tokio::test]
async fn of_a_peer_that_breaks_the_last_documents_stay() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let b = ground.double(v1_36()).await;
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(often(merged(&ground, "a", &a))),
        Proxy::start(often(merged(&ground, "b", &b))),
    );
    until_added(&proxy_a, "autoscaling", "v2", false).await;
    for fault in [Fault::Status(500, None), Fault::Reset, Fault::Stream(4096)] {
        b.set_fault("/apis", Some(fault));
        eventually("that is noticed", LONG, async || {
            let status = proxy_a.statusz().await;
            assert_eq!(
                added(&status, "autoscaling", "v2"),
                Some(false),
                "{status:#}"
            );
            let source = &status["discovery"]["sources"][0];
            source["state"] == "failing" && source["error"].is_string()
        })
        .await;
        assert_eq!(proxy_a.metric(SOURCES, &[("state", "failing")]).await, 1.0);
        b.set_fault("/apis", None);
        eventually("it is read again", LONG, async || {
            proxy_a.metric(SOURCES, &[("state", "read")]).await == 1.0
        })
        .await;
    }
}

#[tokio::test]
async fn what_only_a_dead_server_had_is_stale_and_goes_with_its_record_though_two_proxies_list_it()
{
    let ground = Ground::new().await;
    let preset = || v1_36().without_group("autoscaling");
    let (a, c) = (ground.double(preset()).await, ground.double(preset()).await);
    let mut b = ground.double(v1_36()).await;
    let short = |options: ProxyOptions| options.set("rerouting.absentServerGrace", "15s");
    let (proxy_a, mut proxy_b, mut proxy_c) = tokio::join!(
        Proxy::start(short(often(merged(&ground, "a", &a)))),
        Proxy::start(short(often(merged(&ground, "b", &b)))),
        Proxy::start(short(often(merged(&ground, "c", &c)))),
    );
    for proxy in [&proxy_a, &proxy_c] {
        until_added(proxy, "autoscaling", "v2", false).await;
    }
    b.stop().await;
    proxy_b.kill();
    for proxy in [&proxy_a, &proxy_c] {
        until_added(proxy, "autoscaling", "v2", true).await;
        let status = proxy.statusz().await;
        let sources = &status["discovery"]["sources"];
        assert_eq!(sources[0]["state"], "unreachable", "{sources}");
        assert_eq!(
            sources[0]["undescribed"], 0,
            "what was read is kept: {sources}"
        );
    }
    // One that never read its documents has its names.
    proxy_c.kill();
    proxy_c.start_again().await;
    until_added(&proxy_c, "autoscaling", "v2", true).await;
    let status = proxy_c.statusz().await;
    let sources = &status["discovery"]["sources"];
    assert_eq!(sources[0]["undescribed"], 2, "{sources}");
    for proxy in [&proxy_a, &proxy_c] {
        eventually("nobody has it any more", LONG, async || {
            let status = proxy.statusz().await;
            assert_ne!(added(&status, "autoscaling", "v2"), Some(false));
            added(&status, "autoscaling", "v2").is_none()
        })
        .await;
    }
    // Neither ever asked the other for more than its own.
    for double in [&a, &c] {
        assert!(asked_by_peers(double).is_empty());
    }
}

#[tokio::test]
async fn a_restarted_local_apiserver_is_taken_to_lack_nothing_before_it_is_read() {
    let ground = Ground::new().await;
    let (mut a, b) = (ground.double(v1_36()).await, ground.double(v1_36()).await);
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(merged(&ground, "a", &a)),
        Proxy::start(merged(&ground, "b", &b)),
    );
    let current = async || proxy_a.statusz().await["discovery"]["current"] == true;
    eventually("it was read", LONG, current).await;
    let address = a.addr();
    a.stop().await;
    eventually("that is noticed", LONG, async || !current().await).await;
    // It comes back as another release.
    let mut options = DoubleOptions::new(ground.pki.dir(), v1_36().without_group("autoscaling"));
    options.listen = Some(address);
    let _a = Double::start(options).await;
    eventually("it is read again", LONG, async || {
        let status = proxy_a.statusz().await;
        let current = status["discovery"]["current"] == true;
        let added = added(&status, "autoscaling", "v2");
        assert!(
            !current || added.is_some(),
            "it was certain of too much: {status:#}"
        );
        added == Some(false)
    })
    .await;
}

#[tokio::test]
async fn a_native_peer_is_asked_as_its_like_ask_each_other() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let b = ground.double(v1_36()).await;
    let mut etcd = ground.etcd.client().await;
    let endpoint = PeerEndpoint {
        server: "native-b".into(),
        address: b.addr(),
    };
    let entry = encode_endpoints(&endpoint, 1);
    let key = "/registry/peerserverleases/native-b";
    etcd.put(key, entry, None).await.unwrap();
    let proxy = Proxy::start(once(merged(&ground, "a", &a))).await;
    until_added(&proxy, "autoscaling", "v2", false).await;
    let asked = b.requests();
    for request in &asked {
        assert_eq!(request.user, "system:apiserver", "{}", request.path);
        assert!(!request.groups.contains(&"system:masters".to_owned()));
    }
    let documents = asked.iter().filter(|request| request.path == "/apis");
    let nopeer = documents.filter(|it| it.header("accept").contains("profile=nopeer"));
    assert_eq!(nopeer.count(), 1, "for what it serves");
    let documents = asked.iter().filter(|it| it.path == "/apis/autoscaling/v2");
    assert_eq!(documents.count(), 1, "for what it says of it");
    etcd.delete(key, None).await.unwrap();
    until_added(&proxy, "autoscaling", "v2", true).await;
}

#[tokio::test]
async fn in_other_modes_nobody_is_asked() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let b = ground.double(v1_36()).await;
    for mode in ["Local", "Newest"] {
        let options = |id, double| often(merged(&ground, id, double)).set("discovery.mode", mode);
        let (proxy_a, _proxy_b) = tokio::join!(
            Proxy::start(options("a", &a)),
            Proxy::start(options("b", &b))
        );
        eventually("A knows B", LONG, async || {
            lists(&proxy_a.statusz().await, "b", "autoscaling")
        })
        .await;
        holds("B is not asked", Duration::from_secs(1), async || {
            asked_by_peers(&b).is_empty()
        })
        .await;
    }
}

/// A step of the test in `real_apiservers`: A serves no autoscaling, and no client has asked for anything yet.
pub async fn real_apiservers_tell_each_others_proxies(pair: &Pair) {
    let (a, b) = (&pair.a, &pair.b);
    let (proxy_a, proxy_b) = (&pair.proxy_a, &pair.proxy_b);
    // B's own group list has lost them.
    let versions = b.abilities().versions_of("autoscaling");
    for version in &versions {
        until_added(proxy_a, "autoscaling", version, false).await;
    }
    let status = proxy_a.statusz().await;
    let discovery = &status["discovery"];
    let added = discovery["added"].as_array().unwrap();
    let of_group = added.iter().filter(|it| it["group"] == "autoscaling");
    assert_eq!(of_group.count(), versions.len(), "{discovery:#}");
    // Other versions differ in more than that.
    let alike = a.abilities() == b.abilities();
    assert!(!alike || added.len() == versions.len(), "{discovery:#}");
    assert_eq!(discovery["sources"][0]["undescribed"], 0, "{discovery:#}");
    let nothing = Value::Array(Vec::new());
    assert!(!alike || proxy_b.statusz().await["discovery"]["added"] == nothing);
    until_read(proxy_a).await;
}
