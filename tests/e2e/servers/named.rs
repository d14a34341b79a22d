//! A proxy whose configured name is not the ID that its apiserver has given itself (KEP-1965): a kube-apiserver v1.20.2,
//! with the Lease that a current one keeps.

use std::sync::LazyLock;
use std::time::Duration;

use kube_interop_proxy::cluster::codec::endpoints;
use kube_interop_proxy::publish::identity::{computed, host_name};
use serde_json::{Value, json};

use super::LEASES;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

/// What a current kube-apiserver on this host calls itself.
static ID: LazyLock<String> = LazyLock::new(|| computed(&host_name(), "v1.36.0").unwrap());
/// Longer than a proxy waits for the Lease of its apiserver.
const WHILE: Duration = Duration::from_secs(4);

async fn create_lease(api: &KubeApiServer) {
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver",
        "kubernetes.io/hostname": host_name()});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": *ID, "labels": labels},
        "spec": {"holderIdentity": format!("{}_1", *ID), "leaseDurationSeconds": 3600,
            "renewTime": "2026-01-01T00:00:00.000000Z"}});
    write(api, "POST", LEASES, &lease).await;
}

fn proxy_options(api: &KubeApiServer, ground: &Ground, publish: &str) -> ProxyOptions {
    let options = ground.proxy("cp-1", api.addr());
    options
        .until(Until::Ready)
        .set("identity.publishLease", publish)
        .set("identity.renewInterval", "300ms")
}

async fn write(api: &KubeApiServer, method: &str, path: &str, object: &Value) {
    let written = api.admin().request(method, path, object.to_string());
    let written = written.await;
    assert!(written.code() < 300, "{}", written.text());
}

/// The identity Leases.
async fn leases(api: &KubeApiServer) -> Vec<Value> {
    let list = api.admin().get(LEASES).await.json();
    let items = list["items"].as_array().unwrap().iter().cloned();
    items
        .filter(|lease| {
            let labels = &lease["metadata"]["labels"];
            labels["apiserver.kubernetes.io/identity"] == "kube-apiserver"
                || labels["k8s.io/component"] == "kube-apiserver"
        })
        .collect()
}

/// That of the apiserver is the only one.
async fn has_one_identity(api: &KubeApiServer) -> Result<Value, String> {
    match &leases(api).await[..] {
        [one] if one["metadata"]["name"] == ID.as_str() => Ok(one.clone()),
        leases => Err(format!("{leases:#?}")),
    }
}

pub async fn an_apiserver_with_an_id_gets_no_second_one_from_its_proxys_name(
    api: &KubeApiServer,
    ground: &Ground,
) {
    create_lease(api).await;
    nor_a_lease(api, ground).await;
    but_one_that_is_always_kept_has_its_id(api, ground).await;
}

async fn nor_a_lease(api: &KubeApiServer, ground: &Ground) {
    let mut proxy = Proxy::start(proxy_options(api, ground, "Auto")).await;
    let told = async || {
        let server = proxy.statusz().await["server"].clone();
        (server["id"].clone(), server["apiserverId"].clone())
    };
    eventually("both names are known", LONG, async || {
        told().await == (json!("cp-1"), json!(*ID))
    })
    .await;
    let identity = [("id", ID.as_str())];
    assert_eq!(proxy.metric("apiserver_identity", &identity).await, 1.0);

    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let entry = |id: &str| format!("/registry/peerserverleases/{id}");
    let value = eventually("apiservers that reroute find it", LONG, async || {
        registry.get(&entry(&ID)).await
    });
    let found = endpoints(&value.await).unwrap();
    assert_eq!((&*found.server, found.address), (ID.as_str(), proxy.addr()));
    eventually("peers know both names", LONG, async || {
        let live = registry.get(&registry.live("cp-1")).await.ok_or("no key")?;
        let live: Value = serde_json::from_slice(&live).unwrap();
        let ready = live["apiServerID"] == ID.as_str() && live["recordRevision"].is_i64();
        ready.then_some(()).ok_or("not yet")
    })
    .await;
    let lease = has_one_identity(api).await.unwrap();
    holds("it has one identity", WHILE, async || {
        (has_one_identity(api).await? == lease)
            .then_some(())
            .ok_or_else(|| "it was changed".to_owned())
    })
    .await;
    for key in [registry.live(&ID), registry.server(&ID), entry("cp-1")] {
        assert_eq!(registry.get(&key).await, None, "{key}");
    }

    let mut restarted = lease;
    restarted["spec"]["holderIdentity"] = json!(format!("{}_2", *ID));
    let path = format!("{LEASES}/{}", *ID);
    write(api, "PUT", &path, &restarted).await;
    eventually("a restart is noticed", LONG, async || {
        proxy.log_tail().contains("has a new holder")
    })
    .await;

    proxy.terminate().await;
    assert_eq!(registry.get(&entry(&ID)).await, None);
    has_one_identity(api).await.unwrap();
}

async fn but_one_that_is_always_kept_has_its_id(api: &KubeApiServer, ground: &Ground) {
    let mut proxy = Proxy::start(proxy_options(api, ground, "Always")).await;
    let kept_by = async |who: &str| {
        eventually(&format!("it is kept by {who}"), LONG, async || {
            proxy.statusz().await["server"]["identityLeaseKeptBy"] == who
        })
        .await;
    };
    kept_by("other").await;
    holds("it has one identity", WHILE, async || {
        has_one_identity(api).await.map(|_| ())
    })
    .await;
    // Its apiserver is another one now, which keeps none.
    let path = format!("{LEASES}/{}", *ID);
    write(api, "DELETE", &path, &json!({})).await;
    kept_by("proxy").await;
    let kept = has_one_identity(api).await.unwrap();
    assert_eq!(
        kept["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "kube-interop-proxy"
    );
    for name in [
        "apiserver_identity_lease_success_count",
        "apiserver_identity_lease_start_time_seconds",
        "apiserver_identity_lease_renew_time_seconds",
    ] {
        assert!(
            proxy.metric(name, &[("id", ID.as_str())]).await > 0.0,
            "{name}"
        );
        assert_eq!(proxy.metric(name, &[("id", "cp-1")]).await, 0.0, "{name}");
    }
    proxy.terminate().await;
    assert_eq!(leases(api).await, Vec::<Value>::new());
}
