//! StorageVersions of a native apiserver whose discovery cannot be read.

use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use serde_json::json;

use testkit::cluster::{Ground, HPAS, LONG, assert_refused, lists};
use testkit::double::{Fault, ServedResource, v1_36};
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

const THINGS: &str = "/apis/w.example/v1/things";
const STORED: &str = "/registry/storageversions/autoscaling.horizontalpodautoscalers";

fn storage_version(id: &str) -> String {
    json!({
        "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
        "metadata": {"name": "autoscaling.horizontalpodautoscalers"},
        "status": {"storageVersions": [{"apiServerID": id, "encodingVersion": "autoscaling/v2",
            "decodableVersions": ["autoscaling/v1", "autoscaling/v2"],
            "servedVersions": ["autoscaling/v1", "autoscaling/v2"]}]},
    })
    .to_string()
}

#[tokio::test]
async fn storage_versions_prove_what_a_native_peer_serves_and_never_what_it_does_not() {
    let ground = Ground::new().await;
    let a = ground.double(v1_36().without_group("autoscaling")).await;
    let things = ServedResource::new("w.example", "v1", "things", "Thing");
    let b = ground.double(v1_36().with(things)).await;
    // Without it no discovery is read.
    b.set_fault("/version", Some(Fault::Status(500, None)));
    let mut etcd = ground.etcd.client().await;
    let endpoint = PeerEndpoint {
        server: "native-b".into(),
        address: b.addr(),
    };
    let entry = encode_endpoints(&endpoint, 1);
    etcd.put("/registry/peerserverleases/native-b", entry, None)
        .await
        .unwrap();
    let proxy = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    eventually("its discovery was asked for", LONG, async || {
        b.count("/version") > 0
    })
    .await;
    assert_refused(&admin.get(HPAS).await, "");

    etcd.put(STORED, storage_version("native-b"), None)
        .await
        .unwrap();
    eventually("it is known to serve them", LONG, async || {
        lists(&proxy.statusz().await, "native-b", "autoscaling")
    })
    .await;
    assert_eq!(admin.get(HPAS).await.code(), 200);
    assert_eq!(b.count(HPAS), 1);
    let status = proxy.statusz().await;
    assert_eq!(status["peers"][0]["known"], false, "{status:#}");
    // It serves these too, and no StorageVersion says so.
    assert_refused(&admin.get(THINGS).await, "");
    assert_eq!(b.count(THINGS), 0);

    // Of a server that nothing says lives, they prove nothing, not even that anybody ever served it.
    etcd.put(STORED, storage_version("nobody"), None)
        .await
        .unwrap();
    eventually("it is known no more", LONG, async || {
        !lists(&proxy.statusz().await, "native-b", "autoscaling")
    })
    .await;
    holds(
        "unknown, not gone",
        std::time::Duration::from_secs(1),
        async || admin.get(HPAS).await.code() == 503,
    )
    .await;

    b.set_fault("/version", None);
    eventually("discovery tells everything", LONG, async || {
        admin.get(THINGS).await.code() == 200 && admin.get(HPAS).await.code() == 200
    })
    .await;
}
