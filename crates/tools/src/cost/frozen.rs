//! How long reads wait for a frozen kube-apiserver, through the proxy and through HAProxy over the same apiservers.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::process::{Process, Signal};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;
use tokio::time::{sleep, timeout};

use super::haproxy::{HaProxy, failing_over};
use super::lab::{AUTHORIZATION, PROCESSOR, Plan, until_answered};

const READ: &str = "/api/v1/namespaces/default/configmaps";
const REROUTED: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
const PORT: u16 = 6443;
const PAUSE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(60);
/// A wait that a user sees.
const SHORT: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// How long a server is frozen.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

struct World {
    ground: Ground,
    /// The local one, which does not serve autoscaling, and two peers.
    servers: Vec<KubeApiServer>,
    proxies: Vec<Proxy>,
    _haproxy: Process,
    balanced: Loopback,
}

impl World {
    async fn start(plan: &Plan) -> Self {
        let ground = Ground::new().await;
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for id in ["a", "b", "c"] {
            let options = KubeOptions::new(ground.dir.path(), &ground.pki, &ground.etcd, id);
            let options = match id {
                "a" => options.without_group("autoscaling"),
                _ => options,
            };
            servers.push(KubeApiServer::start(options, &ground.pki).await);
        }
        for (id, server) in ["a", "b", "c"].into_iter().zip(&servers) {
            let Ground { dir, pki, etcd } = &ground;
            let options = ProxyOptions::new(
                &plan.program,
                dir.path(),
                pki,
                server.addr(),
                &etcd.endpoint(),
            );
            proxies.push(Proxy::start(options.server_id(id).until(Until::Ready)).await);
        }
        let balanced = Loopback::new();
        let addresses: Vec<_> = servers.iter().map(KubeApiServer::addr).collect();
        let listens = balanced.socket(PORT);
        let haproxy = start_haproxy(&ground, listens, &addresses).await;
        let world = Self {
            ground,
            servers,
            proxies,
            _haproxy: haproxy,
            balanced,
        };
        let client = world.client(world.proxies[0].addr());
        eventually("both peers are known", LIMIT, async || {
            client.get(REROUTED).await.code() == 200
        })
        .await;
        world
    }

    fn client(&self, address: SocketAddr) -> Client {
        let client = Client::new(address, &self.ground.pki).token("tok-admin");
        client.http2().timeout(LIMIT)
    }

    async fn row(
        &mut self,
        options: &Options,
        what: &str,
        path: &str,
        through: SocketAddr,
        whom: Frozen,
    ) {
        let readers: Vec<_> = (0..options.clients).map(|_| self.client(through)).collect();
        for reader in &readers {
            assert_eq!(reader.get(path).await.code(), 200, "{what}");
        }
        let process = match whom {
            Frozen::Server(number) => self.servers[number].process(),
            Frozen::Proxy(number) => self.proxies[number].process(),
        };
        process.signal(Signal::Stop);
        let end = Instant::now() + Duration::from_secs(options.seconds);
        let reads = readers
            .into_iter()
            .map(|reader| tokio::spawn(read(reader, path.to_owned(), end)));
        let mut waits = Vec::new();
        let mut failures = 0;
        for read in reads.collect::<Vec<_>>() {
            let (taken, failed) = read.await.unwrap();
            waits.extend(taken);
            failures += failed;
        }
        process.signal(Signal::Cont);
        let longest = waits.iter().max().copied().unwrap_or_default();
        let long = waits.iter().filter(|wait| **wait > SHORT).count();
        println!(
            "| {what} | {longest:.2?} | {long} | {} | {failures} |",
            waits.len()
        );
        // So that the next row begins with all servers.
        for server in &mut self.servers {
            server.wait_ready().await;
        }
        for proxy in &mut self.proxies {
            proxy.wait_ready().await;
        }
        sleep(Duration::from_secs(3)).await;
    }
}

#[derive(Clone, Copy)]
enum Frozen {
    Server(usize),
    Proxy(usize),
}

/// What each read took, and how many had another answer than 200.
async fn read(reader: Client, path: String, end: Instant) -> (Vec<Duration>, usize) {
    let (mut taken, mut failed) = (Vec::new(), 0);
    while Instant::now() < end {
        let begun = Instant::now();
        let answer = timeout(LIMIT, reader.try_get(&path)).await;
        taken.push(begun.elapsed());
        if !matches!(answer, Ok(Ok(answer)) if answer.code() == 200) {
            failed += 1;
            reader.reconnect().await;
        }
        sleep(PAUSE).await;
    }
    (taken, failed)
}

/// HAProxy that checks each apiserver, takes it away after two checks, and asks another for what it had sent there.
async fn start_haproxy(ground: &Ground, listens: SocketAddr, servers: &[SocketAddr]) -> Process {
    let dir = ground.dir.path();
    let pki = &ground.pki;
    let check = format!("uri /livez/ping hdr authorization \"{AUTHORIZATION}\"");
    let text = HaProxy { pki, dir, listens }.config(|tls| {
        let servers = failing_over(
            servers,
            &check,
            &format!("alpn h2 {tls} on-marked-down shutdown-sessions"),
        );
        format!(" http-reuse safe\n{servers}")
    });
    let file = dir.join("haproxy-frozen.cfg");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("taskset");
    command
        .args(["-c", PROCESSOR])
        .args(HaProxy::command(&file));
    let process = Process::spawn("haproxy", &mut command, &dir.join("haproxy.log"));
    let mut process = process.expect("taskset; install util-linux");
    until_answered(&mut process, &Client::new(listens, pki)).await;
    process
}

pub async fn measure(plan: &Plan, options: &Options) {
    let mut world = World::start(plan).await;
    let (balanced, proxy) = (world.balanced.socket(PORT), world.proxies[0].addr());
    println!(
        "\nReads of {} clients while a server is frozen for {} s\n",
        options.clients, options.seconds
    );
    println!(
        "| through, and what is frozen | longest | above 1 s | answers | not 200 |\n|---|---|---|---|---|"
    );
    for (what, path, through, whom) in [
        (
            "HAProxy, the first apiserver",
            READ,
            balanced,
            Frozen::Server(0),
        ),
        ("proxy, its apiserver", READ, proxy, Frozen::Server(0)),
        (
            "proxy, a peer's apiserver",
            REROUTED,
            proxy,
            Frozen::Server(1),
        ),
        ("proxy, a peer's proxy", REROUTED, proxy, Frozen::Proxy(2)),
    ] {
        world.row(options, what, path, through, whom).await;
    }
}
