//! The log at its default level: one line per event, with its reason, and no lines without events.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::documents::{files, root};
use testkit::client::Client;
use testkit::cluster::{Cluster, HPAS, LONG};
use testkit::double::v1_20;
use testkit::pki::LeafOptions;
use testkit::proxy::Proxy;
use testkit::steady::Steady;
use testkit::wait::{eventually, holds};

const PODS: &str = "/api/v1/pods";
const AGE: &str = "kube_interop_proxy_etcd_state_age_seconds";
const REFUSALS: &str = "kube_interop_proxy_refusals_total";
const LOADED: &str = "kube_interop_proxy_certificates_loaded_total";

/// With the time that writes to etcd have by default: on a busy machine they would fail now and then, which is told.
async fn cluster() -> Cluster {
    Cluster::with(v1_20(), |options| options.set("peer.leaseTTL", "15s")).await
}

/// What a proxy has logged since it was looked at last.
struct Log {
    file: PathBuf,
    seen: usize,
}

impl Log {
    fn of(proxy: &mut Proxy) -> Self {
        let file = proxy.process().log().to_owned();
        let mut log = Self { file, seen: 0 };
        log.news();
        log
    }

    /// All new lines so far.
    fn peek(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().skip(self.seen).map(str::to_owned).collect()
    }

    /// The same, seen from now on.
    fn news(&mut self) -> Vec<String> {
        let lines = self.peek();
        self.seen += lines.len();
        lines
    }

    async fn until(&self, text: &str) {
        eventually(&format!("the log says {text:?}"), LONG, async || {
            let lines = self.peek();
            let there = lines.iter().any(|line| line.contains(text));
            there.then_some(()).ok_or(lines.join("\n"))
        })
        .await;
    }
}

/// Each line is an event with a time, and none is told twice before it is over.
#[track_caller]
fn assert_told_once(lines: &[String], at_most: usize) {
    let all = lines.join("\n");
    let mut told = BTreeSet::new();
    for line in lines {
        let (time, what) = line.split_once(' ').unwrap_or_default();
        assert!(
            time.starts_with("20") && time.ends_with('Z'),
            "no event: {line}\n{all}"
        );
        // What is over may begin anew.
        if what.contains(" again") {
            told.clear();
        }
        assert!(told.insert(what.to_owned()), "twice: {line}\n{all}");
    }
    assert!(lines.len() <= at_most, "{} lines:\n{all}", lines.len());
}

#[track_caller]
fn assert_count(lines: &[String], text: &str, count: usize) {
    let found = lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(found, count, "{text}\n{}", lines.join("\n"));
}

/// A log in JSON, as `install` sets it, would have none of its causes.
#[test]
fn no_line_has_an_error_instead_of_its_text() {
    let mut sources = Vec::new();
    files(&root().join("src"), "rs", &mut sources);
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        let is_there = text.contains("as &dyn Error") || text.contains("as &dyn std::error::Error");
        assert!(!is_there, "{}", path.display());
    }
}

/// Requests for `path` every 20 ms, whatever they are answered.
fn asking(client: Client, path: &'static str) -> Steady {
    Steady::start(path, Duration::from_millis(20), 10_000, move || {
        let client = client.clone();
        async move {
            client
                .try_get(path)
                .await
                .map(drop)
                .map_err(|it| format!("{it:#}"))
        }
    })
}

#[tokio::test]
async fn nothing_is_told_while_nothing_happens() {
    let mut cluster = cluster().await;
    let started = Log {
        file: cluster.proxy_a.process().log().to_owned(),
        seen: 0,
    };
    let events = [
        "serving",
        "the state in etcd was read",
        "the local apiserver is initialized",
        "the apiserver accepts",
        "watch history begins",
        "apiserver ID",
        "announced to its peers",
    ];
    for event in events {
        started.until(event).await;
    }
    let mut start = started.peek();
    // Certificates of tests are short-lived.
    start.retain(|line| !line.contains("a certificate will expire soon"));
    assert_told_once(&start, 12);
    for event in events {
        assert_count(&start, event, 1);
    }
    let admin = cluster.client().cert("admin");
    let traffic = [
        asking(admin.fresh(), PODS),
        asking(admin.fresh(), HPAS),
        asking(admin.fresh(), "/apis"),
        asking(admin.fresh(), "/apis/no.such.group/v1/things"),
        asking(cluster.client().fresh(), PODS),
    ];
    let of_b = Log {
        file: cluster.proxy_b.process().log().to_owned(),
        seen: 0,
    };
    for event in events {
        of_b.until(event).await;
    }
    for log in [&started, &of_b] {
        // One of them was there first.
        eventually("the other one is a target", LONG, async || {
            let lines = log.peek();
            let text = ["targets=1", "state=\"target"];
            let there = |line: &String| text.iter().any(|text| line.contains(text));
            let told = lines.iter().any(there);
            told.then_some(()).ok_or(lines.join("\n"))
        })
        .await;
    }
    let logs = [Log::of(&mut cluster.proxy_a), Log::of(&mut cluster.proxy_b)];
    holds("the log is quiet", Duration::from_secs(20), async || {
        let lines: Vec<_> = logs.iter().flat_map(Log::peek).collect();
        if lines.is_empty() {
            Ok(())
        } else {
            Err(lines.join("\n"))
        }
    })
    .await;
    for stream in traffic {
        assert!(stream.stop().await > 10);
    }
}

#[tokio::test]
async fn an_outage_of_etcd_is_told_when_it_begins_and_when_it_is_over() {
    let mut cluster = cluster().await;
    let mut log = Log::of(&mut cluster.proxy_a);
    cluster.ground.etcd.kill();
    eventually("etcd is down for long", LONG, async || {
        cluster.proxy_a.metric(AGE, &[]).await > 8.0
    })
    .await;
    let during = log.news();
    assert_told_once(&during, 12);
    assert!(
        during
            .iter()
            .any(|line| line.contains("etcd cannot be followed")),
        "{during:?}"
    );
    cluster.ground.etcd.start_again().await;
    for text in [
        "etcd is followed again",
        "this proxy's keys are written to etcd again",
    ] {
        log.until(text).await;
    }
    let after = log.news();
    assert_told_once(&after, 12);
    assert_count(&after, "etcd is followed again", 1);
    assert_count(&after, "this proxy's keys are written to etcd again", 1);
}

#[tokio::test]
async fn a_peers_death_is_told_once_however_many_ask_for_it() {
    let mut cluster = cluster().await;
    let mut log = Log::of(&mut cluster.proxy_a);
    let traffic = asking(cluster.client().cert("admin"), HPAS);
    cluster.proxy_b.kill();
    let unreachable = [("reason", "unreachable")];
    eventually("many were refused", LONG, async || {
        cluster.proxy_a.metric(REFUSALS, &unreachable).await > 100.0
    })
    .await;
    let during = log.news();
    assert_told_once(&during, 12);
    assert_count(&during, "exchange failed", 1);
    assert_count(&during, "absent", 1);
    cluster.proxy_b.start_again().await;
    log.until("target").await;
    assert!(traffic.stop().await > 10);
    assert_told_once(&log.news(), 12);
}

#[tokio::test]
async fn new_certificates_and_a_stop_are_told_line_by_line() {
    let mut cluster = cluster().await;
    let mut log = Log::of(&mut cluster.proxy_a);
    let admin = cluster.client().cert("admin");
    let mut watches = Vec::new();
    for _ in 0..10 {
        watches.push(admin.fresh().open("/api/v1/pods?watch=1").await);
    }
    let before = cluster.proxy_a.metric(LOADED, &[]).await;
    let pair = LeafOptions::client("front-proxy-client");
    cluster
        .ground
        .pki
        .leaf("front-proxy-client", "front-proxy-ca", &pair);
    eventually("new files are in use", LONG, async || {
        cluster.proxy_a.metric(LOADED, &[]).await > before
    })
    .await;
    for watch in &mut watches {
        while watch.next_line(LONG).await.expect("a clean end").is_some() {}
    }
    let rotated = log.news();
    assert_told_once(&rotated, 12);
    assert_count(&rotated, "new certificate files are in use", 1);
    assert_count(&rotated, "a long-running request ends", 1);

    std::fs::write(cluster.ground.pki.path("apiserver.key"), "nonsense").unwrap();
    log.until("cannot be used").await;
    holds("it is told once", Duration::from_secs(3), async || {
        let lines = log.peek();
        let told = lines.iter().filter(|line| line.contains("cannot be used"));
        told.count() == 1
    })
    .await;
    log.news();

    assert!(cluster.proxy_a.terminate().await.success());
    let stop = log.news();
    assert_told_once(&stop, 12);
    for event in ["stopping", "live key removed", "stopped"] {
        assert_count(&stop, event, 1);
    }
}
