//! A real kube-apiserver v1.20.2 from the cache of `tests/build-kubernetes.sh`.
//!
//! Several run on one machine: each has a unique host name (in a UTS namespace) and address, and leaves the Endpoints
//! of the `kubernetes` Service alone.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::addr::Loopback;
use super::client::Client;
use super::etcd::Etcd;
use super::pki::Pki;
use super::process::{NotFound, Process};
use super::wait::eventually;

const PORT: u16 = 6443;
const START: Duration = Duration::from_secs(120);
/// Between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct KubeOptions {
    dir: PathBuf,
    pki: PathBuf,
    etcd: String,
    host_name: String,
    bind: Option<IpAddr>,
    advertise: Option<SocketAddr>,
    authorization: String,
    runtime_config: Vec<String>,
    feature_gates: Vec<String>,
    args: Vec<String>,
    left_out: Vec<String>,
    wait: bool,
}

impl KubeOptions {
    /// `host_name`: the server's host name; must differ between servers. The log goes below `dir`.
    pub fn new(dir: &Path, pki: &Pki, etcd: &Etcd, host_name: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            pki: pki.dir().to_owned(),
            etcd: etcd.endpoint(),
            host_name: host_name.to_owned(),
            bind: None,
            advertise: None,
            authorization: "RBAC".to_owned(),
            runtime_config: Vec::new(),
            feature_gates: Vec::new(),
            args: Vec::new(),
            left_out: Vec::new(),
            wait: true,
        }
    }

    /// `autoscaling/v1=false` for example.
    pub fn runtime_config(mut self, setting: &str) -> Self {
        self.runtime_config.push(setting.to_owned());
        self
    }

    /// `APIServerIdentity=true` for example.
    pub fn feature_gate(mut self, gate: &str) -> Self {
        self.feature_gates.push(gate.to_owned());
        self
    }

    /// `--authorization-mode`.
    pub fn authorization(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.authorization);
        self
    }

    /// `--bind-address`, in place of an address of its own.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// `--advertise-address`; its port is not published.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// None of the usual flags that begin so, `requestheader-` for example.
    pub fn without(mut self, flags: &str) -> Self {
        self.left_out.push(format!("--{flags}"));
        self
    }

    /// [`KubeApiServer::start`] returns at once.
    pub fn do_not_wait(mut self) -> Self {
        self.wait = false;
        self
    }

    fn flags(&self, address: IpAddr) -> Vec<String> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.pki.join(name).display());
        let advertise = self.advertise.map_or(address, |advertised| advertised.ip());
        let mut flags = vec![
            format!("--bind-address={address}"),
            format!("--secure-port={PORT}"),
            format!("--advertise-address={advertise}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--authorization-mode={}", self.authorization),
            format!("--etcd-servers={}", self.etcd),
            file("etcd-cafile", "etcd-ca.crt"),
            file("etcd-certfile", "etcd-client.crt"),
            file("etcd-keyfile", "etcd-client.key"),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("client-ca-file", "ca.crt"),
            file("token-auth-file", "tokens.csv"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
        ];
        for (flag, values) in [
            ("runtime-config", &self.runtime_config),
            ("feature-gates", &self.feature_gates),
        ] {
            if !values.is_empty() {
                flags.push(format!("--{flag}={}", values.join(",")));
            }
        }
        flags.retain(|flag| !self.left_out.iter().any(|start| flag.starts_with(start)));
        flags.extend(self.args.iter().cloned());
        flags
    }
}

pub struct KubeApiServer {
    address: SocketAddr,
    /// Held for as long as it may listen there; `None` if the address was given.
    _own: Option<Loopback>,
    process: Process,
    options: KubeOptions,
    admin: Client,
}

impl KubeApiServer {
    /// Returns when `/readyz` is 200, and the namespace `default` is there.
    pub async fn start(options: KubeOptions, pki: &Pki) -> Self {
        let own = options.bind.is_none().then(Loopback::new);
        let ip = own.as_ref().map(Loopback::ip).or(options.bind);
        let address = SocketAddr::new(ip.expect("one of both"), PORT);
        let admin = Client::new(address, pki).cert("admin");
        let process = spawn(&options, address.ip());
        let mut server = Self {
            address,
            _own: own,
            process,
            options,
            admin,
        };
        if server.options.wait {
            server.wait_ready().await;
            server.wait_for_default_namespace().await;
        }
        server
    }

    /// The first apiserver of an etcd creates it, a little after it is ready.
    async fn wait_for_default_namespace(&self) {
        eventually("the namespace default is there", START, async || {
            let admin = self.admin.fresh();
            let answer = admin.try_get("/api/v1/namespaces/default").await;
            answer.is_ok_and(|answer| answer.code() != 404)
        })
        .await;
    }

    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Asks the server itself, as the cluster's administrator.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub async fn wait_ready(&mut self) {
        until_ready(&mut self.process, &self.admin, START).await;
    }

    /// SIGTERM, and up again at the same address. A server that an open watch holds back (with the gate
    /// `APIServerIdentity` its own) is not given its 60 seconds.
    pub async fn restart(&mut self) {
        self.process.terminate(PATIENCE).await;
        self.start_again();
        self.wait_ready().await;
    }

    /// SIGKILL, and it stays down.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// `--runtime-config` of later starts.
    pub fn set_runtime_config(&mut self, settings: Vec<String>) {
        self.options.runtime_config = settings;
    }

    /// Starts it again without waiting; see [`KubeApiServer::wait_ready`].
    pub fn start_again(&mut self) {
        self.process.kill();
        self.process = spawn(&self.options, self.address.ip());
    }
}

/// Waits until `/readyz` is 200, on a new connection of this client.
pub(crate) async fn until_ready(process: &mut Process, admin: &Client, patience: Duration) {
    let admin = admin.fresh();
    process
        .ready(patience, async || match admin.try_get("/readyz").await {
            Ok(answer) if answer.code() == 200 => Ok(()),
            Ok(answer) => Err(format!("/readyz: {} {}", answer.status, answer.text())),
            Err(error) => Err(format!("/readyz: {error:#}")),
        })
        .await;
}

/// Where `tests/build-kubernetes.sh` puts its results.
pub fn cache() -> PathBuf {
    caches().join("kubernetes-1.20.2")
}

/// The cache for everything that is built only once.
pub fn caches() -> PathBuf {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache"),
    };
    base.join("kube-interop-proxy")
}

fn spawn(options: &KubeOptions, address: IpAddr) -> Process {
    let binary = cache().join("kube-apiserver");
    if !binary.is_file() {
        let what = format!("kube-apiserver v1.20.2 ({})", binary.display());
        super::missing(&what, "run tests/build-kubernetes.sh");
    }
    // -U -r: without root, the namespace of host names needs one of users around it.
    let user: &[&str] = if is_root() {
        &[]
    } else {
        &["--user", "--map-root-user"]
    };
    let mut command = Command::new("unshare");
    command
        .args(user)
        .args([
            "--uts",
            "sh",
            "-c",
            "hostname \"$1\" && shift && exec \"$@\"",
            "sh",
        ])
        .arg(&options.host_name)
        .arg(binary)
        .args(options.flags(address));
    let log = options
        .dir
        .join(format!("kube-apiserver-{}.log", options.host_name));
    match Process::spawn("kube-apiserver", &mut command, &log) {
        Ok(process) => process,
        Err(NotFound) => super::missing("unshare", "apt-get install util-linux"),
    }
}

/// Whether namespaces need none of users around them.
pub fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout == b"0\n")
}
