//! A control plane node as far as its processes see one: files as kubeadm lays them out, and a network of its own, in which
//! 127.0.0.1 and every port are free. It plays kubelet: starts a pod's containers together, sends SIGTERM to all together.
//!
//! Two things are not as in the manifest: `/etc/kubernetes` is a directory of the test, and the node's address 10.0.0.11 is
//! 127.0.0.11, because all traffic of tests is on loopback.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CONFIG, asked, command_line, container, file, list};
use testkit::cluster::{LONG, binary};
use testkit::kube;
use testkit::missing;
use testkit::pki::{LeafOptions, Pki};
use testkit::process::{COLLECT_LESS, Process, Signal};
use testkit::wait::{eventually, within};

pub const NODE: &str = "127.0.0.11";
const START: Duration = Duration::from_secs(120);
/// In place of 70s for the apiserver, and what goes with it for the proxy.
const SHUTDOWN_DELAY: &str = "6s";
const SHUTDOWN: &str = "shutdown: {delay: 1s, drain: 3s}\n";

pub struct Node {
    dir: TempDir,
    /// Has nothing to do but to keep the network.
    network: Process,
    etcd: Mutex<Option<Process>>,
}

/// The running containers of a pod.
pub struct Pod {
    containers: Vec<(String, Process)>,
}

impl Pod {
    /// SIGTERM for all, as from kubelet.
    pub fn terminate(&mut self) {
        for (_, process) in &mut self.containers {
            process.signal(Signal::Term);
        }
    }

    /// Their ends, within kubelet's patience.
    pub async fn ended(mut self) -> Vec<ExitStatus> {
        let mut ends = Vec::new();
        for (_, process) in &mut self.containers {
            ends.push(process.wait(Duration::from_secs(90)).await);
        }
        ends
    }
}

/// What a command said.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn changes_nothing(&self) {
        let said = self.out.contains("Nothing is to be changed");
        assert!(self.success && said, "{}{}", self.out, self.err);
    }
}

impl Node {
    /// With etcd, and nothing else running.
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        lay_out(dir.path());
        let mut unshare = Command::new("unshare");
        if !kube::is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--net", "sh", "-c", "ip link set lo up && exec sleep 3600"]);
        let log = dir.path().join("network.log");
        let Ok(network) = Process::spawn("unshare", &mut unshare, &log) else {
            missing("unshare", "apt-get install util-linux");
        };
        let mut node = Self {
            dir,
            network,
            etcd: Mutex::default(),
        };
        let name = format!("/proc/{}/comm", node.network.pid());
        let sleeps = async || match std::fs::read_to_string(&name) {
            Ok(name) if name == "sleep\n" => Ok(()),
            other => Err(format!("{other:?}")),
        };
        node.network.ready(LONG, sleeps).await;
        node.start_etcd().await;
        node
    }

    /// What the manifest or the configuration says, for this node.
    pub fn here(&self, text: &str) -> String {
        let kubernetes = self.dir.path().join("etc/kubernetes");
        text.replace("/etc/kubernetes", &kubernetes.display().to_string())
            .replace("10.0.0.11", NODE)
    }

    /// A file below `/etc/kubernetes`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("etc/kubernetes").join(file)
    }

    /// The program of a container. The apiserver starts sooner than with all that the manifest says nothing of.
    pub fn program(&self, name: &str) -> Command {
        if name != "kube-apiserver" {
            return self.command(binary());
        }
        let mut command = self.command(kube::cache().join(name));
        command.env(COLLECT_LESS.0, COLLECT_LESS.1);
        command.arg(format!("--runtime-config={}", kube::WITHOUT_BETAS));
        command
    }

    /// A program in the node's network.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        if !kube::is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        let target = format!("--target={}", self.network.pid());
        command.args([target.as_str(), "--net", "--"]).arg(program);
        command
    }

    pub fn spawn(&self, name: &str, command: &mut Command) -> Process {
        let log = self.dir.path().join(format!("{name}.log"));
        let Ok(process) = Process::spawn(name, command, &log) else {
            missing("nsenter", "apt-get install util-linux");
        };
        process
    }

    async fn start_etcd(&mut self) {
        let mut etcd = self.command("etcd");
        let pki = |name: &str| self.path("pki/etcd").join(name).display().to_string();
        etcd.args([
            format!("--data-dir={}", self.dir.path().join("etcd").display()),
            "--listen-client-urls=https://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=https://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            format!("--cert-file={}", pki("server.crt")),
            format!("--key-file={}", pki("server.key")),
            format!("--trusted-ca-file={}", pki("ca.crt")),
            "--client-cert-auth=true".to_owned(),
            "--experimental-watch-progress-notify-interval=5s".to_owned(),
        ]);
        self.etcd = Mutex::new(Some(self.spawn("etcd", &mut etcd)));
        eventually("etcd answers", LONG, async || {
            let said = self.etcdctl(&["endpoint", "health"]).await;
            said.success.then_some(()).ok_or(said.err)
        })
        .await;
    }

    pub fn signal_etcd(&self, signal: Signal) {
        let mut etcd = self.etcd.lock().unwrap();
        etcd.as_mut().expect("etcd was started").signal(signal);
    }

    pub async fn etcdctl(&self, arguments: &[&str]) -> Said {
        let mut etcdctl = self.command("etcdctl");
        let pki = |name: &str| self.path("pki").join(name).display().to_string();
        etcdctl.env("ETCDCTL_API", "3").args([
            "--endpoints=https://127.0.0.1:2379".to_owned(),
            format!("--cacert={}", pki("etcd/ca.crt")),
            format!("--cert={}", pki("apiserver-etcd-client.crt")),
            format!("--key={}", pki("apiserver-etcd-client.key")),
        ]);
        etcdctl.args(arguments);
        run(etcdctl).await
    }

    pub async fn kubectl(&self, arguments: &[&str]) -> Said {
        let mut kubectl = self.command("kubectl");
        kubectl
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG")
            .arg(format!(
                "--kubeconfig={}",
                self.path("admin.conf").display()
            ))
            .arg("--request-timeout=30s")
            .args(arguments);
        run(kubectl).await
    }

    /// curl as the cluster's administrator; not started yet.
    pub fn curl(&self, arguments: &[&str]) -> Command {
        let mut curl = self.command("curl");
        let pki = |name: &str| self.path("pki").join(name);
        curl.args(["--silent", "--show-error", "--max-time", "60", "--cacert"])
            .arg(pki("ca.crt"))
            .arg("--cert")
            .arg(pki("admin.crt"))
            .arg("--key")
            .arg(pki("admin.key"))
            .args(arguments);
        curl
    }

    /// A page of the proxy's admin port.
    pub async fn admin(&self, path: &str) -> Said {
        let url = format!("http://127.0.0.1:6450{path}");
        let mut curl = self.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "10"]);
        curl.arg(url);
        run(curl).await
    }

    /// Starts the containers of a pod as processes, all at once.
    pub fn start(&self, pod: &Value) -> Pod {
        let start = |container: &Value| {
            let name = container["name"].as_str().unwrap();
            let words = command_line(container);
            assert_eq!(words[0], name, "what runs in the container");
            let words = words[1..].iter().map(|word| {
                self.here(word)
                    .replace("duration=70s", &format!("duration={SHUTDOWN_DELAY}"))
            });
            let process = self.spawn(name, self.program(name).args(words));
            (name.to_owned(), process)
        };
        let config = std::fs::read_to_string(file(CONFIG)).unwrap() + SHUTDOWN;
        let to = self.path("kube-interop-proxy");
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join("proxy.yaml"), self.here(&config)).unwrap();
        let containers = list(&pod["spec"], "containers").iter().map(start);
        Pod {
            containers: containers.collect(),
        }
    }

    /// Asks as kubelet would; what it was answered unless that was good.
    pub async fn probe(&self, pod: &Value, name: &str, probe: &str) -> Result<(), String> {
        let container = container(pod, name);
        let scheme = container[probe]["httpGet"]["scheme"].as_str();
        let scheme = scheme.unwrap_or("HTTP").to_lowercase();
        let (host, port, path) = asked(container, probe);
        let mut curl = self.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--insecure"]);
        curl.arg(format!("{scheme}://{}:{port}{path}", self.here(&host)));
        let said = run(curl).await;
        said.success
            .then_some(())
            .ok_or_else(|| format!("{name}: {probe}: {}{}", said.out, said.err))
    }

    /// Waits until every container passes all of its probes.
    pub async fn until_ready(&self, pod: &Value, running: &mut Pod) {
        let mut probes = Vec::new();
        for container in list(&pod["spec"], "containers") {
            let name = container["name"].as_str().unwrap();
            let there = ["startupProbe", "livenessProbe", "readinessProbe"]
                .into_iter()
                .filter(|probe| container[probe].is_object());
            probes.extend(there.map(|probe| (name, probe)));
        }
        assert!(probes.len() >= 3, "{probes:?}");
        let ready = within(START, async || {
            for (name, probe) in &probes {
                self.probe(pod, name, probe).await?;
            }
            Ok::<_, String>(())
        });
        if let Err(why) = ready.await {
            let logs = running.containers.iter().map(|(_, it)| it.log_tail());
            panic!("{why}\n{}", logs.collect::<Vec<_>>().join("\n"));
        }
    }
}

pub async fn run(mut command: Command) -> Said {
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run
        .await
        .expect("a thread")
        .expect("a program that is there");
    Said {
        success: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// `/etc/kubernetes` as kubeadm leaves it: names of files, and who each certificate is for.
fn lay_out(dir: &Path) {
    let pki = Pki::new(&dir.join("pki"));
    let to = dir.join("etc/kubernetes/pki");
    std::fs::create_dir_all(to.join("etcd")).unwrap();
    let service = "kubernetes.default.svc.cluster.local";
    let names = [
        "cp-1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ];
    let server = LeafOptions::server("kube-apiserver", &names).san(service);
    pki.leaf("apiserver", "ca", &server.san("10.96.0.1").san(NODE));
    let masters = |name: &str| LeafOptions::client(name).org("system:masters");
    pki.leaf(
        "kubelet-client",
        "ca",
        &masters("kube-apiserver-kubelet-client"),
    );
    for (from, name) in [
        ("ca.crt", "ca.crt"),
        ("apiserver.crt", "apiserver.crt"),
        ("apiserver.key", "apiserver.key"),
        ("kubelet-client.crt", "apiserver-kubelet-client.crt"),
        ("kubelet-client.key", "apiserver-kubelet-client.key"),
        ("front-proxy-ca.crt", "front-proxy-ca.crt"),
        ("front-proxy-client.crt", "front-proxy-client.crt"),
        ("front-proxy-client.key", "front-proxy-client.key"),
        ("sa.pub", "sa.pub"),
        ("sa.key", "sa.key"),
        ("etcd-client.crt", "apiserver-etcd-client.crt"),
        ("etcd-client.key", "apiserver-etcd-client.key"),
        ("etcd-ca.crt", "etcd/ca.crt"),
        ("etcd-server.crt", "etcd/server.crt"),
        ("etcd-server.key", "etcd/server.key"),
        // Inside admin.conf, with kubeadm.
        ("admin.crt", "admin.crt"),
        ("admin.key", "admin.key"),
    ] {
        std::fs::copy(pki.path(from), to.join(name)).unwrap();
    }
    let file = |name: &str| to.join(name).display().to_string();
    let cluster = json!({
        "server": format!("https://{NODE}:6443"),
        "certificate-authority": file("ca.crt"),
    });
    let user = json!({"client-certificate": file("admin.crt"), "client-key": file("admin.key")});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": cluster}],
        "users": [{"name": "kubernetes-admin", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "kubernetes", "user": "kubernetes-admin"}}],
        "current-context": "it",
    });
    std::fs::write(dir.join("etc/kubernetes/admin.conf"), config.to_string()).unwrap();
}
