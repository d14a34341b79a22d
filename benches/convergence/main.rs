//! How soon the program knows, with a real etcd: the time from its start to the first complete sync, the memory that it
//! then has, and the time from a changed record to requests that go elsewhere. Exits with 1 if a bound is missed.
//!
//! `cargo bench --bench convergence`; `-- --definitions 100000` for another size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a benchmark: a failure is a panic with a message"
)]

mod content;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use etcd_client::Client;
use http::{HeaderMap, Method};
use kube_interop_proxy::app::{self, Bound};
use kube_interop_proxy::cluster::keys::EtcdKeys;
use kube_interop_proxy::config;
use kube_interop_proxy::relay::client::Downstream;
use kube_interop_proxy::relay::observe::{RequestMeter, VerbClass};
use kube_interop_proxy::relay::plan::{self, RequestContext};
use kube_interop_proxy::relay::shared::Shared;
use kube_interop_proxy::relay::upstream::{RequestKind, Tokens, Upstreams};
use kube_interop_proxy::request::caller::{Caller, ClientConnection};
use kube_interop_proxy::request::info;
use kube_interop_proxy::routing::decide::NoSuchResource;
use kube_interop_proxy::routing::table::ServerKind;
use tokio::task::JoinSet;

use content::{Peer, path, write_definitions};
use testkit::addr::Loopback;
use testkit::double::{Double, DoubleOptions, v1_36};
use testkit::etcd::Etcd;
use testkit::pki::Pki;
use testkit::proxy::{Proxy, ProxyOptions, Until, admin_get};

/// The program's own allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PEERS: usize = 50;
const STARTS: usize = 7;
const CHANGES: usize = 200;
const FIRST_SYNC_BOUND: Duration = Duration::from_secs(2);
/// Of the 99th percentile, from etcd's answer on.
const CHANGE_BOUND: Duration = Duration::from_millis(20);
/// The default of `peer.leaseTTL`.
const LEASE_TTL: Duration = Duration::from_secs(15);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time to first sync, memory, and time from a change in etcd to the decision that follows from it.
#[derive(Parser)]
struct Arguments {
    /// CustomResourceDefinitions in etcd.
    #[arg(long, default_value_t = 10_000)]
    definitions: usize,
    /// Versions of the servers; those of one version serve the same.
    #[arg(long, default_value_t = 3)]
    versions: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = runtime();
    let kept = runtime.block_on(measure(&arguments));
    runtime.shutdown_background();
    if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// As the program has it for control work.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Whether all bounds are kept.
async fn measure(arguments: &Arguments) -> bool {
    testkit::install_crypto_provider();
    let dir = tempfile::tempdir().expect("a directory");
    let pki = Pki::new(&dir.path().join("pki"));
    let etcd = Etcd::start(dir.path(), &pki).await;
    let double = Double::start(DoubleOptions::new(pki.dir(), v1_36())).await;
    let binary = testkit::cluster::binary();
    let options = |id| {
        ProxyOptions::new(binary, dir.path(), &pki, double.addr(), &etcd.endpoint())
            .server_id(id)
            .set("peer.leaseTTL", &format!("{}s", LEASE_TTL.as_secs()))
            .until(Until::Spawned)
    };
    let mut client = etcd.client().await;
    let keys = EtcdKeys::new("/registry", &["kube-system".to_owned()]);

    let mut proxy = Proxy::start(options("measured")).await;
    synced(&mut proxy).await;
    let empty = Memory::of(proxy.process().pid());
    proxy.terminate().await;

    let (definitions, versions) = (arguments.definitions, arguments.versions);
    let size = write_definitions(&mut client, &keys, definitions).await;
    let mut peers: Vec<_> = (0..PEERS)
        .map(|number| Peer::new(number, number % versions))
        .collect();
    for peer in &mut peers {
        peer.write(&mut client, &keys).await;
        peer.write_again(&mut client, &keys).await;
    }
    println!(
        "etcd has {definitions} CustomResourceDefinitions ({} MiB), {PEERS} servers of {versions} versions, {} resources each",
        size >> 20,
        peers[0].serves()
    );

    let mut first_syncs = Vec::new();
    let mut full = Vec::new();
    for _ in 0..STARTS {
        let started = Instant::now();
        proxy.start_again().await;
        synced(&mut proxy).await;
        first_syncs.push(started.elapsed());
        full.push(Memory::of(proxy.process().pid()));
        proxy.terminate().await;
    }
    first_syncs.sort_unstable();
    let slowest = *first_syncs.last().expect("several starts");
    println!(
        "start of the program to first sync, {STARTS} times: min {:.1?}, median {:.1?}, max {slowest:.1?} (bound {FIRST_SYNC_BOUND:?})",
        first_syncs[0],
        percentile(&first_syncs, 50),
    );
    full.sort_unstable_by_key(|memory| memory.peak);
    let last = full.last().expect("several starts");
    println!("memory with an empty etcd: {empty}; after first sync: {last}");

    let address = Loopback::new();
    let file = dir.path().join("in-process.yaml");
    let config = serde_yaml::to_string(&options("in-process").config(&address)).expect("YAML");
    std::fs::write(&file, config).expect("a configuration file");
    let inside = runtime();
    let bound = {
        let _entered = inside.enter();
        app::build(config::load(&file).expect("a configuration").config, None).expect("a proxy")
    };
    let changes = change(&bound, peers, client, keys).await;
    inside
        .spawn(bound.stop())
        .await
        .expect("the proxy stops in order");
    inside.shutdown_background();
    println!("changed record to routing, {CHANGES} times:");
    for (what, times) in [
        ("from before the put to etcd's answer", &changes.etcd),
        ("from before the put to the decision", &changes.whole),
        ("from etcd's answer to the decision", &changes.ours),
    ] {
        println!(
            "  {what}: p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            percentile(times, 50),
            percentile(times, 99),
            percentile(times, 100)
        );
    }
    println!(
        "  (bound {CHANGE_BOUND:?} for the last p99: how soon etcd answers is its own affair)"
    );
    slowest < FIRST_SYNC_BOUND && percentile(&changes.ours, 99) < CHANGE_BOUND
}

/// Waits until the program says that it knows everything in etcd.
async fn synced(proxy: &mut Proxy) {
    let deadline = Instant::now() + PATIENCE;
    let admin = proxy.admin();
    while !is_synced(admin).await {
        assert!(
            Instant::now() < deadline,
            "never synced\n{}",
            proxy.log_tail()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn is_synced(admin: SocketAddr) -> bool {
    let answer = admin_get(admin, "/readyz?verbose", "*/*").await;
    answer.is_ok_and(|answer| answer.text().contains("[+]etcd-synced"))
}

/// Resident memory of a process, in KiB.
struct Memory {
    now: u64,
    /// Without the pages of files: the program itself and its libraries.
    anonymous: u64,
    peak: u64,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse().ok())
                .expect("a size")
        };
        Self {
            now: field("VmRSS:"),
            anonymous: field("RssAnon:"),
            peak: field("VmHWM:"),
        }
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        write!(
            f,
            "{:.1} MiB ({:.1} MiB without its program file), peak {:.1} MiB",
            mib(self.now),
            mib(self.anonymous),
            mib(self.peak)
        )
    }
}

/// Times of all changes, ordered.
#[derive(Default)]
struct Changes {
    /// From just before the first put to the decision.
    whole: Vec<Duration>,
    /// From there to etcd's answer to the put that decides.
    etcd: Vec<Duration>,
    /// From that answer to the decision; 0 if the decision was first.
    ours: Vec<Duration>,
}

/// Half of the servers change what they serve, one after the other, while the rest write that they live as often as
/// all of them would.
async fn change(bound: &Bound, mut peers: Vec<Peer>, client: Client, keys: EtcdKeys) -> Changes {
    let shared = bound.shared();
    let others = peers.split_off(PEERS / 2);
    wait(|| {
        let snapshot = shared.published.snapshot.load();
        snapshot.synced && snapshot.local_known && !snapshot.peer_unknown
    });
    let mut background = JoinSet::new();
    background.spawn(keep_writing(others, client.clone(), keys.clone()));

    let mut changes = Changes::default();
    for number in 0..CHANGES {
        // Served by one server for one round, then by nobody again.
        let resource = format!("new-things-{}", number / 2);
        let path = path(&resource);
        let served = number % 2 == 0;
        let mut peer = peers.remove(0);
        let wanted = served.then(|| peer.endpoint());
        peer.serve(&resource, served);
        assert!(goes(shared, &path) != Some(wanted), "already so");

        let started = Instant::now();
        let (mut client, keys) = (client.clone(), keys.clone());
        let writing = tokio::spawn(async move {
            let answers = peer.write(&mut client, &keys).await;
            (peer, answers)
        });
        wait(|| goes(shared, &path) == Some(wanted));
        let decided = Instant::now();
        let (peer, [recorded, alive]) = writing.await.expect("a writing");
        // What is listed is so at once, what is no longer listed only by the record that the live key means.
        let answered = if served { recorded } else { alive };
        changes.whole.push(decided - started);
        changes.etcd.push(answered - started);
        changes
            .ours
            .push(decided.saturating_duration_since(answered));
        // The same server takes it back.
        let place = if served { 0 } else { peers.len() };
        peers.insert(place, peer);
        wait(|| !shared.published.snapshot.load().peer_unknown);
        // Not in step with what happens periodically.
        tokio::time::sleep(Duration::from_micros(rand::random::<u64>() % 20_000)).await;
    }
    for times in [&mut changes.whole, &mut changes.etcd, &mut changes.ours] {
        times.sort_unstable();
    }
    changes
}

async fn keep_writing(mut peers: Vec<Peer>, mut client: Client, keys: EtcdKeys) {
    let pause = LEASE_TTL / 3 / u32::try_from(PEERS).expect("a small number");
    let mut ticks = tokio::time::interval(pause);
    let deadline = Instant::now() + 10 * PATIENCE;
    while Instant::now() < deadline {
        for peer in &mut peers {
            ticks.tick().await;
            peer.write_again(&mut client, &keys).await;
        }
    }
}

/// Where a request goes now, planned by what plans all requests: to a peer, or (`Some(None)`) to the apiserver beside
/// us, whose 404 is passed on. `None`: anything else.
fn goes(shared: &Shared, path: &str) -> Option<Option<SocketAddr>> {
    let credentials = shared.credentials.load_full();
    let client = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), 0, Vec::new());
    let (requests, class) = (&shared.metrics.requests, VerbClass::Read);
    let mut context = RequestContext {
        shared,
        upstreams: Arc::new(Upstreams::new(&shared.config, credentials)),
        tokens: &Tokens::default(),
        downstream: Arc::new(Downstream::new(client)),
        settings: shared.settings.load(),
        caller: Caller::Anonymous,
        method: Method::GET,
        path,
        query: None,
        info: info::read(&Method::GET, path, None),
        kind: RequestKind::Short,
        rerouted: false,
        resume: None,
        again: None,
        wanted: Ok(None),
        if_ready: false,
        accept: None,
        meter: RequestMeter::new(requests, Instant::now(), class, None),
    };
    match plan::first(&mut context, &HeaderMap::new()).1 {
        Ok(route) if route.server_kind == ServerKind::Proxied => Some(Some(route.address)),
        Ok(route) if route.no_such_resource == NoSuchResource::Pass => Some(None),
        _ => None,
    }
}

/// Looks again and again, at most 0.1 ms after the last time.
fn wait(so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "never happened");
        std::thread::sleep(Duration::from_micros(20));
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100);
    sorted[place.saturating_sub(1)]
}
