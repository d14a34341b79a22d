//! Many watches that end at once, each with its last bookmark: the effects on the proxy, its apiserver, its etcd and its
//! clients. And watches that come back during the drain. With a real kube-apiserver v1.20.2.
//!
//! `BOOKMARK_WATCHES` says how many, `KUBE_INTEROP_PROXY_PROGRAM` which proxy runs. The drain is as
//! long as it takes to end 500 a second, and 6 s at least. 10,000 of them, with what is measured:
//!
//! ```text
//! cargo build --locked --release
//! BOOKMARK_WATCHES=10000 KUBE_INTEROP_PROXY_PROGRAM=$PWD/target/release/kube-interop-proxy \
//!     cargo test --locked --test e2e -- thousands_of_watches_end_with --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::routing::real_apiservers::LONGER;
use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, SECRETS, last_bookmark, list_revision, watch_path, write,
};
use crate::watches::resources::POD_TEMPLATES;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::node::Node;
use testkit::process::Signal;
use testkit::proxy::Proxy;

/// kube-apiserver and the proxy take 250 of a connection.
const OF_A_CONNECTION: usize = 200;
const DEFAULT: usize = 2000;
const A_SECOND: usize = 500;
/// Drain, in seconds.
const SHORTEST: usize = 6;
/// Between two looks at the proxy while it drains.
const PACE: Duration = Duration::from_millis(100);
/// What is watched.
const RESOURCES: [&str; 3] = ["configmaps", "secrets", "podtemplates"];
/// The proxy's own lists and watches of that.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete]
rules:
- level: Metadata
  users: [\"system:kube-interop-proxy\"]
  verbs: [list, watch]
  resources: [{group: \"\", resources: [configmaps, secrets, podtemplates]}]
- level: None
";

/// Watches that etcd serves.
async fn watchers(etcd: &Client) -> i64 {
    let text = etcd.get("/metrics").await.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The proxy's own requests, by what they asked for.
fn own_requests(log: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut requests = BTreeMap::new();
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let what = format!("{} {}", text(&event["verb"]), text(&event["requestURI"]));
        *requests.entry(what).or_default() += 1;
    }
    requests
}

/// An apiserver that writes down the proxy's own requests, and a proxy.
async fn start(drain: Duration) -> Node {
    let ground = Ground::bootstrapped().await;
    let (policy, audit) = (ground.dir.path().join("audit.yaml"), audit(&ground));
    std::fs::write(&policy, AUDIT).unwrap();
    let policy = format!("--audit-policy-file={}", policy.display());
    let audit = format!("--audit-log-path={}", audit.display());
    Node::options()
        .server(move |options| options.arg(&policy).arg(&audit))
        .proxy(move |options| {
            options
                .set("watch.bookmarkOnShutdown", "true")
                .set("shutdown.drain", &format!("{}s", drain.as_secs()))
        })
        .start_on(ground)
        .await
}

fn audit(ground: &Ground) -> PathBuf {
    ground.dir.path().join("audit.log")
}

/// A third of them of a resource of which an event is delivered, a third of one with objects, a third of one without.
async fn open(node: &Node, count: usize) -> Vec<Events> {
    let admin = node.server.admin();
    write(admin, SECRETS, "a", &json!({})).await;
    let from = list_revision(admin, CONFIG_MAPS).await;
    let quiet = [SECRETS, &POD_TEMPLATES.path()].map(|path| watch_path(path, from));
    let mut client = node.client().cert("admin");
    let mut watches = Vec::new();
    for index in 0..count {
        if index % OF_A_CONNECTION == 0 {
            client = client.fresh();
        }
        let path = match index % 3 {
            0 => &watch_path(CONFIG_MAPS, from),
            other => &quiet[other - 1],
        };
        watches.push(Events::open(&client, path).await);
    }
    let change = write(admin, CONFIG_MAPS, "a", &json!({})).await;
    for watch in watches.iter_mut().step_by(3) {
        watch.until(change).await;
    }
    watches
}

fn etcd(ground: &Ground) -> Client {
    let client = Client::new(ground.etcd.addr(), &ground.pki);
    let client = client.trusting("etcd-ca").cert("etcd-client");
    client.server_name("localhost")
}

/// When a watch ended, and with what bookmark.
type End = JoinHandle<(Option<i64>, Instant)>;

fn read_to_the_end(watches: Vec<Events>) -> Vec<End> {
    let reading = watches.into_iter().map(|watch| {
        tokio::spawn(async move {
            let (seen, _) = watch.rest().await;
            (last_bookmark(&seen), Instant::now())
        })
    });
    reading.collect()
}

/// What the proxy needed while it drained: KiB and watches of etcd at most, KiB and processor time at the end.
#[derive(Default)]
struct Drained {
    most: usize,
    watchers: i64,
    last: usize,
    cpu: Duration,
}

/// Looks at the proxy until it has ended.
async fn drained(proxy: &mut Proxy, etcd: &Client) -> Drained {
    let mut drained = Drained::default();
    while let (Some(memory), Some(cpu)) = (proxy.process().memory(), proxy.process().cpu()) {
        drained.most = drained.most.max(memory);
        drained.watchers = drained.watchers.max(watchers(etcd).await);
        (drained.last, drained.cpu) = (memory, cpu);
        tokio::time::sleep(PACE).await;
    }
    drained
}

#[tokio::test]
async fn thousands_of_watches_end_with_a_bookmark_and_those_that_come_back_with_another() {
    let asked_for = std::env::var("BOOKMARK_WATCHES").map(|number| number.parse().unwrap());
    let count = asked_for.unwrap_or(DEFAULT);
    let drain = Duration::from_secs(count.div_ceil(A_SECOND).max(SHORTEST) as u64);
    let mut node = start(drain).await;
    they_end_spread_over_the_drain_and_ask_once(&mut node, count, drain).await;
    who_comes_back_gets_a_last_bookmark_each_time(&mut node).await;
}

async fn they_end_spread_over_the_drain_and_ask_once(
    node: &mut Node,
    count: usize,
    drain: Duration,
) {
    let empty = node.proxy.process().memory().unwrap();
    let watches = open(node, count).await;
    let elsewhere = "/api/v1/namespaces/kube-system/secrets";
    let newest = write(node.server.admin(), elsewhere, "x", &json!({})).await;
    let etcd = etcd(&node.ground);
    let (open, before) = (
        node.proxy.process().memory().unwrap(),
        watchers(&etcd).await,
    );
    let cpu = node.proxy.process().cpu().unwrap();

    node.proxy.process().signal(Signal::Term);
    let stopped = Instant::now();
    let reading = read_to_the_end(watches);
    let drained = drained(&mut node.proxy, &etcd).await;
    assert_eq!(node.proxy.process().wait(LONGER).await.code(), Some(0));
    let mut ends = Vec::new();
    let mut without = 0;
    for watch in reading {
        let (bookmark, end) = watch.await.unwrap();
        without += usize::from(bookmark.is_none_or(|revision| revision < newest));
        ends.push(end - stopped);
    }

    let own = own_requests(&audit(&node.ground));
    let each = |kib: usize| kib as f64 / count as f64;
    let busiest = (0..=drain.as_secs())
        .map(|second| ends.iter().filter(|end| end.as_secs() == second).count());
    let busiest = busiest.max().unwrap();
    println!(
        "{count} watches, drain {drain:?}: {without} without a bookmark; the busiest second ends {busiest}\n\
         KiB: {empty} without watches, {open} with all open ({:.1} each), {} at most in the drain ({:.1} more each), {} at \
         its end\nprocessor time: {cpu:?} until the drain, {:?} in it; watches of etcd: {before} before, {} at most in the \
         drain\nown requests: {own:?}",
        each(open - empty),
        drained.most,
        each(drained.most.saturating_sub(open)),
        drained.last,
        drained.cpu.saturating_sub(cpu),
        drained.watchers,
    );
    assert_eq!(without, 0, "of {count} without a bookmark at {newest}");
    // One for each watched resource, before the drain, and one more where the first failed.
    let asked = |resource: &str| -> usize {
        let of_resource = own.iter().filter(|(what, _)| what.contains(resource));
        of_resource.map(|(_, count)| count).sum()
    };
    for resource in RESOURCES {
        assert!(asked(resource) <= 2, "{own:?}");
    }
    // What the proxy follows for itself goes on while it drains.
    assert!(
        drained.watchers <= before + RESOURCES.len() as i64,
        "{} watches of etcd, {before} before",
        drained.watchers
    );
    let more = drained.most.saturating_sub(open);
    assert!(each(more) < 10.0, "{more} KiB more in the drain");
    assert!(
        busiest < count * 2 / 5,
        "{busiest} of {count} in one second"
    );
}

/// The proxy is started again, and drains longer.
async fn who_comes_back_gets_a_last_bookmark_each_time(node: &mut Node) {
    let (admin, proxy) = (node.server.admin(), &mut node.proxy);
    proxy.reconfigure("shutdown.drain", "20s");
    proxy.start_again().await;
    let client = proxy.client(&node.ground.pki).cert("admin");
    let made = write(admin, CONFIG_MAPS, "b", &json!({})).await;
    // They end at random moments of the drain. The first of so many leaves time for what follows.
    let mut first = Vec::new();
    for _ in 0..20 {
        let mut watch = Events::open(&client, &watch_path(CONFIG_MAPS, made - 1)).await;
        watch.until(made).await;
        first.push(Box::pin(watch.rest()));
    }
    let newest = write(admin, SECRETS, "y", &json!({})).await;
    proxy.process().signal(Signal::Term);
    let ((seen, _), _, _others) = select_all(first).await;
    let bookmark = last_bookmark(&seen).expect("a last bookmark");
    assert!(bookmark >= newest, "{bookmark} < {newest}");

    let mut second = Events::open(&client.fresh(), &watch_path(CONFIG_MAPS, bookmark)).await;
    let changed = write(admin, CONFIG_MAPS, "b", &json!({"data": {"a": "b"}})).await;
    second.until(changed).await;
    let newest = write(admin, SECRETS, "y", &json!({"data": {"a": "Yg=="}})).await;
    let (seen, _) = second.rest().await;
    let bookmark = last_bookmark(&seen).expect("a last bookmark");
    assert!(bookmark >= newest, "{bookmark} < {newest}");
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}
