//! The servers that the tests run against: etcd, apiservers, proxies, a balancer at 127.0.0.1, a controller manager.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;

use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kcm::ControllerManager;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// What the two apiservers of the mixed cluster do not serve.
const WITHOUT: [(&str, &[&str]); 2] = [
    (
        "a",
        &[
            "apps/v1",
            "autoscaling/v1",
            "autoscaling/v2beta1",
            "autoscaling/v2beta2",
            "policy/v1beta1",
        ],
    ),
    ("b", &["batch/v1", "batch/v1beta1", "extensions/v1beta1"]),
];

pub struct Cluster {
    balancer: Balancer,
    _controllers: ControllerManager,
    _proxies: Vec<Proxy>,
    _servers: Vec<KubeApiServer>,
    ground: Ground,
}

impl Cluster {
    /// One apiserver that serves everything.
    pub async fn direct() -> Self {
        let ground = ground().await;
        let server = KubeApiServer::start(options(&ground, "a"), &ground.pki).await;
        let to = vec![(server.addr(), server.admin().clone())];
        Self::behind(to, vec![server], Vec::new(), ground).await
    }

    /// Two apiservers that serve different things, each with a proxy.
    pub async fn proxied() -> Self {
        let ground = ground().await;
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for (id, without) in WITHOUT {
            let options = without
                .iter()
                .fold(options(&ground, id), |options, version| {
                    options.runtime_config(&format!("{version}=false"))
                });
            let server = KubeApiServer::start(options, &ground.pki).await;
            let proxy = ground.proxy(id, server.addr()).until(Until::Ready);
            proxies.push(Proxy::start(proxy).await);
            servers.push(server);
        }
        let admin = |proxy: &Proxy| proxy.client(&ground.pki).cert("admin");
        for proxy in &proxies {
            for path in ["/apis/apps/v1", "/apis/batch/v1"] {
                eventually("everything is served", LONG, async || {
                    admin(proxy).get(path).await.code() == 200
                })
                .await;
            }
        }
        let to = proxies.iter().map(|proxy| (proxy.addr(), admin(proxy)));
        let to = to.collect();
        Self::behind(to, servers, proxies, ground).await
    }

    async fn behind(
        to: Vec<(SocketAddr, Client)>,
        servers: Vec<KubeApiServer>,
        proxies: Vec<Proxy>,
        ground: Ground,
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
        let controllers = ControllerManager::start(dir, pki, balancer.addr(), &["*"], &[]).await;
        Self {
            balancer,
            _controllers: controllers,
            _proxies: proxies,
            _servers: servers,
            ground,
        }
    }

    /// The port at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.balancer.addr().port()
    }

    pub fn dir(&self) -> &Path {
        self.ground.dir.path()
    }

    /// That of the apiservers.
    pub fn certificate(&self) -> PathBuf {
        self.ground.pki.path("apiserver.crt")
    }
}

async fn ground() -> Ground {
    let ground = Ground::new().await;
    let tokens = ground.pki.path("tokens.csv");
    let known = std::fs::read_to_string(&tokens).expect("tokens");
    let admin = "admin-token,admin,admin,system:masters\n";
    std::fs::write(&tokens, format!("{known}\n{admin}")).expect("tokens");
    ground
}

/// As the tests' own script starts it.
fn options(ground: &Ground, id: &str) -> KubeOptions {
    let (dir, host) = (ground.dir.path(), format!("cp-{id}"));
    KubeOptions::new(dir, &ground.pki, &ground.etcd, &host)
        // Whose kubectl it is.
        .cached()
        .without("service-cluster-ip-range")
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg("--enable-admission-plugins=LimitRanger,ResourceQuota")
        .arg(
            "--disable-admission-plugins=ServiceAccount,PersistentVolumeLabel,DefaultStorageClass,\
             DefaultTolerationSeconds,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,StorageObjectInUseProtection",
        )
}
