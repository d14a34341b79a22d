//! Invalid values in etcd: the proxy keeps the last known value, and repairs its own keys.

use crate::etcd::outages::asking;
use testkit::cluster::{Cluster, HPAS, LONG};
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

const UNDECODABLE: &str = "kube_interop_proxy_etcd_undecodable_total";
const ENCRYPTED: &str = "k8s:enc:aescbc:v1:key1:classified";
/// What a later version may write.
const LATER_SERVER: &str = r#"{"endpoint":{"addresses":["10.0.0.1"],"port":6443},"resources":[]}"#;
const LATER_LIVE: &str =
    r#"{"endpoint":"10.0.0.1:6443","initialized":"classified","recordRevision":1}"#;
const LATER_API_SERVICE: &str =
    r#"{"apiVersion":"apiregistration.k8s.io/v9","kind":"APIService","spec":"classified"}"#;
const LATER_DEFINITION: &str = r#"{"apiVersion":"apiextensions.k8s.io/v9","kind":"CustomResourceDefinition","spec":"classified"}"#;

async fn registry(cluster: &Cluster) -> Registry {
    Registry::new(cluster.ground.etcd.client().await, "/registry")
}

/// Writes values that cannot be decoded below all prefixes whose values are read; how many.
async fn put_strange(registry: &Registry) -> f64 {
    let topics = [
        (registry.server(""), LATER_SERVER),
        (registry.live(""), LATER_LIVE),
        (registry.api_service(""), LATER_API_SERVICE),
        (registry.definition(""), LATER_DEFINITION),
    ];
    let mut count = 0.0;
    for (prefix, later) in topics {
        for (name, value) in [
            ("garbage", "classified"),
            ("encrypted", ENCRYPTED),
            ("later", later),
        ] {
            registry.put(&format!("{prefix}{name}"), value).await;
            count += 1.0;
        }
    }
    count
}

/// Waits until so many values are counted as undecodable.
async fn until_counted(proxy: &Proxy, expected: f64) {
    eventually("undecodable values are counted", LONG, async || {
        let count = proxy.metric(UNDECODABLE, &[]).await;
        if count >= expected {
            Ok(())
        } else {
            Err(count)
        }
    })
    .await;
}

#[tokio::test]
async fn values_that_cannot_be_decoded_harm_nothing_and_ours_heal() {
    let cluster = Cluster::new().await;
    let registry = registry(&cluster).await;
    let revision = registry
        .put_record("known", 20001, "w.example/v1", &["things"])
        .await;
    registry.put_live("known", 20001, true, revision).await;
    let is_known = async || {
        let status = cluster.proxy_a.statusz().await;
        let peers = status["peers"].as_array().unwrap();
        let peer = peers.iter().find(|peer| peer["id"] == "known");
        peer.is_some_and(|peer| {
            peer["target"] == true && peer["known"] == true && peer["resources"] == 1
        })
    };
    eventually("a written server is known", LONG, is_known).await;
    let admin = cluster.client().cert("admin");
    let local = asking(&admin.fresh(), "/api/v1/pods");
    let rerouted = asking(&admin.fresh(), HPAS);

    let strange = put_strange(&registry).await;
    until_counted(&cluster.proxy_a, strange).await;
    assert_eq!(admin.get("/apis/no.such.group/v1/things").await.code(), 404);

    for key in [registry.server("known"), registry.live("known")] {
        registry.put(&key, "garbage").await;
    }
    until_counted(&cluster.proxy_a, strange + 2.0).await;
    assert!(is_known().await, "what was known stays known");

    let ours = ["a", "b"].map(|id| [registry.server(id), registry.live(id)]);
    for key in ours.as_flattened() {
        registry.put(key, "garbage").await;
    }
    eventually("both write their keys anew", LONG, async || {
        for key in ours.as_flattened() {
            if registry
                .get(key)
                .await
                .is_none_or(|value| value == b"garbage")
            {
                return Err(format!("{key} is still garbage"));
            }
        }
        Ok(())
    })
    .await;
    cluster.until_a_knows("b", "autoscaling").await;
    local.stop().await;
    rerouted.stop().await;

    eventually("ours are not named any more", LONG, async || {
        let status = cluster.proxy_a.statusz().await;
        assert!(!status.to_string().contains("classified"), "{status:#}");
        let named = status["facts"]["undecodable"].as_array().unwrap().len();
        if named == 12 + 2 { Ok(()) } else { Err(named) }
    })
    .await;
    assert!(!cluster.proxy_a.log_tail().contains("classified"));
    they_do_not_keep_a_proxy_from_starting(&cluster, strange + 2.0).await;
}

/// `strange`: how many there are.
async fn they_do_not_keep_a_proxy_from_starting(cluster: &Cluster, strange: f64) {
    let options = cluster.ground.proxy("c", cluster.a.addr());
    let late = Proxy::start(options.until(Until::Ready)).await;
    until_counted(&late, strange).await;
    let admin = late.client(&cluster.ground.pki).cert("admin");
    eventually("B is a target", LONG, async || {
        admin.get(HPAS).await.code() == 200
    })
    .await;
    assert!(
        !late.log_tail().contains("classified"),
        "{}",
        late.log_tail()
    );
}
