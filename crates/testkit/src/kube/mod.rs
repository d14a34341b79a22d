//! A real kube-apiserver: v1.20.2 from the cache of `tests/build-kubernetes.sh`, or of the versions that the variable
//! [`VARIABLE`] names.
//!
//! Several run on one machine: each has a unique host name (in a UTS namespace) and address, and leaves the Endpoints
//! of the `kubernetes` Service alone.

mod abilities;
mod binaries;
mod options;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use super::addr::Loopback;
use super::client::Client;
use super::notes;
use super::pki::Pki;
use super::process::{COLLECT_LESS, NotFound, Process};
use super::proxy::sum;
use super::wait::{eventually, within};
pub use abilities::{Abilities, Need};
pub use binaries::{
    Binary, VARIABLE, all, cache, cached, caches, lacks, lacks_for_a_part, several,
};
pub(crate) use binaries::{are_given, others_meet};
pub(crate) use options::of_any_server;
pub use options::{KubeOptions, Native, WITHOUT_BETAS};

const PORT: u16 = 6443;
const START: Duration = Duration::from_secs(120);
/// Between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

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
        notes::started(&options.binary().name());
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

    /// Of this server's version.
    pub fn abilities(&self) -> &Abilities {
        self.options.binary().abilities()
    }

    /// Its open watches of these resources.
    pub async fn watches(&self, resources: &[&str]) -> usize {
        let metric = match self.abilities().meets(Need::Since(23)) {
            true => "apiserver_longrunning_requests",
            false => "apiserver_longrunning_gauge",
        };
        let text = self.admin.fresh().get("/metrics").await.text();
        let of = |resource: &&str| sum(&text, metric, &[("resource", *resource)]);
        resources.iter().map(of).sum::<f64>() as usize
    }

    /// The sum of a metric's samples, unless it does not answer.
    pub async fn try_metric(&self, name: &str) -> Option<f64> {
        let answer = self.admin.fresh().try_get("/metrics").await.ok()?;
        Some(sum(&answer.text(), name, &[]))
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub async fn wait_ready(&mut self) {
        until_ready(&mut self.process, &self.admin, START).await;
    }

    /// SIGTERM. A server that an open watch holds back (with the gate `APIServerIdentity` its own) is not given its 60
    /// seconds.
    pub async fn stop(&mut self) {
        self.process.terminate(PATIENCE).await;
    }

    /// Waits for its end after a signal; panics if there is none within `patience`. Up to 1.25 a server with the gate
    /// `APIServerIdentity` lives on for a minute without its port: it is killed sooner, as by kubelet.
    pub async fn ended(&mut self, patience: Duration) {
        let has_lease = self.abilities().meets(Need::On("APIServerIdentity"));
        if has_lease && self.abilities().meets(Need::Before(26)) {
            let _ = within(PATIENCE, async || self.process.exited()).await;
            self.process.kill();
        }
        self.process.wait(patience).await;
    }

    /// It is stopped, and up again at the same address.
    pub async fn restart(&mut self) {
        self.stop().await;
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

    /// The version of later starts.
    pub fn set_binary(&mut self, binary: &'static Binary) {
        self.options.binary = Some(binary);
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

fn spawn(options: &KubeOptions, address: IpAddr) -> Process {
    let binary = options.binary();
    let before = on_host(&options.host_name);
    let mut command = Command::new(&before[0]);
    command
        .env(COLLECT_LESS.0, COLLECT_LESS.1)
        .args(&before[1..])
        .arg(&binary.path)
        .args(options.flags(binary, address));
    let log = options
        .dir
        .join(format!("kube-apiserver-{}.log", options.host_name));
    match Process::spawn("kube-apiserver", &mut command, &log) {
        Ok(process) => process,
        Err(NotFound) => super::missing("unshare", "apt-get install util-linux"),
    }
}

/// What starts a program on a host of this name: its command is appended.
pub(crate) fn on_host(name: &str) -> Vec<String> {
    // Without root, the namespace of host names needs one of users around it.
    let user: &[&str] = match is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let script = "hostname \"$1\" && shift && exec \"$@\"";
    let parts = [
        &["unshare"],
        user,
        &["--uts", "sh", "-c", script, "sh", name],
    ];
    parts.concat().into_iter().map(str::to_owned).collect()
}

/// Whether namespaces need none of users around them.
pub fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout == b"0\n")
}
