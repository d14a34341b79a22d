//! An apiserver double, nginx before it for the answers that are measured, and the programs under test, each with one
//! processor of their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::double::{Double, DoubleOptions, Preset, v1_20};
use testkit::process::{Process, Signal};
use testkit::proxy::{Proxy, ProxyOptions, Until};

use super::meter::Meter;
use super::origin::Origin;
use super::rivals::{Place, Rival};

/// HAProxy passes no user of a certificate on that it was not told to.
pub const AUTHORIZATION: &str = "Bearer tok-admin";
/// An object of about 1 KiB.
pub const OBJECT: &str = "/api/v1/namespaces/default/configmaps/x";
/// The processor of the programs under test, for taskset.
pub const PROCESSOR: &str = "1";
const PORT: u16 = 6443;
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(120);

/// What is measured, and how often.
#[derive(Clone)]
pub struct Plan {
    pub program: PathBuf,
    pub rivals: Vec<Rival>,
    pub envoy: PathBuf,
    pub rounds: usize,
    pub meter: Meter,
}

impl Plan {
    /// Without nginx, which needs a connection upstream for each watch.
    pub fn multiplexing(&self) -> Self {
        let rivals = self.rivals.iter().copied();
        Self {
            rivals: rivals.filter(|rival| *rival != Rival::Nginx).collect(),
            ..self.clone()
        }
    }
}

pub struct Lab {
    pub ground: Ground,
    pub double: Double,
}

/// A program under test.
pub struct Subject {
    pub name: &'static str,
    address: SocketAddr,
    running: Running,
}

enum Running {
    Proxy(Box<Proxy>),
    Rival(
        Process,
        #[expect(dead_code, reason = "keeps the address ours")] Loopback,
    ),
}

impl Lab {
    pub async fn new() -> Self {
        Self::of(v1_20()).await
    }

    /// `preset`: what the double serves.
    pub async fn of(preset: Preset) -> Self {
        let ground = Ground::new().await;
        let double = Double::start(DoubleOptions::new(ground.pki.dir(), preset)).await;
        let direct = Client::new(double.addr(), &ground.pki).cert("admin");
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"},
            "data": {"x": "x".repeat(1 << 10)},
        });
        let path = "/api/v1/namespaces/default/configmaps";
        let created = direct.request("POST", path, object.to_string()).await;
        assert_eq!(created.code(), 201, "{}", created.text());
        Self { ground, double }
    }

    /// nginx before the double.
    pub async fn origin(&self) -> Origin {
        Origin::start(&self.ground, self.double.addr()).await
    }

    /// All that are compared, HAProxy first and the proxy last, before the server at `upstream`.
    pub async fn subjects(&self, plan: &Plan, upstream: SocketAddr) -> Vec<Subject> {
        let mut subjects = Vec::new();
        for rival in &plan.rivals {
            subjects.push(self.rival(plan, *rival, upstream).await);
        }
        subjects.push(self.proxy(plan, upstream).await);
        subjects
    }

    pub async fn proxy(&self, plan: &Plan, upstream: SocketAddr) -> Subject {
        let options = self.proxy_options(plan, upstream);
        Subject::proxy(Proxy::start(options).await)
    }

    /// Set for measurements: requests of the proxy's own are not what is measured.
    pub fn proxy_options(&self, plan: &Plan, upstream: SocketAddr) -> ProxyOptions {
        let Ground { dir, pki, etcd } = &self.ground;
        ProxyOptions::new(&plan.program, dir.path(), pki, upstream, &etcd.endpoint())
            .server_id("cost")
            .set("apiServer.probeInterval", "500ms")
            .set("apiServer.discoveryInterval", "1h")
            .set("peer.leaseTTL", "15s")
            .set("watch.bookmarkOnShutdown", "true")
            .set("watch.handOver", "true")
            .run_by(["taskset", "-c", PROCESSOR].map(str::to_owned).to_vec())
            .until(Until::Ready)
    }

    /// One of the others, which presents the same client certificate.
    pub async fn rival(&self, plan: &Plan, rival: Rival, upstream: SocketAddr) -> Subject {
        let listens = Loopback::new();
        let address = listens.socket(PORT);
        let name = format!("{}-{}", rival.name(), listens.ip());
        let dir = self.ground.dir.path().join(&name);
        std::fs::create_dir(&dir).unwrap();
        let program = rival.configure(&Place {
            pki: &self.ground.pki,
            dir: &dir,
            listens: address,
            upstream,
            envoy: &plan.envoy,
        });
        let mut command = Command::new("taskset");
        command.args(["-c", PROCESSOR]).args(program);
        let process = Process::spawn(&name, &mut command, &dir.join("log"));
        let mut process = process.expect("taskset; install util-linux");
        let client = Client::new(address, &self.ground.pki);
        until_answered(&mut process, &client).await;
        Subject {
            name: rival.name(),
            address,
            running: Running::Rival(process, listens),
        }
    }
}

/// Waits for an answer to a new connection of this client, whatever it is.
pub async fn until_answered(process: &mut Process, client: &Client) {
    let answer = async || client.fresh().try_get("/readyz").await;
    process
        .ready(START, async || {
            answer().await.map_err(|why| format!("{why:#}"))
        })
        .await;
}

/// Ends the proxy at once, without its drain, but in order: what runs it, or is in it, writes what it has counted.
pub async fn end(proxy: &mut Process) {
    proxy.signal(Signal::Term);
    proxy.signal(Signal::Term);
    proxy.wait(END).await;
}

impl Subject {
    pub fn proxy(proxy: Proxy) -> Self {
        Self {
            name: "proxy",
            address: proxy.addr(),
            running: Running::Proxy(Box::new(proxy)),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn process(&mut self) -> &mut Process {
        match &mut self.running {
            Running::Proxy(proxy) => proxy.process(),
            Running::Rival(process, _) => process,
        }
    }

    /// See [`end`].
    pub async fn end(mut self) {
        end(self.process()).await;
    }
}
