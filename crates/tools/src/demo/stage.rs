//! The environment of the tour: etcd, two apiservers and a proxy for each, on loopback addresses.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::terminal::Terminal;
use testkit::double::{Double, DoubleOptions, Phase, Preset};
use testkit::etcd::Etcd;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::pki::{Pki, SERVER_NAME};
use testkit::process::program;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

/// The group that apiserver A does not serve.
pub const GROUP: &str = "autoscaling";
/// How long anything may take that the tour waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who plays the apiservers.
pub enum Cast {
    Doubles(Preset),
    Real,
}

/// An apiserver and the proxy beside it. The proxy goes first.
pub struct Pair {
    pub proxy: Proxy,
    pub api_server: ApiServer,
}

// One of each is all there ever is.
#[allow(
    clippy::large_enum_variant,
    reason = "two of them in the whole program"
)]
pub enum ApiServer {
    Double(Double),
    Real(KubeApiServer),
}

/// Fields end in this order.
pub struct Stage {
    pub a: Pair,
    pub b: Pair,
    etcd: Etcd,
    pub kubeconfig: PathBuf,
    pki: Pki,
    pub dir: TempDir,
}

impl Stage {
    pub async fn build(cast: Cast, terminal: &Terminal) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kube-interop-demo-")
            .tempdir()
            .expect("a temporary directory");
        let pki = Pki::new(&dir.path().join("pki"));
        let started = Instant::now();
        let said = |what: &str| {
            terminal.aside(format_args!(
                "{what}: {:.1} s",
                started.elapsed().as_secs_f64()
            ));
        };
        let etcd = Etcd::start(dir.path(), &pki).await;
        said("etcd is up");
        let (a, b) = match cast {
            Cast::Doubles(preset) => doubles(&pki, preset).await,
            Cast::Real => real(dir.path(), &pki, &etcd).await,
        };
        said("both apiservers are ready");
        let proxy = async |id, api_server: &ApiServer| {
            let (binary, address) = (program("kube-interop-proxy"), api_server.addr());
            let options = ProxyOptions::new(&binary, dir.path(), &pki, address, &etcd.endpoint())
                .server_id(id)
                .until(Until::Ready);
            Proxy::start(options).await
        };
        let (a, b) = (
            Pair {
                proxy: proxy("cp-a", &a).await,
                api_server: a,
            },
            Pair {
                proxy: proxy("cp-b", &b).await,
                api_server: b,
            },
        );
        let kubeconfig = write_kubeconfig(&pki, &[("a", a.proxy.addr()), ("b", b.proxy.addr())]);
        std::fs::write(pki.path("hpa.json"), HPA).expect("an object to create");
        let stage = Self {
            a,
            b,
            etcd,
            kubeconfig,
            pki,
            dir,
        };
        stage.wait_until_b_is("target", true).await;
        said("both proxies are ready and know each other");
        stage
    }

    pub fn introduce(&self, terminal: &Terminal) {
        let what = match (&self.a.api_server, &self.b.api_server) {
            (ApiServer::Real(a), ApiServer::Real(b)) => format!(
                "The apiservers are real, on one etcd: kube-apiserver {} and {}.",
                a.abilities().version,
                b.abilities().version
            ),
            _ => "The apiservers are doubles, which answer as kube-apiservers do (--real takes real ones)."
                .to_owned(),
        };
        let columns = |a: &str, b: &str| terminal.plain(format!("    {a:38}{b}"));
        let named = |name: &str, address: SocketAddr| format!("{name} {address}");
        terminal.plain("");
        columns(
            &named("proxy A    ", self.a.proxy.addr()),
            &named("proxy B    ", self.b.proxy.addr()),
        );
        columns("   |", "   |");
        columns(
            &named("apiserver A", self.a.api_server.addr()),
            &named("apiserver B", self.b.api_server.addr()),
        );
        columns("does not serve autoscaling", "serves autoscaling");
        terminal.plain("");
        terminal.plain(what);
        terminal.plain(format!(
            "The proxies find each other through etcd, {}.\n",
            self.etcd.endpoint()
        ));
        terminal.prose(&format!(
            "Clients connect to a proxy instead of its apiserver. All of them serve under the name {SERVER_NAME},
             and certificates are always verified. Every command below is run as it is printed, in the directory
             {}",
            self.commands_run_in().display()
        ));
    }

    /// Where the certificates are.
    pub fn commands_run_in(&self) -> &Path {
        self.pki.dir()
    }

    /// Waits until A's status page says so of B: `live`, `target`.
    pub async fn wait_until_b_is(&self, what: &str, wanted: bool) {
        eventually(
            &format!("{what} of cp-b is {wanted}"),
            PATIENCE,
            async || {
                let status = self.a.proxy.statusz().await;
                let peer = peers(&status).into_iter().find(|peer| peer["id"] == "cp-b");
                peer.is_some_and(|peer| {
                    peer[what] == wanted && (!wanted || peer["resources"].is_u64())
                })
            },
        )
        .await;
    }

    /// Waits until A's proxy knows whether its apiserver is initialized.
    pub async fn wait_until_a_is_initialized(&self, wanted: bool) {
        eventually(
            &format!("initialized of cp-a is {wanted}"),
            PATIENCE,
            async || {
                let status = self.a.proxy.statusz().await;
                status["server"]["initialized"] == wanted
            },
        )
        .await;
    }
}

pub fn peers(status: &Value) -> Vec<&Value> {
    status["peers"].as_array().into_iter().flatten().collect()
}

async fn doubles(pki: &Pki, preset: Preset) -> (ApiServer, ApiServer) {
    let lacking = preset.clone().without_group(GROUP);
    let a = Double::start(DoubleOptions::new(pki.dir(), lacking)).await;
    let b = Double::start(DoubleOptions::new(pki.dir(), preset).store(a.store())).await;
    (ApiServer::Double(a), ApiServer::Double(b))
}

async fn real(dir: &Path, pki: &Pki, etcd: &Etcd) -> (ApiServer, ApiServer) {
    let options = |host: &str| KubeOptions::new(dir, pki, etcd, host).do_not_wait();
    let without = options("cp-a").without_group(GROUP);
    let mut a = KubeApiServer::start(without, pki).await;
    let mut b = KubeApiServer::start(options("cp-b"), pki).await;
    a.wait_ready().await;
    b.wait_ready().await;
    (ApiServer::Real(a), ApiServer::Real(b))
}

impl ApiServer {
    pub fn addr(&self) -> SocketAddr {
        match self {
            Self::Double(double) => double.addr(),
            Self::Real(server) => server.addr(),
        }
    }

    /// As SIGKILL would; nobody listens any more.
    pub async fn kill(&mut self) {
        match self {
            Self::Double(double) => double.stop().await,
            Self::Real(server) => server.kill(),
        }
    }

    /// Starts again, and is for a while as servers are that have just started.
    pub async fn start_again(&mut self) {
        match self {
            Self::Double(double) => {
                double.start_again().await;
                double.set_phase(Phase::Bootstrapping);
            }
            Self::Real(server) => server.start_again(),
        }
    }

    /// Its start is over when this returns.
    pub async fn become_ready(&mut self) {
        match self {
            Self::Double(double) => double.set_ready(true),
            Self::Real(server) => server.wait_ready().await,
        }
    }
}

/// For kubectl: a context for each proxy, both as the administrator with a client certificate.
fn write_kubeconfig(pki: &Pki, contexts: &[(&str, SocketAddr)]) -> PathBuf {
    let mut text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n".to_owned();
    for (name, address) in contexts {
        text.push_str(&format!(
            "- {{name: {name}, cluster: {{server: \"https://{address}\", tls-server-name: {SERVER_NAME}, \
             certificate-authority: ca.crt}}}}\n"
        ));
    }
    text.push_str("contexts:\n");
    for (name, _) in contexts {
        text.push_str(&format!(
            "- {{name: {name}, context: {{cluster: {name}, user: admin}}}}\n"
        ));
    }
    text.push_str(
        "users:\n- {name: admin, user: {client-certificate: admin.crt, client-key: admin.key}}\n",
    );
    let path = pki.path("kubeconfig");
    std::fs::write(&path, text).expect("a kubeconfig");
    path
}

const HPA: &str = r#"{
  "apiVersion": "autoscaling/v1",
  "kind": "HorizontalPodAutoscaler",
  "metadata": {"name": "web"},
  "spec": {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    "maxReplicas": 3
  }
}
"#;
