//! Thousands of watches on a few connections that end at one proxy and come back at another: how many a second, what
//! memory that takes, and whether each ends with a whole event. The apiservers are doubles, in processes of their own.
//!
//! `STAMPEDE_WATCHES` says how many; for ten thousand run an optimised proxy (`KUBE_INTEROP_PROXY_PROGRAM`). The
//! drain is as long as it takes to end 500 a second, and 12 s at least: what is under way at its end is cut, so a tenth of
//! it must be enough for all that runs here to catch up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, binary};
use testkit::missing;
use testkit::process::{Process, Signal, program};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

const DEFAULT: usize = 2000;
const OF_A_CONNECTION: usize = 250;
const A_SECOND: usize = 500;
/// Drain, in seconds. All have ended long before it is over, on a machine that does much else, too.
const SHORTEST: u64 = 20;
/// Watches that one connection opens at a time.
const OPENING: usize = 25;
/// Events a second, of all watches together: this is not about how many can be passed on.
const EVENTS: usize = 500;
const PODS: &str = "/api/v1/pods?watch=true";
const PODS_IN_DEFAULT: &str = "/api/v1/namespaces/default/pods";

struct Binaries {
    proxy: &'static Path,
    double: PathBuf,
}

impl Binaries {
    fn find() -> Self {
        let (proxy, double) = (binary(), program("apiserver-double"));
        if !double.exists() {
            // Cargo builds the programs of this package alone, where it is not told to take the whole workspace.
            let remedy =
                "run `cargo build --package testkit --bins`, or all tests with `--workspace`";
            missing(&double.display().to_string(), remedy);
        }
        Self { proxy, double }
    }
}

/// An apiserver double as a process.
struct Server {
    address: Loopback,
    process: Process,
}

impl Server {
    fn start(binaries: &Binaries, ground: &Ground) -> Self {
        let address = Loopback::new();
        let log = ground
            .dir
            .path()
            .join(format!("double-{}.log", address.ip()));
        let mut command = Command::new(&binaries.double);
        command
            .arg(format!("--listen={}", address.socket(6443)))
            .arg(format!("--pki={}", ground.pki.dir().display()))
            .arg("--preset=v1.20");
        let process = Process::spawn("apiserver-double", &mut command, &log);
        let Ok(process) = process else {
            panic!("{} is not there", binaries.double.display());
        };
        Self { address, process }
    }

    /// A proxy before it, which is ready when it is.
    async fn proxy(
        &self,
        id: &str,
        binaries: &Binaries,
        ground: &Ground,
        drain: Duration,
    ) -> Proxy {
        let (address, etcd) = (self.address.socket(6443), ground.etcd.endpoint());
        let dir = ground.dir.path();
        let options = ProxyOptions::new(binaries.proxy, dir, &ground.pki, address, &etcd);
        let drain = format!("{}s", drain.as_secs());
        let options = options.server_id(id).set("shutdown.drain", &drain);
        Proxy::start(options.until(Until::Ready)).await
    }
}

/// What one watch saw.
struct Seen {
    events: usize,
    /// When its stream ended, and it came back.
    ended: Instant,
    /// When it was served again.
    back: Instant,
}

/// One watch at the first proxy, until that ends it, and again at the second.
async fn watch(here: Client, there: Client, opened: Arc<AtomicUsize>) -> Seen {
    let mut stream = here.open(PODS).await;
    assert_eq!(stream.status, 200);
    opened.fetch_add(1, Ordering::Relaxed);
    let (mut events, mut rest) = (0, Vec::new());
    while let Some(piece) = stream.next_chunk(LONG * 4).await.expect("a clean end") {
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(&rest[..end]).expect("an event");
            assert_eq!(event["object"]["kind"], "Pod");
            events += 1;
            rest.drain(..=end);
        }
    }
    assert!(rest.is_empty(), "cut in the middle of an event: {rest:?}");
    let ended = Instant::now();
    let again = there.open(PODS).await;
    let back = Instant::now();
    if again.status != 200 {
        let answer = again.collect().await.expect("an answer");
        panic!("{}: {}", answer.status, answer.text());
    }
    Seen {
        events,
        ended,
        back,
    }
}

/// Changes what is watched, steadily.
async fn keep_changing(admin: Client, pace: Duration) {
    for number in 0_u32.. {
        let metadata = json!({"name": format!("pod-{number}"), "namespace": "default"});
        let pod = json!({"metadata": metadata, "spec": {"filler": "x".repeat(3000)}});
        let answer = admin
            .request("POST", PODS_IN_DEFAULT, pod.to_string())
            .await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
        tokio::time::sleep(pace).await;
    }
}

/// How many are left to be ended, as the proxy says from time to time, and its memory in KiB.
struct Look {
    at: Instant,
    left: usize,
    memory: usize,
}

async fn look(proxy: &mut Proxy) -> Option<Look> {
    let left = proxy.try_metric("kube_interop_proxy_drain_left").await?;
    Some(Look {
        at: Instant::now(),
        left: left as usize,
        memory: proxy.process().memory()?,
    })
}

/// No part of the drain may end more than twice what it would end if all ended evenly, and a tenth of all.
fn assert_spread(looks: &[Look], watches: usize, drain: Duration) {
    for (index, first) in looks.iter().enumerate() {
        for second in &looks[index..] {
            let (time, ended) = (second.at - first.at, first.left.saturating_sub(second.left));
            let even = time.as_secs_f64() / drain.as_secs_f64();
            let share = ended as f64 / watches as f64;
            assert!(
                share <= 2.0 * even + 0.1,
                "{ended} of {watches} ended within {time:?} of {drain:?}"
            );
        }
    }
}

/// How many of these moments are in each second after `begin`.
fn by_second(begin: Instant, moments: impl Iterator<Item = Instant>) -> Vec<usize> {
    let mut counts = BTreeMap::<u64, usize>::new();
    for moment in moments {
        *counts.entry((moment - begin).as_secs()).or_default() += 1;
    }
    counts.into_values().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_watches_end_whole_and_come_back_one_after_the_other() {
    let asked_for = std::env::var("STAMPEDE_WATCHES").map(|number| number.parse().unwrap());
    let connections = asked_for.unwrap_or(DEFAULT).div_ceil(OF_A_CONNECTION);
    let watches = connections * OF_A_CONNECTION;
    let drain = Duration::from_secs((watches.div_ceil(A_SECOND) as u64).max(SHORTEST));
    let binaries = Binaries::find();
    let ground = Ground::new().await;
    let mut servers = [(); 2].map(|()| Server::start(&binaries, &ground));
    let (mut here, mut there) = tokio::join!(
        servers[0].proxy("a", &binaries, &ground, drain),
        servers[1].proxy("b", &binaries, &ground, drain),
    );
    let empty = here.process().memory().expect("it runs");

    let opened = Arc::new(AtomicUsize::new(0));
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let client = |proxy: &Proxy| {
            let client = proxy.client(&ground.pki).cert("admin").http2();
            client.timeout(LONG)
        };
        let (here, there) = (client(&here), client(&there));
        for _ in 0..OF_A_CONNECTION / OPENING {
            for _ in 0..OPENING {
                running.spawn(watch(here.clone(), there.clone(), opened.clone()));
            }
            let begun = running.len();
            eventually("they are open", LONG, async || {
                opened.load(Ordering::Relaxed) == begun
            })
            .await;
        }
    }
    let admin = Client::new(servers[0].address.socket(6443), &ground.pki).cert("admin");
    let pace = Duration::from_secs_f64(watches as f64 / EVENTS as f64);
    let mut changing = JoinSet::new();
    changing.spawn(keep_changing(admin, pace));
    let open = here.process().memory().expect("it runs");
    let sockets = servers.each_mut().map(|server| server.process.files());
    let begun = Instant::now();
    here.process().signal(Signal::Term);
    eventually("the drain begins", LONG, async || {
        look(&mut here).await.is_some_and(|look| look.left > 0)
    })
    .await;
    let mut looks = Vec::new();
    while let Some(look) = look(&mut here).await {
        looks.push(look);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(here.process().wait(LONG).await.code(), Some(0));
    let mut seen = Vec::new();
    while let Some(one) = running.join_next().await {
        seen.push(one.unwrap());
    }
    changing.shutdown().await;

    let ended = by_second(begun, seen.iter().map(|one| one.ended));
    let back = by_second(begun, seen.iter().map(|one| one.back));
    let mut sorted = ended.clone();
    sorted.sort_unstable();
    let longest = seen.iter().map(|one| one.back - one.ended).max().unwrap();
    let events: usize = seen.iter().map(|one| one.events).sum();
    let most = looks.iter().map(|look| look.memory).max().unwrap();
    let each = |kib: usize| kib as f64 / watches as f64;
    println!(
        "{watches} watches on {connections} connections, drain {drain:?}; {events} events, each whole"
    );
    println!(
        "ended, and asked the second proxy, in each second: {ended:?}; most {}, median {}",
        sorted.last().unwrap(),
        sorted[sorted.len() / 2]
    );
    println!("served again in each second: {back:?}; after {longest:.1?} at most");
    println!(
        "KiB of the first proxy: {empty} without, {open} with all open ({:.1} each), {most} at most in the drain \
         ({:.1} more each); of the second: {} with all open",
        each(open - empty),
        each(most.saturating_sub(open)),
        there.process().memory().unwrap(),
    );
    println!(
        "open files of the first double before the drain: {}; of the second: {} before, {} after",
        sockets[0],
        sockets[1],
        servers[1].process.files()
    );
    assert!(events > 0, "nothing could have been cut");
    assert_spread(&looks, watches, drain);
    assert!(
        each(most.saturating_sub(open)) < 16.0,
        "KiB a watch more in the drain"
    );
}
