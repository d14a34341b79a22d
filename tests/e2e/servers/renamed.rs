//! Servers without a configured ID: it is generated, discovered, and changes while they run.

use std::time::Duration;

use kube_interop_proxy::publish::identity::{computed, host_name};
use serde_json::{Value, json};

use super::LEASES;
use crate::etcd::outages::asking;
use testkit::cluster::{Ground, HPAS, LONG, lists};
use testkit::double::v1_20;
use testkit::kube::{self, KubeApiServer, Need};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

const DUPLICATE: &str = "kube_interop_proxy_duplicate_server_id";
/// `peer.leaseTTL` of these tests' proxies.
const LEASE_TTL: Duration = Duration::from_secs(3);

/// A proxy that finds out its ID, and keeps a Lease.
fn nameless(ground: &Ground, api: &KubeApiServer) -> ProxyOptions {
    let options = ground.proxy("", api.addr()).until(Until::Ready);
    options
        .set("identity.publishLease", "Auto")
        .set("identity.renewInterval", "300ms")
}

async fn id(proxy: &Proxy) -> String {
    eventually("it has an ID", LONG, async || {
        let id = proxy.statusz().await["server"]["id"].clone();
        id.as_str().map(str::to_owned)
    })
    .await
}

/// Names of the Leases in `kube-system`.
async fn leases(api: &KubeApiServer) -> Vec<String> {
    let list = api.admin().get(LEASES).await.json();
    let items = list["items"].as_array().unwrap().iter();
    let name = |lease: &Value| lease["metadata"]["name"].as_str().unwrap().to_owned();
    items.map(name).collect()
}

fn is_target(status: &Value, id: &str) -> bool {
    let peers = status["peers"].as_array().unwrap();
    peers
        .iter()
        .any(|peer| peer["id"] == id && peer["target"] == true)
}

pub async fn two_hosts_of_one_name_are_two_servers(api: &KubeApiServer, ground: &Ground) {
    let first = Proxy::start(nameless(ground, api)).await;
    // From 1.26 on it is called as its apiserver would call itself, once there is a Lease of that name.
    let first_id = eventually("its Lease names this host", LONG, async || {
        let id = id(&first).await;
        leases(api).await.contains(&id).then_some(id)
    })
    .await;
    let second = Proxy::start(nameless(ground, api)).await;
    let second_id = id(&second).await;
    assert_ne!(first_id, second_id);
    eventually("each is the other's peer", LONG, async || {
        is_target(&first.statusz().await, &second_id)
            && is_target(&second.statusz().await, &first_id)
    })
    .await;
    eventually("each has a Lease", LONG, async || {
        let leases = leases(api).await;
        leases.contains(&first_id) && leases.contains(&second_id)
    })
    .await;
    holds("they are two", LEASE_TTL, async || {
        let same = id(&first).await == first_id && id(&second).await == second_id;
        same && first.metric(DUPLICATE, &[]).await + second.metric(DUPLICATE, &[]).await == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_server_restarted_under_a_new_id_is_one_server() {
    let ground = Ground::new().await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let b = ground.double(v1_20()).await;
    let proxy_a = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let mut proxy_b = Proxy::start(ground.proxy("", b.addr()).until(Until::Ready)).await;
    let before = id(&proxy_b).await;
    let only_peer_is = async |id: &str| {
        eventually("it is the only peer", LONG, async || {
            let status = proxy_a.statusz().await;
            let one = status["peers"]
                .as_array()
                .is_some_and(|peers| peers.len() == 1);
            if one && is_target(&status, id) && lists(&status, id, "autoscaling") {
                return Ok(());
            }
            Err(status["peers"].to_string())
        })
        .await;
    };
    only_peer_is(&before).await;
    // Its keys of before are still there.
    proxy_b.kill();
    proxy_b.start_again().await;
    let now = id(&proxy_b).await;
    assert_ne!(now, before);
    only_peer_is(&now).await;
    eventually("it knows its own entry", LONG, async || {
        proxy_b.log_tail().contains("it is this server itself")
    })
    .await;
    assert!(!proxy_b.log_tail().contains("forgotten"));
    let admin = proxy_a.client(&ground.pki).cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);
    assert_eq!(proxy_a.metric(DUPLICATE, &[]).await, 0.0);
}

#[tokio::test]
async fn a_server_whose_id_is_found_later_is_never_gone_in_between() {
    // A new UUID at each start.
    if kube::lacks(&[Need::Before(26)]) {
        return;
    }
    let ground = Ground::bootstrapped().await;
    let options = ground.kube("cp-b").feature_gate("APIServerIdentity=true");
    let mut api = KubeApiServer::start(options, &ground.pki).await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    // Both have one host name. A looks elsewhere, or it could find what B is to find.
    let options = ground.proxy("a", a.addr()).until(Until::Ready);
    let options = options.set("identity.leaseNamespaces", "[elsewhere]");
    let proxy_a = Proxy::start(options).await;
    let proxy_b = Proxy::start(nameless(&ground, &api)).await;
    let made_up = id(&proxy_b).await;
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let entry = |id: &str| format!("/registry/peerserverleases/{id}");
    let served_by = async |id: &str| {
        eventually("A knows what B serves", LONG, async || {
            let status = proxy_a.statusz().await;
            if is_target(&status, id) && lists(&status, id, "autoscaling") {
                return Ok(());
            }
            Err(status["peers"].to_string())
        })
        .await;
    };
    served_by(&made_up).await;

    // A new UUID for a name, as v1.20 has it, says nothing of this host.
    let of_apiserver = async || {
        let leases = leases(&api).await.into_iter();
        leases
            .filter(|name| name.starts_with("kube-apiserver-"))
            .count()
    };
    assert_eq!(of_apiserver().await, 1);
    api.restart().await;
    eventually("it is known by another UUID too", LONG, async || {
        leases(&api)
            .await
            .iter()
            .filter(|name| name.starts_with("kube-apiserver-"))
            .count()
            == 2
    })
    .await;
    served_by(&made_up).await;
    assert_eq!(id(&proxy_b).await, made_up);

    let admin = proxy_a.client(&ground.pki).cert("admin");
    eventually("B answers again", LONG, async || {
        admin.get(HPAS).await.code() == 200
    })
    .await;
    let always_served = asking(&admin.fresh(), HPAS);
    // What one of 1.28 and later keeps.
    let found = &*computed(&host_name(), "v1.36.0").unwrap();
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver",
        "kubernetes.io/hostname": host_name()});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": found, "labels": labels},
        "spec": {"holderIdentity": "the apiserver", "leaseDurationSeconds": 3600,
            "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let created = api.admin().request("POST", LEASES, lease.to_string()).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    eventually("the ID is found", LONG, async || {
        id(&proxy_b).await == found
    })
    .await;
    served_by(found).await;
    for key in [registry.live(&made_up), entry(&made_up)] {
        eventually(&format!("{key} is gone"), LONG, async || {
            registry.get(&key).await.is_none()
        })
        .await;
    }
    for key in [registry.live(found), entry(found)] {
        eventually(&format!("{key} is there"), LONG, async || {
            registry.get(&key).await.is_some()
        })
        .await;
    }
    eventually("so is its Lease", LONG, async || {
        !leases(&api).await.contains(&made_up)
    })
    .await;
    let is_one = |peers: &Value| peers.as_array().is_some_and(|peers| peers.len() == 1);
    // The former live key may count for another life, if etcd was quiet for a moment.
    eventually("one server is left", LONG, async || {
        is_one(&proxy_a.statusz().await["peers"])
    })
    .await;
    holds("one server, not two", LEASE_TTL, async || {
        let peers = proxy_a.statusz().await["peers"].clone();
        if !is_one(&peers) {
            return Err(peers.to_string());
        }
        for proxy in [&proxy_a, &proxy_b] {
            if proxy.metric(DUPLICATE, &[]).await != 0.0 {
                return Err("a duplicate ID".to_owned());
            }
        }
        Ok(())
    })
    .await;
    always_served.stop().await;
    let kept = api.admin().get(&format!("{LEASES}/{found}")).await;
    assert_eq!(kept.json()["spec"]["holderIdentity"], "the apiserver");
    assert!(!proxy_b.log_tail().contains("claims this server ID"));
}
