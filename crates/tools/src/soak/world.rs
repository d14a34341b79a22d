//! The cluster: three members of etcd, three kube-apiservers that differ, a proxy or something else in front of each, links
//! that can be broken around each proxy, and a balancer before all.

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
use testkit::kcm::ControllerManager;
use testkit::kube::{self, Binary, KubeApiServer, KubeOptions, Native};
use testkit::peer_links::PeerLinks;
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::process::Process;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;
use tokio::sync::Mutex;

use crate::clients::stream::Kubelet;
use crate::clock::Clock;
use crate::front::{Front, start_haproxy};
use crate::kinds::User;
use crate::plan::{Files, Group, Link, NODES, at_first};
use crate::prepare::prepare;
use crate::run::Run;

/// Of each proxy.
const PORT: u16 = 6443;
const PATIENCE: Duration = Duration::from_secs(90);
/// Those that act on a 404.
const CONTROLLERS: [&str; 2] = ["namespace", "garbagecollector"];

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
    /// Of each version.
    controllers: Mutex<Vec<ControllerManager>>,
    pub pki: Pki,
    pub dir: TempDir,
}

pub struct Node {
    pub server: KubeApiServer,
    /// None, if something else is in front of the apiservers.
    pub proxy: Option<Proxy>,
    pub haproxy: Option<Process>,
    /// The proxy listens there, or HAProxy.
    _own: Loopback,
}

impl Node {
    /// Where proxies have faults, there are proxies.
    pub fn proxy(&mut self) -> &mut Proxy {
        self.proxy.as_mut().expect("a proxy")
    }

    pub async fn wait_ready(&mut self) {
        self.server.wait_ready().await;
        if let Some(proxy) = &mut self.proxy {
            proxy.wait_ready().await;
        }
    }
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
    /// `front`: where clients are taken. `peers`: where others find it.
    async fn start(
        front: SocketAddr,
        apiserver: SocketAddr,
        peers: Loopback,
        etcds: impl Iterator<Item = (Loopback, &Etcd)>,
    ) -> Self {
        let mut etcd = Vec::new();
        for (address, member) in etcds {
            etcd.push(Cut::start(address, member.addr()).await);
        }
        Self {
            clients: Cut::start(Loopback::new(), front).await,
            peers: Cut::start(peers, front).await,
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
    /// `oldest`: the version that all apiservers have at first, if they are upgraded. Then they stop as an operator is told
    /// to have them stop, and differ by their versions alone.
    pub async fn start(oldest: Option<&'static Binary>, front: Front, run: &Run) -> Self {
        let mut dir = tempfile::tempdir().expect("a directory");
        // Not before it is known that nothing was wrong.
        dir.disable_cleanup(true);
        let pki = pki(&dir);
        let mut addresses: Vec<_> = (0..NODES * NODES).map(|_| Loopback::new()).collect();
        let options = EtcdOptions {
            also: addresses.iter().map(Loopback::ip).collect(),
            ..EtcdOptions::default()
        };
        let (etcds, peer_links) = Etcd::start_linked(dir.path(), &pki, NODES, &options).await;
        let owns: Vec<_> = (0..NODES).map(|_| Loopback::new()).collect();
        // An apiserver that has its proxy's address to itself is asked there, as one that never had a proxy.
        let peers: Vec<_> = (0..NODES).map(|_| Loopback::new()).collect();
        let options = |node: usize| {
            let native = run.native.reroutes().map(|reroutes| Native {
                reroutes,
                advertises: (front != Front::Nothing).then(|| owns[node].socket(PORT)),
            });
            let options = server_options(&dir, &pki, &etcds, node).native(native);
            options.advertise(peers[node].socket(PORT))
        };
        let servers = start_servers(options, &pki, oldest).await;
        let (mut nodes, mut links, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        let kubelet = Kubelet::start(&pki).await;
        prepare(&servers, &kubelet, oldest.is_some()).await;
        let fronts = Fronts {
            front,
            dir: &dir,
            pki: &pki,
            servers: servers.iter().map(KubeApiServer::addr).collect(),
            settings: &run.settings,
        };
        let addresses_of_nodes = owns.into_iter().zip(peers);
        for ((node, server), (own, peers)) in
            servers.into_iter().enumerate().zip(addresses_of_nodes)
        {
            let listens = own.socket(PORT);
            let to_etcd = addresses.drain(..NODES).zip(&etcds);
            let entry = match front {
                Front::Nothing => server.addr(),
                Front::HaProxy | Front::Proxy => listens,
            };
            let around = Links::start(entry, server.addr(), peers, to_etcd).await;
            rotate(&pki, node, Files::Serving);
            rotate(&pki, node, Files::ProxyClient);
            let clock = Clock::new(dir.path(), node);
            let (proxy, haproxy) = fronts.start(node, listens, &around, &clock).await;
            nodes.push(Mutex::new(Node {
                server,
                proxy,
                haproxy,
                _own: own,
            }));
            links.push(around);
            clocks.push(clock);
        }
        let balancer = start_balancer(&pki, &links).await;
        let controllers = start_controllers(&dir, &pki, balancer.addr()).await;
        Self {
            balancer,
            nodes,
            links,
            clocks,
            etcds: etcds.into_iter().map(Mutex::new).collect(),
            peer_links,
            _kubelet: kubelet,
            controllers: Mutex::new(controllers),
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

    /// What is not there does nothing wrong.
    pub async fn look_for_controllers(&self) {
        for manager in &mut *self.controllers.lock().await {
            let ended = manager.exited();
            assert!(ended.is_none(), "controllers have ended: {ended:?}");
        }
    }

    pub fn rotate(&self, node: usize, files: Files) {
        rotate(&self.pki, node, files);
    }
}

/// Of the other programs of Kubernetes.
pub fn versions() -> Vec<&'static Binary> {
    match kube::several() {
        none if none.is_empty() => vec![kube::cached()],
        several => several,
    }
}

async fn start_balancer(pki: &Pki, links: &[Links]) -> Balancer {
    let admin = |addr| Client::new(addr, pki).cert("admin");
    let behind = links.iter().map(|links| links.clients.addr());
    let balancer = Balancer::start(behind.map(|addr| (addr, admin(addr))).collect()).await;
    eventually("all nodes are ready", PATIENCE, async || {
        balancer.ready() == NODES
    })
    .await;
    balancer
}

/// A controller manager of each version, through the balancer.
async fn start_controllers(dir: &TempDir, pki: &Pki, addr: SocketAddr) -> Vec<ControllerManager> {
    let mut controllers = Vec::new();
    for version in versions() {
        let minor = version.abilities().minor();
        let dir = dir.path().join(format!("controllers-1.{minor}"));
        std::fs::create_dir(&dir).expect("a directory");
        let program = version.beside("kube-controller-manager");
        let manager =
            ControllerManager::start_with(&program, &dir, pki, addr, &CONTROLLERS, &[]).await;
        controllers.push(manager);
    }
    controllers
}

/// What is started in front of the apiservers.
struct Fronts<'a> {
    front: Front,
    dir: &'a TempDir,
    pki: &'a Pki,
    servers: Vec<SocketAddr>,
    /// Of each proxy.
    settings: &'a [(String, String)],
}

impl Fronts<'_> {
    async fn start(
        &self,
        node: usize,
        listens: SocketAddr,
        around: &Links,
        clock: &Clock,
    ) -> (Option<Proxy>, Option<Process>) {
        match self.front {
            Front::Nothing => (None, None),
            Front::HaProxy => {
                let mut servers = self.servers.clone();
                servers.rotate_left(node);
                let dir = self.dir.path().join(format!("haproxy-{node}"));
                let haproxy = start_haproxy(self.pki, &dir, listens, &servers);
                (None, Some(haproxy))
            }
            Front::Proxy => {
                let options = proxy_options(self.dir, self.pki, node, around).at(listens);
                let advertised = format!("\"{}\"", around.peers.addr());
                let options = options.set("peer.advertiseAddress", &advertised);
                let settings = self.settings.iter();
                let options =
                    settings.fold(options, |options, (key, value)| options.set(key, value));
                (Some(Proxy::start(clock.given_to(options)).await), None)
            }
        }
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

async fn start_servers(
    options: impl Fn(usize) -> KubeOptions,
    pki: &Pki,
    oldest: Option<&'static Binary>,
) -> Vec<KubeApiServer> {
    let mut servers = Vec::new();
    for node in 0..NODES {
        let options = match oldest {
            Some(oldest) => options(node).runs(oldest),
            None => switched_off(options(node), node),
        };
        let options = options.arg("--shutdown-delay-duration=7s");
        servers.push(KubeApiServer::start(options, pki).await);
    }
    servers
}

fn server_options(dir: &TempDir, pki: &Pki, etcds: &[Etcd], node: usize) -> KubeOptions {
    let members: Vec<_> = etcds.iter().map(Etcd::endpoint).collect();
    KubeOptions::new(dir.path(), pki, &etcds[0], &format!("cp-{node}"))
        .arg("--disable-admission-plugins=ServiceAccount")
        .without("etcd-servers")
        .without("endpoint-reconciler-type")
        .arg(&format!("--etcd-servers={}", members.join(",")))
}

fn switched_off(options: KubeOptions, node: usize) -> KubeOptions {
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
