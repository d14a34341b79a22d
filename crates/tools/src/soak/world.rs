//! The cluster: three members of etcd, three kube-apiservers that differ, a proxy beside each, links that can be broken
//! around each proxy, and a balancer before the proxies.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use testkit::addr::Loopback;
use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::binary;
use testkit::cut::Cut;
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::kube::{self, KubeApiServer, KubeOptions};
use testkit::peer_links::PeerLinks;
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;
use tokio::sync::Mutex;

use crate::clients::stream::Kubelet;
use crate::clock::Clock;
use crate::kinds::User;
use crate::plan::{Files, Group, Link, NODES, at_first};
use crate::prepare::prepare;

/// Of each proxy.
const PORT: u16 = 6443;
const PATIENCE: Duration = Duration::from_secs(90);

pub struct World {
    pub balancer: Balancer,
    pub nodes: Vec<Mutex<Node>>,
    pub links: Vec<Links>,
    pub clocks: Vec<Clock>,
    pub etcds: Vec<Mutex<Etcd>>,
    /// Between the members.
    pub peer_links: PeerLinks,
    /// Of all pods.
    _kubelet: Kubelet,
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
    async fn start(
        proxy: SocketAddr,
        apiserver: SocketAddr,
        etcds: impl Iterator<Item = (Loopback, &Etcd)>,
    ) -> Self {
        let mut etcd = Vec::new();
        for (address, member) in etcds {
            etcd.push(Cut::start(address, member.addr()).await);
        }
        Self {
            clients: Cut::start(Loopback::new(), proxy).await,
            peers: Cut::start(Loopback::new(), proxy).await,
            apiserver: Cut::start(Loopback::new(), apiserver).await,
            etcd,
        }
    }

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
    /// `upgrades`: all apiservers have the oldest version that is given, and stop as an operator is told to have them stop.
    pub async fn start(upgrades: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = pki(&dir);
        let mut addresses: Vec<_> = (0..NODES * NODES).map(|_| Loopback::new()).collect();
        let options = EtcdOptions {
            also: addresses.iter().map(Loopback::ip).collect(),
            ..EtcdOptions::default()
        };
        let (etcds, peer_links) = Etcd::start_linked(dir.path(), &pki, NODES, &options).await;
        let mut servers = Vec::new();
        for node in 0..NODES {
            let mut options = server_options(&dir, &pki, &etcds, node);
            if upgrades {
                let oldest = kube::several()[0];
                options = options.runs(oldest).arg("--shutdown-delay-duration=7s");
            }
            servers.push(KubeApiServer::start(options, &pki).await);
        }
        let (mut nodes, mut links, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        let kubelet = Kubelet::start(&pki).await;
        prepare(&servers, &kubelet).await;
        for (node, server) in servers.into_iter().enumerate() {
            let own = Loopback::new();
            let proxy = own.socket(PORT);
            let to_etcd = addresses.drain(..NODES).zip(&etcds);
            let around = Links::start(proxy, server.addr(), to_etcd).await;
            rotate(&pki, node, Files::Serving);
            rotate(&pki, node, Files::ProxyClient);
            let clock = Clock::new(dir.path(), node);
            let options = proxy_options(&dir, &pki, node, &around).at(proxy);
            let advertised = format!("\"{}\"", around.peers.addr());
            let options = options.set("peer.advertiseAddress", &advertised);
            nodes.push(Mutex::new(Node {
                server,
                proxy: Proxy::start(clock.given_to(options)).await,
                _own: own,
            }));
            links.push(around);
            clocks.push(clock);
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
            clocks,
            etcds: etcds.into_iter().map(Mutex::new).collect(),
            peer_links,
            _kubelet: kubelet,
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
        .arg("--disable-admission-plugins=ServiceAccount")
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
    .set("watch.handOver", "true")
    .set("peer.leaseTTL", "10s")
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
