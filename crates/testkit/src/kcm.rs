//! A real kube-controller-manager with selected controllers: v1.20.2 from the cache of `tests/build-kubernetes.sh`, or another.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::addr::Loopback;
use super::client::Client;
use super::kube::cache;
use super::pki::Pki;
use super::process::{NotFound, Process};

const NAME: &str = "kube-controller-manager";
const PORT: u16 = 10257;
const START: Duration = Duration::from_secs(60);

pub struct ControllerManager {
    /// Held for as long as the process may listen there.
    _address: Loopback,
    process: Process,
}

impl ControllerManager {
    /// Runs `controllers` against the server at `api_server`, as the cluster's administrator; returns when `/healthz`
    /// is
    /// 200. Kubeconfig and log go below `dir`.
    pub async fn start(
        dir: &Path,
        pki: &Pki,
        api_server: SocketAddr,
        controllers: &[&str],
        feature_gates: &[&str],
    ) -> Self {
        let gates = format!("--feature-gates={}", feature_gates.join(","));
        let program = cache().join(NAME);
        Self::start_with(&program, dir, pki, api_server, controllers, &[gates]).await
    }

    /// The same with this program, and further arguments.
    pub async fn start_with(
        program: &Path,
        dir: &Path,
        pki: &Pki,
        api_server: SocketAddr,
        controllers: &[&str],
        args: &[String],
    ) -> Self {
        let address = Loopback::new();
        let kubeconfig = dir.join("kube-controller-manager.kubeconfig");
        std::fs::write(&kubeconfig, pki.kubeconfig(api_server)).expect("write a kubeconfig");
        let mut command = Command::new(program);
        command.args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--bind-address={}", address.ip()),
            format!("--secure-port={PORT}"),
            format!("--tls-cert-file={}", pki.file("apiserver.crt")),
            format!("--tls-private-key-file={}", pki.file("apiserver.key")),
            format!("--controllers={}", controllers.join(",")),
            "--leader-elect=false".to_owned(),
        ]);
        if program.starts_with(cache()) {
            // The insecure port of old versions, which is the same for everybody.
            command.arg("--port=0");
        }
        command.args(args);
        let log = dir.join("kube-controller-manager.log");
        let process = match Process::spawn(NAME, &mut command, &log) {
            Ok(process) => process,
            Err(NotFound) => {
                let what = format!("{NAME} ({})", program.display());
                let remedy = "run tests/build-kubernetes.sh kube-controller-manager";
                super::missing(&what, remedy)
            }
        };
        let client = Client::new(address.socket(PORT), pki);
        let mut manager = Self {
            _address: address,
            process,
        };
        let healthy = async || match client.try_get("/healthz").await {
            Ok(answer) if answer.code() == 200 => Ok(()),
            Ok(answer) => Err(format!("/healthz: {} {}", answer.status, answer.text())),
            Err(error) => Err(format!("/healthz: {error:#}")),
        };
        manager.process.ready(START, healthy).await;
        manager
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// The end of its output.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
