//! Values of etcd's maximum size below every watched prefix.

use serde_json::json;

use crate::etcd::outages::asking;
use crate::http::bodies::peak;
use testkit::cluster::{Cluster, HPAS, LONG};
use testkit::double::v1_20;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

/// etcd takes 1.5 MiB, its key and envelope included.
const SIZE: usize = 1400 << 10;
/// MiB that they may cost a proxy, most of it for a record of 70,000 resources that becomes a snapshot while the one
/// before is still in use.
const MOST: u64 = 384;

/// How often each is written: the second time while what came before is in use.
const ROUNDS: usize = 2;
/// Those of [`large`] that cannot be read. Nobody reads what is in a claim.
const GARBAGE: usize = 7;

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

/// Waits until everything up to `revision` is read, so many values in vain. The status page would take memory of its
/// own.
async fn until_read(proxy: &Proxy, revision: i64, garbage: usize) {
    let metric = async |name| proxy.metric(name, &[]).await;
    eventually("all of them are read", LONG, async || {
        let seen = metric("kube_interop_proxy_etcd_revision").await;
        // Seen first, then decoded.
        let skipped = metric("kube_interop_proxy_etcd_undecodable_total").await;
        let all = seen >= revision as f64 && skipped >= garbage as f64;
        all.then_some(())
            .ok_or(format!("{seen}, {skipped} skipped"))
    })
    .await;
}

#[tokio::test]
async fn values_as_large_as_etcd_takes_cost_little_and_harm_nobody() {
    // etcd itself is slow meanwhile, and nobody is to be taken for dead over that.
    let patient = |options: ProxyOptions| options.set("peer.leaseTTL", "60s");
    let mut cluster = Cluster::with(v1_20(), patient).await;
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    let admin = cluster.client().cert("admin");
    let local = asking(&admin.fresh(), "/api/v1/pods");
    let rerouted = asking(&admin.fresh(), HPAS);
    let pids = [&mut cluster.proxy_a, &mut cluster.proxy_b].map(|proxy| proxy.process().pid());
    let before = pids.map(peak);

    let large = large(&registry);
    let mut revision = 0;
    // Again and again, as whoever may write there can.
    for _ in 0..ROUNDS {
        for (key, value) in &large {
            assert!(value.len() >= SIZE);
            revision = registry.put(key, value).await;
        }
    }
    for (proxy, before) in [&mut cluster.proxy_a, &mut cluster.proxy_b]
        .into_iter()
        .zip(before)
    {
        until_read(proxy, revision, ROUNDS * GARBAGE).await;
        let grown = peak(proxy.process().pid()).saturating_sub(before);
        assert!(grown < MOST << 10, "{grown} KiB more than before");
    }
    let options = cluster.ground.proxy("c", cluster.a.addr());
    let mut late = Proxy::start(options.until(Until::Ready)).await;
    until_read(&late, revision, GARBAGE).await;
    let whole = peak(late.process().pid());
    assert!(whole < (MOST << 10) + before[0], "{whole} KiB");
    let through_late = late.client(&cluster.ground.pki).cert("admin");
    assert_eq!(through_late.get(HPAS).await.code(), 200);
    local.stop().await;
    rerouted.stop().await;
    // Last: this page names 70,000 resources, and the doubles answer nobody while it is parsed.
    let status = late.statusz().await;
    let peers = status["peers"].as_array().unwrap();
    let known = |peer: &serde_json::Value| {
        peer["id"] == "large.large.example" && peer["resources"] == SIZE / 20
    };
    assert!(peers.iter().any(known), "what can be read is known");
}
