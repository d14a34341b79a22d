//! Facts in etcd besides the proxies' records, and what proxies publish in other formats.

use std::net::SocketAddr;

use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints, endpoints};
use kube_interop_proxy::publish::identity::host_name;
use serde_json::json;

use testkit::cluster::{Ground, HPAS, LONG, lists};
use testkit::double::{v1_20, v1_36};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const LEASES: &str = "/registry/leases/kube-system/";
const INITIALIZED: &str = "kube_interop_proxy_apiserver_initialized";

/// Of an apiserver's own, below `peerserverleases/`.
pub fn entry(id: &str, address: SocketAddr) -> Vec<u8> {
    let endpoint = PeerEndpoint {
        server: id.into(),
        address,
    };
    encode_endpoints(&endpoint, 1)
}

/// An identity lease as an apiserver writes it.
fn lease(name: &str, hostname: &str, holder: &str) -> String {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system", "uid": "1", "labels": {
            "apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": hostname}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600},
    })
    .to_string()
}

#[tokio::test]
async fn a_native_apiserver_without_a_proxy_serves_what_the_local_one_lacks() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let b = ground.double(v1_36().emulating("1.35")).await;
    let mut etcd = ground.etcd.client().await;
    let key = "/registry/peerserverleases/native-b";
    etcd.put(key, entry("native-b", b.addr()), None)
        .await
        .unwrap();
    let proxy = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    eventually("its discovery was read", LONG, async || {
        lists(&proxy.statusz().await, "native-b", "autoscaling")
    })
    .await;
    let client = proxy.client(&ground.pki);
    assert_eq!(client.clone().cert("admin").get(HPAS).await.code(), 200);
    assert_eq!(b.count(HPAS), 1);
    let older = client.cert("admin");
    let older = older.header("X-Kubernetes-Compatibility-Version", "1.35");
    assert_eq!(older.get("/api/v1/pods").await.code(), 200);
    assert_eq!((a.count("/api/v1/pods"), b.count("/api/v1/pods")), (0, 1));
    let asked = b.requests();
    let discovery = asked
        .iter()
        .find(|request| request.path == "/apis")
        .unwrap();
    assert_eq!(discovery.headers["x-remote-user"], "system:apiserver");
    assert_eq!(discovery.headers["x-remote-group"], "system:authenticated");
    let accept = discovery.headers["accept"].to_str().unwrap();
    assert!(accept.contains("profile=nopeer"));
    let status = proxy.statusz().await;
    let native = &status["peers"][0];
    assert_eq!(native["id"], "native-b");
    assert_eq!(native["compatibilityVersion"], "1.35");
    assert!(native["resources"].as_u64() > Some(100), "{native}");
    // Anonymous requests go without our certificate: they are forbidden, not badly authenticated.
    assert_eq!(client.get(HPAS).await.code(), 403);

    etcd.delete(key, None).await.unwrap();
    let admin = client.cert("admin");
    eventually(
        "what it served is unreachable, not gone",
        LONG,
        async || admin.get(HPAS).await.code() == 503,
    )
    .await;
}

#[tokio::test]
async fn native_apiservers_find_us_and_their_own_entries_are_left_alone() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let mut etcd = ground.etcd.client().await;
    let key = |id: &str| format!("/registry/peerserverleases/{id}");
    let own = entry("b", double.addr());
    etcd.put(key("b"), own.clone(), None).await.unwrap();
    let (mut a, _b) = tokio::join!(
        Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy("b", double.addr()).until(Until::Ready)),
    );
    let read = async |id: &str| {
        let answer = ground.etcd.client().await.get(key(id), None).await.unwrap();
        answer
            .kvs()
            .first()
            .map(|kv| (kv.value().to_vec(), kv.lease(), kv.version()))
    };
    eventually(
        "A's entry was written and written again",
        LONG,
        async || read("a").await.is_some_and(|(_, _, version)| version > 1),
    )
    .await;
    let (value, lease, _) = read("a").await.unwrap();
    let ours = endpoints(&value).unwrap();
    assert_eq!((ours.server.as_str(), ours.address), ("a", a.addr()));
    assert_ne!(lease, 0);
    assert_eq!(read("b").await, Some((own, 0, 1)));
    a.terminate().await;
    assert_eq!(read("a").await, None);
}

#[tokio::test]
async fn the_server_id_is_that_of_the_lease_that_names_this_host() {
    let ground = Ground::new().await;
    let double = ground.double(v1_36()).await;
    let mut etcd = ground.etcd.client().await;
    for (name, hostname) in [
        ("of-another-host", "elsewhere"),
        ("of-this-host", &host_name()),
    ] {
        let value = lease(name, hostname, "x");
        etcd.put(format!("{LEASES}{name}"), value, None)
            .await
            .unwrap();
    }
    let options = ground.proxy("", double.addr()).until(Until::Ready);
    let proxy = Proxy::start(options).await;
    eventually("it is found", LONG, async || {
        proxy.statusz().await["server"]["id"] == "of-this-host"
    })
    .await;
    // Users can write labels: they name no apiserver, whose Lease and StorageVersions would count as ours.
    let named = [("id", "of-this-host")];
    assert_eq!(proxy.metric("apiserver_identity", &named).await, 0.0);
}

#[tokio::test]
async fn a_new_holder_of_the_lease_makes_an_unready_apiserver_a_restarted_one() {
    let ground = Ground::new().await;
    let double = ground.double(v1_36()).await;
    let mut etcd = ground.etcd.client().await;
    let key = format!("{LEASES}a");
    etcd.put(key.as_str(), lease("a", "host", "a_1"), None)
        .await
        .unwrap();
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let holder = async |holder: &str| {
        let status = proxy.statusz().await;
        let mut leases = status["facts"]["leases"].as_array().unwrap().iter();
        leases.any(|lease| lease["name"] == "a" && lease["holder"] == holder)
    };
    eventually("the lease is known", LONG, async || holder("a_1").await).await;

    let before = double.accepted_connections();
    etcd.put(key.as_str(), lease("a", "host", "a_2"), None)
        .await
        .unwrap();
    eventually("that is noticed", LONG, async || {
        proxy.log_tail().contains("has a new holder")
    })
    .await;
    let asked = double.count("/readyz");
    eventually("and it is asked over a new connection", LONG, async || {
        double.count("/readyz") > asked + 2 && double.accepted_connections() > before
    })
    .await;
    assert_eq!(proxy.metric(INITIALIZED, &[]).await, 1.0, "it is ready");

    double.set_ready(false);
    eventually("that is seen", LONG, async || !proxy.is_ready().await).await;
    assert_eq!(
        proxy.metric(INITIALIZED, &[]).await,
        1.0,
        "the same process"
    );
    etcd.put(key.as_str(), lease("a", "host", "a_3"), None)
        .await
        .unwrap();
    eventually("another process", LONG, async || {
        proxy.metric(INITIALIZED, &[]).await == 0.0
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_decoded_is_named_on_the_status_page() {
    let ground = Ground::new().await;
    let double = ground.double(v1_36()).await;
    let mut etcd = ground.etcd.client().await;
    for (key, value) in [
        (
            "/registry/storageversions/apps.deployments",
            "k8s:enc:aescbc:v1:key1:x",
        ),
        ("/registry/leases/kube-system/odd", "garbage"),
        ("/registry/peerserverleases/odd", "k8s\0garbage"),
        ("/kube-interop-proxy/registry/live/odd", r#"{"future":1}"#),
    ] {
        etcd.put(key, value, None).await.unwrap();
    }
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let status = proxy.statusz().await;
    let named = status["facts"]["undecodable"].as_array().unwrap().iter();
    let mut named: Vec<_> = named.filter_map(|one| one["topic"].as_str()).collect();
    named.sort_unstable();
    assert_eq!(
        named,
        ["leases", "live", "peerserverleases", "storageversions"]
    );
    let count = proxy
        .metric("kube_interop_proxy_etcd_undecodable_total", &[])
        .await;
    assert_eq!(count, 4.0);
}
