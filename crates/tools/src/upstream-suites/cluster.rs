//! The servers that the tests run against: etcd, apiservers, proxies, a balancer at 127.0.0.1, a controller manager.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;

use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kcm::ControllerManager;
use testkit::kube::{self, Binary, KubeApiServer, KubeOptions};
use testkit::pki::Pki;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// At least the proxy's delay and drain, as deploy/README.md asks for it.
const APISERVER_DELAY: &str = "--shutdown-delay-duration=7s";
const DELAY: &str = "1s";
const DRAIN: &str = "5s";

/// What a suite needs of its cluster.
pub struct Needs {
    /// Arguments of the apiservers.
    pub apiserver: &'static [&'static str],
    /// Group versions that the first server of the mixed cluster does not serve if the other does, and the second's.
    pub without: [&'static [&'static str]; 2],
    pub controllers: &'static [&'static str],
    /// Further arguments of the controller manager.
    pub controller_manager: fn(&Pki) -> Vec<String>,
}

pub struct Cluster {
    balancer: Balancer,
    _controllers: ControllerManager,
    /// One for each server, or none.
    pub(super) proxies: Vec<Proxy>,
    pub(super) servers: Vec<KubeApiServer>,
    ground: Ground,
}

/// Where the tests find it.
pub struct Place {
    /// Of the balancer, at 127.0.0.1.
    pub port: u16,
    pub dir: PathBuf,
    /// That of the apiservers.
    pub certificate: PathBuf,
    /// The administrator's.
    pub kubeconfig: String,
    pub client: Client,
}

impl Cluster {
    /// One apiserver that serves everything.
    pub async fn direct(needs: &Needs, binary: &'static Binary, keep: bool) -> Self {
        let ground = ground(keep).await;
        let options = options(needs, &ground, "a").runs(binary);
        let server = KubeApiServer::start(options, &ground.pki).await;
        let to = vec![(server.addr(), server.admin().clone())];
        Self::behind(to, vec![server], Vec::new(), ground, needs).await
    }

    /// Two apiservers that serve different things, each with a proxy; of two versions if several are given.
    pub async fn proxied(needs: &Needs, keep: bool) -> Self {
        let ground = ground(keep).await;
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        let without = not_served(needs);
        for (id, without) in ["a", "b"].into_iter().zip(&without) {
            let options = options(needs, &ground, id).arg(APISERVER_DELAY);
            let options = without.iter().fold(options, |options, version| {
                options.runtime_config(&format!("{version}=false"))
            });
            let server = KubeApiServer::start(options, &ground.pki).await;
            let proxy = ground.proxy(id, server.addr()).until(Until::Ready);
            let proxy = proxy
                .set("peer.leaseTTL", "15s")
                .set("watch.bookmarkOnShutdown", "true")
                .set("watch.handOver", "true")
                .set("shutdown.delay", DELAY)
                .set("shutdown.drain", DRAIN);
            proxies.push(Proxy::start(proxy).await);
            servers.push(server);
        }
        let admin = |proxy: &Proxy| proxy.client(&ground.pki).cert("admin");
        for proxy in &proxies {
            for version in without.iter().flatten() {
                let path = format!("/apis/{version}");
                eventually("everything is served", LONG, async || {
                    admin(proxy).get(&path).await.code() == 200
                })
                .await;
            }
        }
        let to = proxies.iter().map(|proxy| (proxy.addr(), admin(proxy)));
        let to = to.collect();
        Self::behind(to, servers, proxies, ground, needs).await
    }

    async fn behind(
        to: Vec<(SocketAddr, Client)>,
        servers: Vec<KubeApiServer>,
        proxies: Vec<Proxy>,
        ground: Ground,
        needs: &Needs,
    ) -> Self {
        // The tests know no other address than this one.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let all = to.len();
        let balancer = Balancer::on(listener, to);
        eventually("all servers are ready", LONG, async || {
            balancer.ready() == all
        })
        .await;
        let (dir, pki) = (ground.dir.path(), &ground.pki);
        let args = (needs.controller_manager)(pki);
        let addr = balancer.addr();
        let program = program("kube-controller-manager");
        let controllers =
            ControllerManager::start_with(&program, dir, pki, addr, needs.controllers, &args);
        Self {
            _controllers: controllers.await,
            balancer,
            proxies,
            servers,
            ground,
        }
    }

    pub fn place(&self) -> Place {
        let (addr, pki) = (self.balancer.addr(), &self.ground.pki);
        Place {
            port: addr.port(),
            dir: self.ground.dir.path().to_owned(),
            certificate: pki.path("apiserver.crt"),
            kubeconfig: pki.kubeconfig(addr),
            client: Client::new(addr, pki).cert("admin"),
        }
    }
}

impl Place {
    /// A new directory of one run.
    pub fn run_dir(&self) -> PathBuf {
        let dir = tempfile::tempdir_in(&self.dir);
        dir.expect("a directory").keep()
    }
}

/// The program of this name that came with the first kube-apiserver.
pub fn program(name: &str) -> PathBuf {
    kube::all()[0].beside(name)
}

/// For the output of a run: it stays.
pub fn log(name: &str) -> (std::fs::File, PathBuf) {
    let mut builder = tempfile::Builder::new();
    let log = builder.prefix(name).suffix(".log").tempfile();
    log.expect("a log").keep().expect("a log")
}

async fn ground(keep: bool) -> Ground {
    let mut ground = Ground::new().await;
    if keep {
        ground.dir.disable_cleanup(true);
        println!("servers' logs: {}", ground.dir.path().display());
    }
    let tokens = ground.pki.path("tokens.csv");
    let known = std::fs::read_to_string(&tokens).expect("tokens");
    let admin = "admin-token,admin,admin,system:masters\n";
    std::fs::write(&tokens, format!("{known}\n{admin}")).expect("tokens");
    ground
}

/// What each of the two apiservers is to leave to the other, which serves it.
fn not_served(needs: &Needs) -> [Vec<&'static str>; 2] {
    let versions = kube::all();
    [0, 1].map(|node| {
        let other = versions[(1 - node) % versions.len()].abilities();
        let without = needs.without[node].iter();
        let without = without.filter(|version| other.serves(version));
        without.copied().collect()
    })
}

fn options(needs: &Needs, ground: &Ground, id: &str) -> KubeOptions {
    let (dir, host): (&Path, _) = (ground.dir.path(), format!("cp-{id}"));
    let options = KubeOptions::new(dir, &ground.pki, &ground.etcd, &host)
        .without("service-cluster-ip-range")
        .arg("--service-cluster-ip-range=10.0.0.0/24");
    needs
        .apiserver
        .iter()
        .fold(options, |options, arg| options.arg(arg))
}
