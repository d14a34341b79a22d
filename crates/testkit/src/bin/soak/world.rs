//! The cluster: three members of etcd, three kube-apiservers that differ, a proxy beside each, links that can be broken
//! around each proxy, and a balancer before the proxies.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::addr::Loopback;
use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::binary;
use testkit::cut::Cut;
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;
use tokio::sync::Mutex;

use crate::kinds::{ANCHOR, DEFINITIONS, KINDS, USERS, User, definition};
use crate::plan::{Files, Group, Link, NODES, at_first};

const PATIENCE: Duration = Duration::from_secs(90);

pub struct World {
    pub balancer: Balancer,
    pub nodes: Vec<Mutex<Node>>,
    pub links: Vec<Links>,
    pub etcds: Vec<Mutex<Etcd>>,
    pub pki: Pki,
    pub dir: TempDir,
}

pub struct Node {
    pub server: KubeApiServer,
    pub proxy: Proxy,
    /// The proxy listens there.
    _own: Loopback,
}

/// Around one proxy. Nothing goes another way.
pub struct Links {
    clients: Cut,
    peers: Cut,
    apiserver: Cut,
    /// To each member.
    etcd: Vec<Cut>,
}

impl Links {
    pub fn of(&self, link: Link) -> &[Cut] {
        let one = std::slice::from_ref;
        match link {
            Link::Clients => one(&self.clients),
            Link::Peers => one(&self.peers),
            Link::Apiserver => one(&self.apiserver),
            Link::Etcd => &self.etcd,
        }
    }
}

impl World {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = pki(&dir);
        let mut addresses: Vec<_> = (0..NODES * NODES).map(|_| Loopback::new()).collect();
        let options = EtcdOptions {
            also: addresses.iter().map(Loopback::ip).collect(),
            ..EtcdOptions::default()
        };
        let etcds = Etcd::start_cluster_with(dir.path(), &pki, NODES, &options).await;
        let mut servers = Vec::new();
        for node in 0..NODES {
            servers
                .push(KubeApiServer::start(server_options(&dir, &pki, &etcds, node), &pki).await);
        }
        let (mut nodes, mut links) = (Vec::new(), Vec::new());
        prepare(&servers).await;
        for (node, server) in servers.into_iter().enumerate() {
            let (own, peers) = (Loopback::new(), Loopback::new());
            let of_proxy = std::net::SocketAddr::new(own.ip(), 6443);
            let mut etcd = Vec::new();
            for (address, member) in addresses.drain(..NODES).zip(&etcds) {
                etcd.push(Cut::start(address, member.addr()).await);
            }
            let around = Links {
                clients: Cut::start(Loopback::new(), of_proxy).await,
                peers: Cut::start(peers, of_proxy).await,
                apiserver: Cut::start(Loopback::new(), server.addr()).await,
                etcd,
            };
            rotate(&pki, node, Files::Serving);
            rotate(&pki, node, Files::ProxyClient);
            let proxy = Proxy::start(proxy_options(&dir, &pki, node, &around).at(of_proxy).set(
                "peer.advertiseAddress",
                &format!("\"{}\"", around.peers.addr()),
            ));
            let proxy = proxy.await;
            nodes.push(Mutex::new(Node {
                server,
                proxy,
                _own: own,
            }));
            links.push(around);
        }
        let admin = |addr| Client::new(addr, &pki).cert("admin");
        let behind = links.iter().map(|links| links.clients.addr());
        let balancer = Balancer::start(behind.map(|addr| (addr, admin(addr))).collect()).await;
        eventually("all proxies are ready", PATIENCE, async || {
            balancer.ready() == NODES
        })
        .await;
        Self {
            balancer,
            nodes,
            links,
            etcds: etcds.into_iter().map(Mutex::new).collect(),
            pki,
            dir,
        }
    }

    /// Through the balancer.
    pub fn admin(&self) -> Client {
        self.without_certificate().cert("admin")
    }

    /// Through the balancer, as nobody.
    pub fn without_certificate(&self) -> Client {
        Client::new(self.balancer.addr(), &self.pki)
    }

    /// Through the balancer.
    pub fn user(&self, user: &User) -> Client {
        let client = self.without_certificate();
        match user.token {
            Some(token) => client.token(token),
            None => client.cert(user.name),
        }
    }

    pub fn rotate(&self, node: usize, files: Files) {
        rotate(&self.pki, node, files);
    }
}

fn pki(dir: &TempDir) -> Pki {
    let pki = Pki::new(&dir.path().join("pki"));
    pki.leaf("carol", "ca", &LeafOptions::client("carol"));
    let tokens = pki.path("tokens.csv");
    let known = std::fs::read_to_string(&tokens).expect("tokens");
    std::fs::write(&tokens, format!("{known}tok-dave,dave,uid3,\"devs\"\n")).expect("tokens");
    pki
}

fn server_options(dir: &TempDir, pki: &Pki, etcds: &[Etcd], node: usize) -> KubeOptions {
    let members: Vec<_> = etcds.iter().map(Etcd::endpoint).collect();
    let options = KubeOptions::new(dir.path(), pki, &etcds[0], &format!("cp-{node}"))
        .without("etcd-servers")
        .arg(&format!("--etcd-servers={}", members.join(",")));
    let settings = runtime_config(&at_first()[node]);
    settings
        .iter()
        .fold(options, |options, setting| options.runtime_config(setting))
}

pub fn runtime_config(without: &BTreeSet<Group>) -> Vec<String> {
    let settings = without.iter().flat_map(|group| group.switched_off());
    settings.map(|setting| (*setting).to_owned()).collect()
}

fn proxy_options(dir: &TempDir, pki: &Pki, node: usize, links: &Links) -> ProxyOptions {
    let members: Vec<_> = links
        .etcd
        .iter()
        .map(|link| format!("https://{}", link.addr()))
        .collect();
    let file = |name: String| pki.file(&name);
    ProxyOptions::new(
        binary(),
        dir.path(),
        pki,
        links.apiserver.addr(),
        &members.join(", "),
    )
    .server_id(&format!("node-{node}"))
    .set("serving.certFile", &file(format!("serving-{node}.crt")))
    .set("serving.keyFile", &file(format!("serving-{node}.key")))
    .set(
        "apiServer.proxyClientCertFile",
        &file(format!("front-{node}.crt")),
    )
    .set(
        "apiServer.proxyClientKeyFile",
        &file(format!("front-{node}.key")),
    )
    .set("watch.bookmarkOnShutdown", "true")
    .set("peer.leaseTTL", "5s")
    .set("shutdown.delay", "1s")
    .set("shutdown.drain", "3s")
    .until(Until::Ready)
}

fn rotate(pki: &Pki, node: usize, files: Files) {
    match files {
        Files::Serving => {
            let names = ["kubernetes", SERVER_NAME, "localhost"];
            let options = LeafOptions::server("kube-apiserver", &names);
            pki.leaf(&format!("serving-{node}"), "ca", &options);
        }
        Files::ProxyClient => {
            let options = LeafOptions::client("front-proxy-client");
            pki.leaf(&format!("front-{node}"), "front-proxy-ca", &options);
        }
    }
}

/// Namespaces, rights, and an object of each kind in each namespace. Returns when every server knows of them.
async fn prepare(servers: &[KubeApiServer]) {
    let admin = servers[0].admin();
    create(
        admin,
        DEFINITIONS,
        &definition("soak.test", "widgets", "Widget"),
    )
    .await;
    for user in USERS {
        let (namespace, meta) = (user.namespace, |name: &str| json!({"name": name}));
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta(namespace)});
        create(admin, "/api/v1/namespaces", &object).await;
        let rbac = |plural: &str| {
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}")
        };
        let version = "rbac.authorization.k8s.io/v1";
        let rules = json!([{"apiGroups": ["", "autoscaling", "batch", "soak.test"], "verbs": ["*"],
            "resources": KINDS.iter().map(|kind| kind.plural).collect::<Vec<_>>()}]);
        let role =
            json!({"apiVersion": version, "kind": "Role", "metadata": meta("own"), "rules": rules});
        create(admin, &rbac("roles"), &role).await;
        let subject =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name});
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "own"});
        let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": meta("own"),
            "subjects": [subject], "roleRef": role});
        create(admin, &rbac("rolebindings"), &binding).await;
        for kind in &KINDS {
            let object = kind.object(&json!({"name": ANCHOR, "labels": {"owner": user.name}}));
            create_anywhere(servers, &kind.collection(namespace), &object).await;
        }
    }
    let last = USERS[NODES].namespace;
    for server in servers {
        let admin = server.admin();
        let path = format!(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/{last}/rolebindings?resourceVersion=0"
        );
        eventually("rights are known", PATIENCE, async || {
            admin.get(&path).await.text().contains("own")
        })
        .await;
        let path = format!("{}?resourceVersion=0", KINDS[3].collection(last));
        eventually("the definition is known", PATIENCE, async || {
            admin.get(&path).await.code() == 200
        })
        .await;
    }
}

async fn create(admin: &Client, path: &str, object: &Value) {
    eventually("an object is created", PATIENCE, async || {
        let answer = admin.request("POST", path, object.to_string()).await;
        matches!(answer.code(), 201 | 409)
            .then_some(())
            .ok_or(answer.text())
    })
    .await;
}

/// At the first server that serves it.
async fn create_anywhere(servers: &[KubeApiServer], path: &str, object: &Value) {
    eventually("an object is created", PATIENCE, async || {
        for server in servers {
            let answer = server
                .admin()
                .request("POST", path, object.to_string())
                .await;
            if matches!(answer.code(), 201 | 409) {
                return true;
            }
        }
        false
    })
    .await;
}
