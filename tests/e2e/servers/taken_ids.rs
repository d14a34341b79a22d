//! A user who may write Leases, and nothing else, before a real kube-apiserver: no Lease makes a proxy take what is
//! another server's. B alone served a group, and is dead: a 404 for it would be false.

use std::time::Duration;

use kube_interop_proxy::publish::identity::{computed, host_name};
use serde_json::{Value, json};

use super::LEASES;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG};
use testkit::double::v1_20;
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

/// Longer than a proxy takes to see a Lease, and to write all of its keys.
const WHILE: Duration = Duration::from_secs(4);

/// A kube-apiserver without the group, and a Lease of B. Bob may do with Leases what he likes.
struct BobsLeases<'a> {
    api: &'a KubeApiServer,
    bob: Client,
    registry: Registry,
    ground: &'a Ground,
}

impl<'a> BobsLeases<'a> {
    async fn new(api: &'a KubeApiServer, ground: &'a Ground) -> Self {
        let group = "rbac.authorization.k8s.io";
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "bob"},
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]});
        let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "bob"},
            "subjects": [{"kind": "User", "name": "bob", "apiGroup": group}],
            "roleRef": {"kind": "Role", "name": "bob", "apiGroup": group}});
        for (resource, object) in [("roles", role), ("rolebindings", binding)] {
            let path = format!("/apis/{group}/v1/namespaces/kube-system/{resource}");
            let created = api.admin().request("POST", &path, object.to_string()).await;
            assert_eq!(created.code(), 201, "{}", created.text());
        }
        Self {
            bob: Client::new(api.addr(), &ground.pki).token("tok-bob"),
            registry: Registry::new(ground.etcd.client().await, "/registry"),
            api,
            ground,
        }
    }

    /// B's proxy has this ID. Both are killed.
    async fn b_was(&self, id: &str) {
        let b = self.ground.double(v1_20()).await;
        let mut proxy = Proxy::start(self.ground.proxy(id, b.addr()).until(Until::Ready)).await;
        proxy.kill();
    }

    /// Bob says that the Lease of this name is that of an apiserver on this host.
    async fn labels(&self, name: &str) {
        let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver",
            "kubernetes.io/hostname": host_name()});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": labels},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 3600,
                "renewTime": "2026-01-01T00:00:00.000000Z"}});
        let created = self.bob.request("POST", LEASES, lease.to_string()).await;
        assert_eq!(created.code(), 201, "{}", created.text());
    }

    /// The ready proxy of A. `server_id`: empty, if it is not configured.
    async fn proxy_a(&self, server_id: &str) -> Proxy {
        let options = self.ground.proxy(server_id, self.api.addr());
        Proxy::start(options.until(Until::Ready)).await
    }

    /// For a while: what B served is a 503, its record is as it was, and A's ID is not B's.
    async fn b_is_absent(&self, proxy_a: &Proxy, id: &str, record: &[u8]) {
        let admin = proxy_a.client(&self.ground.pki).cert("admin");
        holds("B is absent, and not A", WHILE, async || {
            let answer = admin.get(HPAS).await;
            if answer.code() != 503 {
                return Err(format!("{} {}", answer.code(), answer.text()));
            }
            let own = proxy_a.statusz().await["server"]["id"].clone();
            let kept = self.registry.get(&self.registry.server(id)).await;
            match own != id && kept.as_deref() == Some(record) {
                true => Ok(()),
                false => Err(format!("{own} {kept:?}")),
            }
        })
        .await;
    }
}

pub async fn no_lease_makes_a_proxy_take_what_is_anothers(api: &KubeApiServer, ground: &Ground) {
    let leases = BobsLeases::new(api, ground).await;
    for id in ["apiserver-b", &computed(&host_name(), "v1.36.0").unwrap()] {
        the_id_of_a_dead_server(&leases, id).await;
    }
    the_entry_and_the_storage_versions_of_an_apiserver(&leases).await;
}

/// Whether the Lease comes while A's proxy runs or before; by its label or by what kube-apiserver computes.
async fn the_id_of_a_dead_server(leases: &BobsLeases<'_>, id: &str) {
    leases.b_was(id).await;
    let key = leases.registry.server(id);
    let record = leases.registry.get(&key).await.unwrap();
    let mut proxy_a = leases.proxy_a("").await;
    eventually("A has an ID", LONG, async || {
        proxy_a.statusz().await["server"]["id"].is_string()
    })
    .await;
    leases.labels(id).await;
    leases.b_is_absent(&proxy_a, id, &record).await;
    proxy_a.kill();
    proxy_a.start_again().await;
    leases.b_is_absent(&proxy_a, id, &record).await;

    assert!(proxy_a.terminate().await.success());
    let lease = format!("{LEASES}/{id}");
    let deleted = leases.bob.request("DELETE", &lease, "");
    assert_eq!(deleted.await.code(), 200);
    leases.registry.delete(&key).await;
}

/// By its label.
async fn the_entry_and_the_storage_versions_of_an_apiserver(leases: &BobsLeases<'_>) {
    let id = "apiserver-b";
    leases.labels(id).await;
    for server_id in ["a", ""] {
        let mut proxy_a = leases.proxy_a(server_id).await;
        let apiserver = eventually("A's apiserver has an ID", LONG, async || {
            let status = proxy_a.statusz().await;
            status["server"]["apiserverId"].as_str().map(str::to_owned)
        })
        .await;
        assert_ne!(apiserver, id);
        let entry = |id: &str| format!("/registry/peerserverleases/{id}");
        eventually("it has its own entry", LONG, async || {
            leases.registry.get(&entry(&apiserver)).await.is_some()
        })
        .await;
        assert_eq!(leases.registry.get(&entry(id)).await, None);
        let own = proxy_a.statusz().await["server"]["id"].clone();
        let live = leases.registry.live(own.as_str().unwrap());
        let live: Value =
            serde_json::from_slice(&leases.registry.get(&live).await.unwrap()).unwrap();
        assert_ne!(live["apiServerID"], id);
        assert!(proxy_a.terminate().await.success());
    }
}
