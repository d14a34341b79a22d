//! The results of the change logs with a real etcd under random writes and compaction, for thousands of watches that
//! each delivered a part of their events.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, Compare, CompareOp, EventType, Txn, TxnOp, WatchOptions};
use kube_interop_proxy::cluster::connector::{self, Connector};
use kube_interop_proxy::config;
use kube_interop_proxy::tls::files::FileSnapshot;
use kube_interop_proxy::watches::change_log::Withheld;
use kube_interop_proxy::watches::change_logs::ChangeLogs;
use kube_interop_proxy::watches::follower::WatchPosition;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use testkit::cluster::LONG;
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::pki::Pki;
use testkit::wait::eventually;

const ROOTS: usize = 40;
/// At least so many, and fewer than so many: how many watches are told anything depends on how fast the machine is.
const BATCHES: Range<u64> = 12..48;
const STREAMS: usize = 250;

/// All changes: keys by revision.
type History = BTreeMap<i64, Vec<String>>;

fn key(random: &mut StdRng) -> String {
    let root = random.gen_range(0..ROOTS);
    let namespace = ["a", "ab"][random.gen_range(0..2)];
    format!("/registry/r{root}/{namespace}/{}", random.gen_range(0..3))
}

/// Puts, deletes and transactions of several keys, until it is told to stop.
async fn write_randomly(mut client: Client, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(7);
    while !stop.load(Ordering::Relaxed) {
        let count = if random.gen_ratio(1, 6) { 3 } else { 1 };
        let mut keys: Vec<_> = (0..count).map(|_| key(&mut random)).collect();
        keys.sort_unstable();
        keys.dedup();
        let delete = random.gen_ratio(1, 3);
        let operation = |key: String| match delete {
            true => TxnOp::delete(key, None),
            false => TxnOp::put(key, "x", None),
        };
        let always = Compare::version("never", CompareOp::Equal, 0);
        let operations: Vec<_> = keys.into_iter().map(operation).collect();
        client
            .txn(Txn::new().when([always]).and_then(operations))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(random.gen_range(0..4))).await;
    }
}

/// Everything that happened, as one watch from the beginning tells it, up to now.
async fn history(etcd: &Etcd) -> History {
    let mut client = etcd.client().await;
    let put = client.put("end", "", None).await.unwrap();
    let end = put.header().unwrap().revision();
    let options = WatchOptions::new().with_range(b"z").with_start_revision(1);
    let mut watch = client.watch("/", Some(options)).await.unwrap();
    let mut history = History::new();
    loop {
        let message = tokio::time::timeout(LONG, watch.message()).await.unwrap();
        for event in message.unwrap().unwrap().events() {
            assert!(matches!(
                event.event_type(),
                EventType::Put | EventType::Delete
            ));
            let kv = event.kv().unwrap();
            let (key, revision) = (kv.key_str().unwrap(), kv.mod_revision());
            if key != "end" {
                history.entry(revision).or_default().push(key.to_owned());
            } else if revision == end {
                return history;
            }
        }
    }
}

/// The changes of keys that begin with `prefix`.
fn below<'a>(
    prefix: &str,
    changes: impl Iterator<Item = (&'a i64, &'a Vec<String>)>,
) -> Vec<(i64, String)> {
    let each = changes.flat_map(|(revision, keys)| keys.iter().map(|key| (*revision, key)));
    let below = each.filter(|(_, key)| key.starts_with(prefix));
    below
        .map(|(revision, key)| (revision, key.clone()))
        .collect()
}

/// A watch that ends: of which keys, what was delivered, and what it was told.
struct Ended {
    root: String,
    scope: &'static str,
    delivered: Vec<(i64, String)>,
    start: i64,
    bookmark: i64,
}

impl Ended {
    /// Changes of its keys after its start and not after `revision` that were not delivered.
    fn missed(&self, history: &History) -> Vec<(i64, String)> {
        let later = history.range(self.start + 1..=self.bookmark);
        let prefix = format!("{}{}", self.root, self.scope);
        let mut missed = below(&prefix, later);
        missed.retain(|change| !self.delivered.contains(change));
        missed
    }
}

/// One watch of a batch: asks, waits, and says what it was told.
async fn end(
    change_logs: Arc<ChangeLogs>,
    known: Arc<History>,
    seed: u64,
) -> Result<Ended, Withheld> {
    let mut random = StdRng::seed_from_u64(seed);
    let root = format!("/registry/r{}/", random.gen_range(0..ROOTS));
    let scope = ["", "a/", "ab/"][random.gen_range(0..3)];
    let prefix = format!("{root}{scope}");
    let newest = *known.last_key_value().expect("a history").0;
    let start = random.gen_range((newest - 400).max(1)..=newest);
    let due = below(&prefix, known.range(start + 1..));
    let delivered = due[..random.gen_range(0..=due.len())].to_vec();
    let last = delivered.last();
    let position = match last {
        None => WatchPosition::all_of(start),
        Some((revision, _)) => {
            let seen = delivered.iter().filter(|(at, _)| at == revision).count();
            WatchPosition {
                revision: *revision,
                seen: u32::try_from(seen).unwrap(),
                names: 0,
            }
        }
    };
    let change_log = change_logs.register(&root, position.revision, 0);
    let change_log = change_log.expect("no more than there may be");
    tokio::time::sleep(Duration::from_millis(random.gen_range(0..300))).await;
    let heard = tokio::time::timeout(LONG, change_log.complete_through(0));
    heard.await.expect("etcd tells how far it is");
    let bookmark = change_log.newest_safe(position, scope, true)?;
    assert!(bookmark > position.revision);
    Ok(Ended {
        root,
        scope,
        delivered,
        start,
        bookmark,
    })
}

/// How a proxy would be told to use this etcd.
fn etcd_config(etcd: &Etcd, pki: &Pki) -> config::EtcdConfig {
    config::EtcdConfig {
        endpoints: vec![etcd.endpoint()],
        ca_file: Some(pki.path("etcd-ca.crt")),
        client: Some(config::KeyPair {
            cert_file: pki.path("etcd-client.crt"),
            key_file: pki.path("etcd-client.key"),
        }),
        prefix: "/registry".to_owned(),
        other_resources: Vec::new(),
    }
}

/// What became of the watches of all batches.
#[derive(Default)]
struct Told {
    ended: Vec<Ended>,
    /// How many were told of what came later than the history that they knew.
    newer: usize,
    withheld: BTreeMap<&'static str, usize>,
}

impl Told {
    /// Fewer would prove little.
    fn is_enough(&self) -> bool {
        self.ended.len() > 500 && self.newer > 100
    }

    /// Watches that know this history begin and end.
    async fn batch(&mut self, connector: Connector, known: Arc<History>, first_seed: u64) {
        let newest = *known.last_key_value().unwrap().0;
        let (change_logs, registrations) = ChangeLogs::new();
        let change_logs = Arc::new(change_logs);
        let running = tokio::spawn(change_logs.run(connector, registrations));
        let seeds = (first_seed..).take(STREAMS);
        let streams = seeds.map(|seed| tokio::spawn(end(change_logs.clone(), known.clone(), seed)));
        for stream in streams.collect::<Vec<_>>() {
            match stream.await.unwrap() {
                Ok(ended) => {
                    self.newer += usize::from(ended.bookmark > newest);
                    self.ended.push(ended);
                }
                Err(why) => *self.withheld.entry(why.name()).or_insert(0) += 1,
            }
        }
        running.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_watches_are_told_nothing_that_they_missed() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let options = EtcdOptions {
        progress_notify: Duration::from_millis(100),
        ..EtcdOptions::default()
    };
    let etcd = Etcd::start_with(dir.path(), &pki, options).await;
    let config = etcd_config(&etcd, &pki);
    let files = connector::files(&config);
    let tls = connector::tls_options(&config, &FileSnapshot::read(&files)).unwrap();
    let tls = Arc::new(ArcSwapOption::from_pointee(tls));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_randomly(etcd.client().await, stop.clone()));
    let mut told = Told::default();
    let mut etcd_tells = etcd.client().await;
    // Of the newest change. To ask for the history again and again would cost more than all watches.
    let mut least = 40;
    for batch in 0..BATCHES.end {
        if batch >= BATCHES.start && told.is_enough() {
            break;
        }
        eventually("there is more to tell than before", LONG, async || {
            let status = etcd_tells.status().await.unwrap();
            let newest = status.header().unwrap().revision();
            (newest >= least).then_some(()).ok_or(newest)
        })
        .await;
        let known = Arc::new(history(&etcd).await);
        // The end of that history is a change as well.
        least = known.last_key_value().unwrap().0 + 41;
        let connector = Connector::new(&config, tls.clone());
        told.batch(connector, known, batch * 1000).await;
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    let history = history(&etcd).await;
    for ended in &told.ended {
        let missed = ended.missed(&history);
        let Ended {
            root,
            scope,
            bookmark,
            ..
        } = ended;
        let text = format!("told {bookmark} of {root}{scope}");
        assert!(missed.is_empty(), "{text}, missed {missed:?}");
    }
    let (all, newer, withheld) = (told.ended.len(), told.newer, &told.withheld);
    assert!(
        told.is_enough(),
        "only {all} were told anything, {newer} of them of what came later: {withheld:?}"
    );
}
