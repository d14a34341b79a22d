//! Values in etcd that are as large as etcd takes, below every prefix that is followed.

use serde_json::json;

use crate::bodies::peak;
use crate::cluster::{Cluster, HPAS, LONG};
use crate::outages::asking;
use crate::support::proxy::{Proxy, Until};
use crate::support::registry::Registry;
use crate::support::wait::eventually;

/// etcd takes 1.5 MiB, its key and envelope included.
const SIZE: usize = 1400 << 10;
/// MiB that they may cost a proxy.
const MOST: u64 = 128;

/// Key and value: one that cannot be read, and one that can, for each prefix.
fn large(registry: &Registry) -> Vec<(String, String)> {
    let filler = "x".repeat(SIZE);
    let names: Vec<_> = (0..SIZE / 20)
        .map(|number| format!("things{number:011}"))
        .collect();
    let record = json!({"endpoint": "127.0.0.1:20001", "resources": {"large.example/v1": names}});
    let live = json!({"endpoint": "127.0.0.1:20001", "initialized": false, "later": filler});
    let object = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "large", "annotations": {"a": filler}}});
    let storage = "internal.apiserver.k8s.io/v1alpha1";
    let readable = [
        (registry.server(""), record),
        (registry.live(""), live),
        (
            "/kube-interop-proxy/registry/claims/".to_owned(),
            json!({"a": filler}),
        ),
        (
            "/registry/peerserverleases/".to_owned(),
            object("v1", "Endpoints"),
        ),
        (
            "/registry/storageversions/".to_owned(),
            object(storage, "StorageVersion"),
        ),
        (
            registry.definition(""),
            object("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ),
        (
            registry.api_service(""),
            object("apiregistration.k8s.io/v1", "APIService"),
        ),
        (
            "/registry/leases/kube-system/".to_owned(),
            object("coordination.k8s.io/v1", "Lease"),
        ),
    ];
    let both = readable.into_iter().flat_map(|(prefix, value)| {
        let garbage = (format!("{prefix}garbage.large.example"), filler.clone());
        [
            (format!("{prefix}large.large.example"), value.to_string()),
            garbage,
        ]
    });
    both.collect()
}

/// Waits until what is large is known, or skipped.
async fn until_read(proxy: &Proxy) {
    eventually("all of them are read", LONG, async || {
        let status = proxy.statusz().await;
        let peers = status["peers"].as_array().unwrap();
        let known = |peer: &serde_json::Value| {
            peer["id"] == "large.large.example" && peer["resources"] == SIZE / 20
        };
        let named = status["facts"]["undecodable"]
            .as_array()
            .map_or(0, Vec::len);
        // CustomResourceDefinitions and claims are known by their names alone.
        let seen = (peers.iter().any(known), named);
        if seen.0 && seen.1 >= 6 {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn values_as_large_as_etcd_takes_cost_little_and_harm_nobody() {
    let mut cluster = Cluster::new().await;
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    let admin = cluster.client().cert("admin");
    let local = asking(&admin.fresh(), "/api/v1/pods");
    let rerouted = asking(&admin.fresh(), HPAS);
    let pids = [&mut cluster.proxy_a, &mut cluster.proxy_b].map(|proxy| proxy.process().pid());
    let before = pids.map(peak);

    let large = large(&registry);
    // Again and again, as whoever may write there can.
    for _ in 0..3 {
        for (key, value) in &large {
            assert!(value.len() >= SIZE);
            registry.put(key, value).await;
        }
    }
    until_read(&cluster.proxy_a).await;
    for (pid, before) in pids.into_iter().zip(before) {
        let grown = peak(pid).saturating_sub(before);
        assert!(grown < MOST << 10, "{grown} KiB more than before");
    }
    let options = cluster.ground.proxy("c", cluster.a.addr());
    let mut late = Proxy::start(options.until(Until::Ready)).await;
    until_read(&late).await;
    let whole = peak(late.process().pid());
    assert!(whole < (MOST << 10) + before[0], "{whole} KiB");
    let through_late = late.client(&cluster.ground.pki).cert("admin");
    assert_eq!(through_late.get(HPAS).await.code(), 200);
    local.stop().await;
    rerouted.stop().await;
}
