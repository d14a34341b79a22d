//! What etcd's watches deliver, in any order that etcd may choose: after each event the snapshot is what it was, if the
//! state says that nothing changed, and once everything has been delivered it is what one list of the same keys gives.
#![no_main]

mod etcd;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use kube_interop_proxy::cluster::keys::Topic;
use kube_interop_proxy::cluster::record::{LiveKey, canonical};
use kube_interop_proxy::cluster::source::{EtcdItem, Event};
use kube_interop_proxy::cluster::state::ClusterState;
use kube_interop_proxy::cluster::watch::{Queued, follow, queue};
use kube_interop_proxy::cluster::{json, record};
use kube_interop_proxy::local::discovery::LocalView;
use kube_interop_proxy::routing::table::{Holders, ServerKind, Snapshot};
use libfuzzer_sys::fuzz_target;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::etcd::{Command, Etcd, Source};
use self::values::{OWN_ENDPOINT, OWN_ID, TOPICS, Write, topic};

const TTL: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(3600);
/// Longer than all pauses after failures that a run can have. The clock is paused.
const LONG: Duration = Duration::from_secs(3600);
const MOST_STEPS: usize = 48;

#[derive(Debug, Arbitrary)]
enum Step {
    Write(Write),
    Delete {
        topic: u8,
        name: u8,
    },
    /// A server's keys that are bound to an etcd lease, at one revision.
    LeaseEnds {
        server: u8,
    },
    /// So many revisions of one topic reach the proxy.
    Deliver {
        topic: u8,
        revisions: u8,
    },
    /// Progress without changes, of a member that may lag behind.
    Progress {
        topic: u8,
        lag: u8,
    },
    WatchBreaks {
        topic: u8,
    },
    /// etcd's role may no longer read it, or may again.
    Permit {
        topic: u8,
        permitted: bool,
    },
    Compact,
    Backup,
    Restore,
    Time {
        seconds: u8,
    },
    /// Everything is delivered, and time passes.
    Settle,
}

fuzz_target!(|steps: Vec<Step>| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(run(steps.into_iter().take(MOST_STEPS)));
});

async fn run(steps: impl Iterator<Item = Step>) {
    let etcd = Arc::new(Mutex::new(Etcd::default()));
    etcd.lock().expect("a lock").revision = 1;
    let (sink, messages) = queue(1 << 16);
    let mut followers = JoinSet::new();
    let mut commands = Vec::new();
    for topic in Topic::all(1) {
        let (commander, source) = Source::new(&etcd, topic);
        commands.push(commander);
        let (sink, throttle) = (sink.clone(), Arc::default());
        let replaced = tokio::sync::watch::channel(tokio::time::Instant::now()).1;
        followers.spawn(follow(source, topic, sink, replaced, throttle));
    }
    let mut proxy = Proxy::new(messages);
    let command = |number: u8, command| {
        // The followers run until the end.
        let _ = commands[usize::from(number) % TOPICS].send(command);
    };
    for step in steps.chain([Step::Settle]) {
        match step {
            Step::Write(write) => {
                let mut etcd = etcd.lock().expect("a lock");
                let (topic, key, value) = write.into_item(etcd.revision);
                etcd.put(topic, &key, value);
            }
            Step::Delete {
                topic: number,
                name,
            } => {
                let topic = topic(number);
                let key = values::key(topic, name);
                etcd.lock().expect("a lock").delete(&[(topic, key)]);
            }
            Step::LeaseEnds { server } => {
                let topics = [Topic::Live, Topic::PeerEndpoints];
                let keys = topics.map(|topic| (topic, values::key(topic, server)));
                etcd.lock().expect("a lock").delete(&keys);
            }
            Step::Deliver { topic, revisions } => {
                command(topic, Command::Deliver(revisions.into()))
            }
            Step::Progress { topic, lag } => command(topic, Command::Progress(lag.into())),
            Step::WatchBreaks { topic } => command(topic, Command::Break),
            Step::Permit {
                topic: number,
                permitted,
            } => {
                etcd.lock()
                    .expect("a lock")
                    .permit(topic(number), permitted);
                command(number, Command::Break);
            }
            Step::Compact => etcd.lock().expect("a lock").compact(),
            Step::Backup => etcd.lock().expect("a lock").backup(),
            Step::Restore => etcd.lock().expect("a lock").restore(),
            Step::Time { seconds } => proxy.now += Duration::from_secs(seconds.into()),
            Step::Settle => {
                etcd.lock().expect("a lock").permit_all();
                // What is left of earlier commands may fail first.
                for _ in 0..2 {
                    for commander in &commands {
                        let _ = commander.send(Command::Deliver(usize::MAX));
                    }
                    tokio::time::sleep(LONG).await;
                }
                // After a restore records count once their proxies have written again.
                etcd.lock().expect("a lock").renew();
                for commander in &commands {
                    let _ = commander.send(Command::Deliver(usize::MAX));
                }
                tokio::time::sleep(LONG).await;
                proxy.take_all(&etcd);
                proxy.settle(&etcd.lock().expect("a lock"));
            }
        }
        // Over when all tasks wait.
        tokio::time::sleep(LONG).await;
        proxy.take_all(&etcd);
    }
}

/// What the catalog does with the events.
struct Proxy {
    messages: mpsc::Receiver<Queued>,
    state: ClusterState,
    snapshot: Snapshot,
    now: Instant,
    reads: u64,
    revision: i64,
}

impl Proxy {
    fn new(messages: mpsc::Receiver<Queued>) -> Self {
        let state = ClusterState::new(OWN_ENDPOINT, 1, TTL, GRACE);
        Self {
            messages,
            snapshot: compile(&state),
            state,
            now: Instant::now(),
            reads: 0,
            revision: 0,
        }
    }

    fn take_all(&mut self, etcd: &Mutex<Etcd>) {
        let restored = etcd.lock().expect("a lock").cluster > 0;
        while let Ok((message, _)) = self.messages.try_recv() {
            let told = self.state.take(message.clone(), self.now);
            self.state.settle(self.reads);
            self.compiled(told, &message);
            assert!(restored || self.state.revision() >= self.revision);
            self.revision = self.state.revision();
        }
    }

    /// Readers see only what the state says that changed.
    fn compiled(&mut self, told: bool, what: &dyn std::fmt::Debug) {
        let snapshot = compile(&self.state);
        assert!(told || view(&snapshot) == view(&self.snapshot), "{what:?}");
        self.snapshot = snapshot;
    }

    /// Everything was delivered: nobody who lives is missing, and after some time nobody else is left.
    fn settle(&mut self, etcd: &Etcd) {
        for id in etcd.live().keys().filter(|id| *id != OWN_ID) {
            let known = self
                .snapshot
                .servers
                .iter()
                .any(|server| *server.id == **id && server.live);
            assert!(known, "{id} lives");
        }
        self.now += 3 * TTL;
        let told = self.state.expire(self.now);
        self.compiled(told, &"expired");
        self.state.settle(self.reads);
        self.reads += 2;
        self.state.settle(self.reads);
        self.snapshot = compile(&self.state);
        let mut listed = ClusterState::new(OWN_ENDPOINT, 1, TTL, GRACE);
        for topic in Topic::all(1) {
            let mut take = |event| listed.take((topic, event), self.now);
            take(Event::Init);
            for item in etcd.known(topic) {
                take(Event::InitApply(item));
            }
            take(Event::InitDone(etcd.revision));
        }
        listed.settle(self.reads);
        let (mut known, mut listed) = (compile(&self.state), compile(&listed));
        for (known, listed) in known.servers.iter().zip(&mut listed.servers) {
            // Only who was there at the restore knows.
            if known.history_void {
                (listed.history_void, listed.history_start) = (true, None);
            }
            if etcd.cluster > 0 && !known.draining && listed.draining {
                (listed.draining, listed.history_start) = (false, known.history_start);
            }
        }
        // A CRD that was written again as it was is no news.
        for snapshot in [&mut known, &mut listed] {
            let definitions = &mut Arc::make_mut(&mut snapshot.custom).definitions;
            for definition in definitions.values_mut() {
                definition.revision = 0;
            }
        }
        assert_eq!(view(&known), view(&listed));
        assert_eq!(self.state.revision(), etcd.revision);
        self.check(&etcd.live());
    }

    /// The same by the live keys alone.
    fn check(&self, live: &BTreeMap<String, LiveKey>) {
        assert!(self.snapshot.synced);
        for server in &self.snapshot.servers {
            let key = live.get(&*server.id);
            assert!(server.kind != ServerKind::Proxied || server.live == key.is_some());
            if let Some(key) = key {
                assert_eq!(server.endpoint, canonical(key.endpoint));
                assert_eq!(server.initialized, key.initialized);
            }
            assert!(!server.target || server.initialized && server.endpoint != OWN_ENDPOINT);
            assert!(!server.ready || server.target);
            assert!(!server.draining || !server.live && !server.target);
        }
        let targets = self.snapshot.servers.iter().filter(|server| server.target);
        let proxied = targets.filter(|server| server.kind == ServerKind::Proxied);
        let mut endpoints = BTreeSet::new();
        assert!(
            proxied
                .into_iter()
                .all(|server| endpoints.insert(server.endpoint))
        );
    }
}

fn compile(state: &ClusterState) -> Snapshot {
    state.compile(Some(OWN_ID), &LocalView::default())
}

/// All that requests read of a snapshot.
fn view(snapshot: &Snapshot) -> impl PartialEq + std::fmt::Debug {
    let flags = (snapshot.synced, snapshot.peer_unknown, snapshot.local_known);
    let servers = (&snapshot.servers, &snapshot.targets, &snapshot.own_record);
    let resources = snapshot.resources().into_iter();
    // The servers tell which of them drain.
    let resources = resources.map(|(gvr, holders)| {
        let holders = Holders {
            draining: Vec::new(),
            ..holders.clone()
        };
        (gvr, holders)
    });
    let resources: BTreeMap<_, _> = resources.collect();
    (flags, servers, &snapshot.custom, resources)
}

/// Whether the proxy can decode an item.
fn is_decodable(topic: Topic, item: &EtcdItem) -> bool {
    use kube_interop_proxy::cluster::bare::usable_address;
    use kube_interop_proxy::cluster::codec;
    let value = &item.value;
    match topic {
        Topic::Servers => json::read::<record::Record>(value).is_ok(),
        Topic::Live => json::read::<LiveKey>(value).is_ok(),
        Topic::Draining => json::read::<record::DrainingKey>(value).is_ok(),
        Topic::PeerEndpoints => codec::endpoints(value).is_ok(),
        Topic::StorageVersions => codec::storage_version(value).is_ok(),
        Topic::ApiServices => codec::is_aggregated(value).is_ok(),
        Topic::Definitions | Topic::Claims => true,
        Topic::MasterLeases => usable_address(&item.key, false).is_some(),
        Topic::HeaderNames => codec::header_names(value).is_ok(),
        Topic::Leases(_) => codec::lease(value).is_ok(),
    }
}
