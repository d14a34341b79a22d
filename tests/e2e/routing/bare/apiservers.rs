//! One proxy among three real kube-apiservers, which write their keys below `masterleases/` themselves. A has the
//! proxy and lacks two groups; only B serves the one, only C the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;

use crate::routing::real_apiservers::{LONGER, without_autoscaling};
use testkit::addr::Loopback;
use testkit::client::{Client, Response};
use testkit::cluster::{Ground, HPAS, HPAS_IN_DEFAULT};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::kubectl::Kubectl;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::wait::{eventually, holds};

const JOBS: &str = "/apis/batch/v1/jobs";
const PEERS: &str = "kube_interop_proxy_peers";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";

/// A control plane node: its address, and one that plays its 127.0.0.1.
struct Node {
    name: &'static str,
    address: Loopback,
    inside: Loopback,
}

impl Node {
    fn new(name: &'static str) -> Self {
        let (address, inside) = (Loopback::new(), Loopback::new());
        Self {
            name,
            address,
            inside,
        }
    }

    /// A kube-apiserver on it, at its address, or inside behind a proxy. It advertises the address either way.
    fn options(&self, ground: &Ground, behind_proxy: bool) -> KubeOptions {
        let bind = if behind_proxy {
            &self.inside
        } else {
            &self.address
        };
        ground
            .kube(self.name)
            .without("endpoint-reconciler-type")
            .bind(bind.ip())
            .advertise(self.address.socket(6443))
            .do_not_wait()
    }

    /// A proxy on it, at its address.
    async fn proxy(&self, ground: &Ground, api_server: &KubeApiServer) -> Proxy {
        let options = ground.proxy(self.name, api_server.addr());
        let options = options
            .at(self.address.socket(6443))
            .set("peer.leaseTTL", "10s");
        Proxy::start(options.until(Until::Ready)).await
    }
}

async fn start(options: KubeOptions, ground: &Ground) -> KubeApiServer {
    KubeApiServer::start(options, &ground.pki).await
}

/// Waits until the apiserver of this node has its master lease. It writes it some time after its `/readyz`, after the
/// namespace `default`, and without it nobody knows of the server.
async fn until_advertised(ground: &Ground, node: &Node) {
    let key = format!("/registry/masterleases/{}", node.address.ip());
    eventually(&key, LONGER, async || {
        !ground.etcd.below(&key).await.is_empty()
    })
    .await;
}

/// Asks again and again: no answer may be a 404. A server that is killed breaks off what it answers.
fn never_a_404(admin: &Client, path: &'static str) -> Steady {
    asked(admin, path, |answer| match answer {
        Err(error) if error.to_string() == "the body broke off" => Ok(()),
        answer => one_of(answer, &[200, 503]),
    })
}

fn always_served(admin: &Client, path: &'static str) -> Steady {
    asked(admin, path, |answer| one_of(answer, &[200]))
}

fn asked(
    admin: &Client,
    path: &'static str,
    judge: fn(anyhow::Result<Response>) -> Result<(), String>,
) -> Steady {
    let admin = admin.fresh();
    Steady::start(path, Duration::from_millis(100), 100_000, move || {
        let admin = admin.clone();
        async move { judge(admin.try_get(path).await) }
    })
}

fn one_of(answer: anyhow::Result<Response>, codes: &[u16]) -> Result<(), String> {
    match answer {
        Ok(answer) if codes.contains(&answer.code()) => Ok(()),
        Ok(answer) => Err(format!("{} {}", answer.code(), answer.text())),
        Err(error) => Err(format!("{error:#}")),
    }
}

async fn until_served(admin: &Client, path: &str) {
    eventually(&format!("{path} is served"), LONGER, async || {
        let answer = admin.get(path).await;
        assert_ne!(answer.code(), 404, "{}", answer.text());
        answer.code() == 200
    })
    .await;
}

/// As administrator, with a token, and as nobody; reads, writes and a watch.
async fn everybody_is_served(proxy: &Proxy, ground: &Ground) {
    let client = proxy.client(&ground.pki);
    let admin = client.cert("admin");
    let mut watch = admin.open(&format!("{HPAS}?watch=true")).await;
    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"}, "spec": {"maxReplicas": 2,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let token = client.token("tok-admin");
    let created = token
        .request("POST", HPAS_IN_DEFAULT, object.to_string())
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let event = watch.next_event(LONGER).await.unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "web", "{event}");
    let nobody = client.get(HPAS).await;
    assert_eq!(nobody.code(), 403, "{}", nobody.text());
    assert!(
        nobody.text().contains("system:anonymous"),
        "{}",
        nobody.text()
    );
    let bob = client.token("tok-bob").get(HPAS).await;
    assert!(
        bob.text().contains(r#"User \"bob\" cannot list"#),
        "{}",
        bob.text()
    );

    let kubectl = Kubectl::new(proxy.addr(), &ground.pki, ground.dir.path());
    let kubectl = kubectl.cert(&ground.pki, "admin");
    let listed = kubectl.run(&["get", "hpa", "--output=name"]).await;
    assert_eq!(listed.trim(), "horizontalpodautoscaler.autoscaling/web");
    kubectl.run(&["get", "jobs"]).await;
}

#[tokio::test]
async fn one_proxy_is_enough_whatever_users_write_and_another_one_can_be_added() {
    let ground = Ground::bootstrapped().await;
    let [a, b, c] = ["cp-a", "cp-b", "cp-c"].map(Node::new);
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let lacking_jobs = |options: KubeOptions| options.without_group("batch");
    let of_a = lacking_jobs(without_autoscaling(a.options(&ground, true)));
    let of_c = without_autoscaling(c.options(&ground, false));
    let (mut on_a, mut on_b, mut on_c) = (
        start(of_a, &ground).await,
        start(lacking_jobs(b.options(&ground, false)), &ground).await,
        start(of_c, &ground).await,
    );
    for (server, node) in [(&mut on_a, &a), (&mut on_b, &b), (&mut on_c, &c)] {
        server.wait_ready().await;
        // It may come a moment later.
        let key = registry.master_lease(node.address.ip());
        let written = async || registry.get(&key).await.is_some();
        eventually("its key is written", LONGER, written).await;
    }
    let mut proxy_a = a.proxy(&ground, &on_a).await;
    let admin = proxy_a.client(&ground.pki).cert("admin");
    until_served(&admin, HPAS).await;
    until_served(&admin, JOBS).await;
    proxy_a
        .until_metric(PEERS, &[("state", "bare")], |count| count == 2.0)
        .await;
    everybody_is_served(&proxy_a, &ground).await;
    what_a_user_writes_decides_nothing(&ground, (&b, &on_b), &mut proxy_a).await;

    let admin = admin.fresh();
    until_served(&admin, JOBS).await;
    let asking = [HPAS, JOBS].map(|path| never_a_404(&admin, path));
    on_b.stop().await;
    let mut behind_b = start(lacking_jobs(b.options(&ground, true)), &ground).await;
    behind_b.wait_ready().await;
    let proxy_b = b.proxy(&ground, &behind_b).await;
    proxy_a
        .until_metric(PEERS, &[("state", "target")], |count| count == 1.0)
        .await;
    until_served(&admin, HPAS).await;
    until_served(&proxy_b.client(&ground.pki).cert("admin"), JOBS).await;

    on_c.kill();
    what_it_served_is_not_gone(&registry.master_lease(c.address.ip()), &registry, &admin).await;
    for asked in asking {
        asked.stop().await;
    }
}

/// C's apiserver is dead. `key`: below `masterleases/`.
async fn what_it_served_is_not_gone(key: &str, registry: &Registry, admin: &Client) {
    eventually("its key has ended", LONGER, async || {
        registry.get(key).await.is_none()
    })
    .await;
    holds(
        "C is gone, and not what it served",
        Duration::from_secs(2),
        async || admin.get(JOBS).await.code() == 503,
    )
    .await;
}

/// Lets bob do with Endpoints in `default` what he likes, as the role `edit` of 1.20 does.
async fn let_bob_edit_endpoints(admin: &Client) {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let group = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "bob"},
        "rules": [{"apiGroups": [""], "resources": ["endpoints"], "verbs": ["*"]}]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "bob"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": group}],
        "roleRef": {"kind": "Role", "name": "bob", "apiGroup": group}});
    for (resource, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("{RBAC}/{resource}");
        let created = admin.request("POST", &path, object.to_string()).await;
        assert_eq!(created.code(), 201, "{}", created.text());
    }
}

/// As bob, changes the port in the Endpoints of the Service `kubernetes` every 0.3 s, between these two.
fn endpoints_that_change(bob: &Client, ports: [u16; 2]) -> Steady {
    let (bob, mut number) = (bob.fresh(), 0);
    Steady::start("bob", Duration::from_millis(300), 100_000, move || {
        let bob = bob.clone();
        number += 1;
        // The address has to be one that kube-apiserver takes: not on loopback.
        let object = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "kubernetes"},
            "subsets": [{"addresses": [{"ip": "192.0.2.1"}],
                "ports": [{"name": "https", "port": ports[number % 2], "protocol": "TCP"}]}]});
        async move {
            let path = format!("{ENDPOINTS}/kubernetes");
            let mut written = bob.request("PUT", &path, object.to_string()).await;
            if written.code() == 404 {
                written = bob.request("POST", ENDPOINTS, object.to_string()).await;
            }
            match written.code() {
                200 | 201 => Ok(()),
                _ => Err(written.text()),
            }
        }
    })
}

/// A listener, and how many connections it got.
async fn counting(node: &Node, port: u16) -> Arc<AtomicUsize> {
    let listener = TcpListener::bind(node.address.socket(port)).await.unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    count
}

/// Not the Endpoints of the Service `kubernetes`, also if A's proxy starts with them.
async fn what_a_user_writes_decides_nothing(
    ground: &Ground,
    (b, on_b): (&Node, &KubeApiServer),
    proxy_a: &mut Proxy,
) {
    const CHOSEN: u16 = 7443;
    let_bob_edit_endpoints(on_b.admin()).await;
    let chosen = counting(b, CHOSEN).await;
    let admin = proxy_a.client(&ground.pki).cert("admin");
    until_served(&admin, HPAS).await;

    let bob = proxy_a.client(&ground.pki).token("tok-bob");
    eventually("bob may write them", LONGER, async || {
        bob.get(ENDPOINTS).await.code() == 200
    })
    .await;
    let served = always_served(&admin, HPAS);
    let changing = endpoints_that_change(&bob, [CHOSEN, 6443]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    served.stop().await;
    changing.stop().await;

    // Straight at an apiserver, while the proxy is down.
    let straight = Client::new(on_b.addr(), &ground.pki).token("tok-bob");
    let changing = endpoints_that_change(&straight, [CHOSEN, CHOSEN]);
    until_advertised(ground, b).await;
    proxy_a.kill();
    proxy_a.start_again().await;
    let admin = admin.fresh();
    until_served(&admin, HPAS).await;
    let served = always_served(&admin, HPAS);
    tokio::time::sleep(Duration::from_secs(5)).await;
    served.stop().await;
    changing.stop().await;
    assert_eq!(chosen.load(Ordering::Relaxed), 0, "connections");
}
