//! Informers of a busy resource: what each was told, against what etcd tells. And the comparison itself.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchStream};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::routing::real_apiservers::LONGER;
use crate::watches::resources::kube_client;
use crate::watches::writing::Writing;
use testkit::balancer::Balancer;
use testkit::client::{Client, Response, Streaming};
use testkit::cluster::LONG;
use testkit::ledger::{Change, Event, Interest, Labels, Ledger, Told, Violation, What};
use testkit::nodes::Nodes;
use testkit::wait::eventually;

const INFORMERS: usize = 50;
/// Of these. The others are kube-rs'.
const REFLECTORS: usize = 25;
const WRITERS: u64 = 3;
const NAMESPACES: [&str; 2] = ["default", "other"];
const SIDES: [&str; 2] = ["left", "right"];
const PREFIX: &str = "/registry/configmaps/";
/// The last object that is written in each namespace: of one side, then of the other.
const LAST: &str = "last";
/// Between two writes of a writer, at most.
const PACE: u64 = 600;
/// Of a watch: as long as its apiserver wants. By default kube-rs ends it after 290 seconds, which a busy machine may take for a test.
pub(super) const NO_TIMEOUT: u32 = 0;
/// Before an informer asks again after a failure.
const BACKOFF: Duration = Duration::from_millis(100);

/// One informer, and what it was told so far.
#[derive(Clone)]
struct Informer {
    name: String,
    interest: Interest,
    told: Arc<Mutex<Vec<Told>>>,
    /// Lists, the first included.
    lists: Arc<AtomicUsize>,
    /// Watches that a [`Reflector`] has opened.
    watches: Arc<AtomicUsize>,
}

impl Informer {
    fn new(number: usize) -> Self {
        let namespace = [None, Some(NAMESPACES[0]), Some(NAMESPACES[1])][number % 3];
        let side = [None, None, Some(SIDES[0]), Some(SIDES[1])][number % 4];
        let interest = Interest {
            namespace: namespace.map(str::to_owned),
            label: side.map(|side| ("side".to_owned(), side.to_owned())),
        };
        Self {
            name: format!("ledger/{number}"),
            interest,
            told: Arc::default(),
            lists: Arc::default(),
            watches: Arc::default(),
        }
    }

    fn tell(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    fn was_told(&self, revision: i64, object: &str, what: What) {
        self.tell(Told::Event(Event {
            revision,
            object: object.to_owned(),
            what,
        }));
    }

    /// The first list is what it begins with.
    fn has_listed(&self, revision: Option<i64>) {
        if self.lists.fetch_add(1, Ordering::Relaxed) > 0 {
            self.tell(Told::Listed(revision));
        }
    }

    fn selector(&self) -> Option<String> {
        let label = self.interest.label.as_ref();
        label.map(|(name, value)| format!("{name}={value}"))
    }
}

/// An informer of kube-rs.
async fn kube_informer(informer: Informer, client: kube::Client) {
    let api: Api<ConfigMap> = match &informer.interest.namespace {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, namespace),
    };
    let config = watcher::Config {
        timeout: Some(NO_TIMEOUT),
        label_selector: informer.selector(),
        ..watcher::Config::default()
    };
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        let (object, what) = match event {
            Ok(watcher::Event::Apply(object)) => (object, What::Applied),
            Ok(watcher::Event::Delete(object)) => (object, What::Deleted),
            Ok(watcher::Event::InitDone) => {
                informer.has_listed(None);
                continue;
            }
            // After an error it lists again or goes on.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) | Err(_) => continue,
        };
        let revision = object.resource_version().unwrap().parse().unwrap();
        let namespace = object.namespace().unwrap();
        let object = format!("{namespace}/{}", object.name_any());
        informer.was_told(revision, &object, what);
    }
}

/// An informer that remembers each event and bookmark, and goes on from the last one.
struct Reflector {
    informer: Informer,
    client: Client,
    collection: String,
}

impl Reflector {
    fn new(informer: Informer, client: Client) -> Self {
        let namespace = match &informer.interest.namespace {
            None => String::new(),
            Some(namespace) => format!("namespaces/{namespace}/"),
        };
        let selector = informer.selector().unwrap_or_default();
        let selector = selector.replace('=', "%3D");
        let collection = format!("/api/v1/{namespace}configmaps?labelSelector={selector}");
        Self {
            informer,
            client,
            collection,
        }
    }

    async fn run(self) {
        loop {
            let mut position = self.list().await;
            // Until that is too old.
            while let Some(newer) = self.watch(position).await {
                position = newer;
            }
        }
    }

    async fn list(&self) -> i64 {
        loop {
            match self.client.try_get(&self.collection).await {
                Ok(answer) if answer.code() == 200 => {
                    let revision = revision_of(&answer.json());
                    self.informer.has_listed(Some(revision));
                    return revision;
                }
                _ => self.back_off().await,
            }
        }
    }

    /// One watch to its end; from where the next has to go on, unless that is too old.
    async fn watch(&self, from: i64) -> Option<i64> {
        let watch = format!(
            "{}&watch=true&allowWatchBookmarks=true&resourceVersion={from}",
            self.collection
        );
        let stream = match self.client.try_open("GET", &watch, "").await {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) if stream.status == 410 => return None,
            _ => {
                self.back_off().await;
                return Some(from);
            }
        };
        self.informer.watches.fetch_add(1, Ordering::Relaxed);
        let newer = self.follow(stream, from).await;
        self.client.reconnect().await;
        newer
    }

    async fn follow(&self, mut stream: Streaming, mut position: i64) -> Option<i64> {
        // A stream that breaks off, and one that is quiet for long, is asked for again.
        while let Ok(Some(event)) = stream.next_event(LONGER).await {
            let object = &event["object"];
            let what = match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => What::Applied,
                Some("DELETED") => What::Deleted,
                Some("BOOKMARK") => {
                    position = revision_of(object);
                    self.informer.tell(Told::Bookmark(position));
                    continue;
                }
                _ if object["code"] == 410 => return None,
                _ => return Some(position),
            };
            position = revision_of(object);
            let text = |field: &str| object["metadata"][field].as_str().unwrap();
            let name = format!("{}/{}", text("namespace"), text("name"));
            self.informer.was_told(position, &name, what);
        }
        Some(position)
    }

    async fn back_off(&self) {
        tokio::time::sleep(BACKOFF).await;
        self.client.reconnect().await;
    }
}

fn revision_of(object: &Value) -> i64 {
    let revision = object["metadata"]["resourceVersion"].as_str().unwrap();
    revision.parse().unwrap()
}

/// Creates, changes, relabels and deletes. What fails is left: etcd tells what has happened.
async fn write_randomly(client: Client, seed: u64, writing: Arc<Writing>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !writing.stop.load(Ordering::Relaxed) {
        let namespace = NAMESPACES[random.gen_range(0..2)];
        let side = SIDES[random.gen_range(0..2)];
        let name = format!("of-{seed}-{}", random.gen_range(0..5));
        let answer = match random.gen_ratio(1, 3) {
            true => {
                client
                    .try_request("DELETE", &path(namespace, &name), "")
                    .await
            }
            false => apply(&client, namespace, &name, side, random.r#gen()).await,
        };
        match answer {
            Ok(answer) if answer.code() < 300 => {
                _ = writing.written.fetch_add(1, Ordering::Relaxed)
            }
            Ok(answer) if answer.code() < 500 => {}
            _ => client.reconnect().await,
        }
        tokio::time::sleep(Duration::from_millis(random.gen_range(0..PACE))).await;
    }
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
}

/// Replaces an object, or creates it.
async fn apply(
    client: &Client,
    namespace: &str,
    name: &str,
    side: &str,
    data: u64,
) -> anyhow::Result<Response> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"side": side}}, "data": {"data": data.to_string()}});
    let object = object.to_string();
    let path = path(namespace, name);
    let answer = client.try_request("PUT", &path, object.clone()).await?;
    match answer.code() {
        404 => {
            let (collection, _) = path.rsplit_once('/').unwrap();
            client.try_request("POST", collection, object).await
        }
        _ => Ok(answer),
    }
}

/// All changes from the first revision, as a watch of etcd tells them, up to the last object of each namespace.
async fn changes(watch: &mut WatchStream) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut last = 0;
    while last < NAMESPACES.len() * SIDES.len() {
        let message = watch.message().await.unwrap().unwrap();
        for event in message.events() {
            let change = change(event);
            last += usize::from(change.name == LAST);
            changes.push(change);
        }
    }
    changes
}

fn change(event: &etcd_client::Event) -> Change {
    let kv = event.kv().unwrap();
    let object = kv.key_str().unwrap().strip_prefix(PREFIX).unwrap();
    let (namespace, name) = object.split_once('/').unwrap();
    Change {
        revision: kv.mod_revision(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        before: event.prev_kv().map(labels),
        after: (event.event_type() == EventType::Put).then(|| labels(kv)),
    }
}

fn labels(kv: &KeyValue) -> Labels {
    let envelope = kv.value().strip_prefix(b"k8s\0").expect("an envelope");
    let unknown = Unknown::decode(envelope).unwrap();
    let object = k8s_pb::api::core::v1::ConfigMap::decode(unknown.raw()).unwrap();
    object.metadata.unwrap().labels.into_iter().collect()
}

/// Starts all informers; returns when they have listed.
async fn start_informers(
    nodes: &Nodes,
    balancer: &Balancer,
    tasks: &mut JoinSet<()>,
) -> Vec<Informer> {
    let informers: Vec<_> = (0..INFORMERS).map(Informer::new).collect();
    let admin = Client::new(balancer.addr(), &nodes.ground.pki).cert("admin");
    for (number, informer) in informers.iter().cloned().enumerate() {
        match number % 4 {
            0 | 3 => {
                let client = kube_client(balancer, &nodes.ground, &informer.name);
                tasks.spawn(kube_informer(informer, client));
            }
            1 => _ = tasks.spawn(Reflector::new(informer, admin.http1()).run()),
            _ => _ = tasks.spawn(Reflector::new(informer, admin.http2()).run()),
        }
    }
    eventually("all have listed", LONGER, async || {
        let has_listed = |informer: &Informer| informer.lists.load(Ordering::Relaxed) > 0;
        informers.iter().all(has_listed)
    })
    .await;
    informers
}

/// Informers of ConfigMaps, and who writes these.
pub(super) struct Informed {
    informers: Vec<Informer>,
    /// What they were not told of began before.
    before: i64,
    writing: Arc<Writing>,
    writers: JoinSet<()>,
    /// Of etcd, before anything of it is compacted.
    changes: WatchStream,
    admin: Client,
    _tasks: JoinSet<()>,
}

impl Informed {
    /// Returns when all have listed, and watch.
    pub(super) async fn start(nodes: &Nodes, balancer: &Balancer) -> Self {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACES[1]}});
        let at_one = nodes.servers[0].admin();
        let created = at_one.request("POST", "/api/v1/namespaces", namespace.to_string());
        assert_eq!(created.await.code(), 201);
        let mut tasks = JoinSet::new();
        let informers = start_informers(nodes, balancer, &mut tasks).await;
        let before = revision_of(&at_one.get("/api/v1/configmaps").await.json());
        let admin = Client::new(balancer.addr(), &nodes.ground.pki).cert("admin");
        let writing = Arc::new(Writing::default());
        let mut writers = JoinSet::new();
        for seed in 0..WRITERS {
            writers.spawn(write_randomly(admin.fresh(), seed, writing.clone()));
        }
        let informed = Self {
            informers,
            before,
            writing,
            writers,
            changes: nodes.ground.etcd.changes(PREFIX).await,
            admin,
            _tasks: tasks,
        };
        eventually("all watch", LONGER, async || {
            informed.opened() == REFLECTORS
        })
        .await;
        informed
    }

    /// Returns when more was written.
    pub(super) async fn more(&self) {
        self.writing.more(10).await;
    }

    /// How often each has listed.
    pub(super) fn lists(&self) -> Vec<usize> {
        let lists = |informer: &Informer| informer.lists.load(Ordering::Relaxed);
        self.informers.iter().map(lists).collect()
    }

    /// How many watches the [`Reflector`]s have opened.
    pub(super) fn opened(&self) -> usize {
        let opened = |informer: &Informer| informer.watches.load(Ordering::Relaxed);
        self.informers.iter().map(opened).sum()
    }

    /// Each was told every change once, and none has listed again.
    pub(super) async fn check(mut self) {
        self.writing.stop.store(true, Ordering::Relaxed);
        self.writers.join_all().await;
        write_last(&self.admin).await;
        let changes = tokio::time::timeout(LONGER, changes(&mut self.changes)).await;
        let ledger = Ledger::new(self.before, changes.expect("all of etcd's changes"));
        until_all_are_told(&ledger, &self.informers).await;
        let (mut events, mut bookmarks) = (0, 0);
        let mut wrong = Vec::new();
        for informer in &self.informers {
            let told = informer.told.lock().unwrap();
            let is_event = |told: &&Told| matches!(told, Told::Event(_));
            events += told.iter().filter(is_event).count();
            bookmarks += told.iter().filter(|told| !is_event(told)).count();
            let violations = ledger.check(&informer.interest, &told);
            wrong.extend(
                violations
                    .iter()
                    .map(|violation| format!("{informer}: {violation}")),
            );
        }
        println!(
            "{} changes, {INFORMERS} informers, {events} events, {bookmarks} bookmarks and lists: {} violations",
            ledger.due(&Interest::default()).len(),
            wrong.len()
        );
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(bookmarks > 0, "no bookmark could have been wrong");
    }
}

/// One object of each namespace, of one side and then of the other: all informers are told of it.
async fn write_last(admin: &Client) {
    for namespace in NAMESPACES {
        for side in SIDES {
            eventually("the last object is written", LONG, async || {
                let answer = apply(admin, namespace, LAST, side, 0).await;
                answer.is_ok_and(|answer| answer.code() < 300)
            })
            .await;
        }
    }
}

async fn until_all_are_told(ledger: &Ledger, informers: &[Informer]) {
    for informer in informers {
        let due = ledger.due(&informer.interest);
        let last = due.last().expect("changes");
        eventually("it is told the last change", LONGER, async || {
            let told = informer.told.lock().unwrap();
            let reached = |told: &Told| match told {
                Told::Event(event) => event.revision >= last.revision,
                Told::Listed(Some(revision)) => *revision >= last.revision,
                _ => false,
            };
            told.iter()
                .any(reached)
                .then_some(())
                .ok_or(format!("{informer}: not {last}, but {:?}", told.last()))
        })
        .await;
    }
}

impl Display for Informer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let namespace = self.interest.namespace.as_deref().unwrap_or("all");
        let selector = self.selector().unwrap_or_default();
        write!(f, "{} ({namespace}, {selector})", self.name)
    }
}

fn changed(revision: i64, name: &str, before: Option<&str>, after: Option<&str>) -> Change {
    let labels = |side: &str| Labels::from([("side".to_owned(), side.to_owned())]);
    Change {
        revision,
        namespace: "default".to_owned(),
        name: name.to_owned(),
        before: before.map(labels),
        after: after.map(labels),
    }
}

/// Of three objects; `a` goes from one side to the other.
fn history() -> Ledger {
    Ledger::new(
        10,
        vec![
            changed(9, "early", None, Some("left")),
            changed(11, "a", None, Some("left")),
            changed(12, "b", None, Some("right")),
            changed(14, "a", Some("left"), Some("right")),
            changed(15, "b", Some("right"), None),
            changed(20, "c", None, Some("left")),
        ],
    )
}

/// What an informer has to be told, all of it.
fn whole(interest: &Interest) -> Vec<Told> {
    history()
        .due(interest)
        .into_iter()
        .map(Told::Event)
        .collect()
}

fn violations(told: &[Told]) -> Vec<String> {
    let violations = history().check(&Interest::default(), told);
    violations.iter().map(Violation::to_string).collect()
}

#[test]
fn who_asks_for_a_label_is_told_of_what_gets_it_and_loses_it() {
    let left = Interest {
        label: Some(("side".to_owned(), "left".to_owned())),
        ..Interest::default()
    };
    let due: Vec<_> = history().due(&left).iter().map(Event::to_string).collect();
    assert_eq!(
        due,
        [
            "default/a Applied at 11",
            "default/a Deleted at 14",
            "default/c Applied at 20"
        ]
    );
    let other = Interest {
        namespace: Some("other".to_owned()),
        label: None,
    };
    assert_eq!(history().due(&other), []);
}

#[test]
fn nothing_is_wrong_with_a_whole_history_and_bookmarks_at_their_places() {
    let mut told = whole(&Interest::default());
    told.insert(2, Told::Bookmark(13));
    told.push(Told::Bookmark(30));
    assert_eq!(violations(&told), [""; 0]);
}

#[test]
fn an_event_that_is_lost_or_doubled_or_late_or_made_up_is_found() {
    let mut lost = whole(&Interest::default());
    lost.remove(2);
    assert_eq!(violations(&lost), ["missed: default/a Applied at 14"]);

    let mut doubled = whole(&Interest::default());
    doubled.insert(2, doubled[1].clone());
    assert_eq!(
        violations(&doubled),
        ["told twice: default/b Applied at 12"]
    );

    let mut late = whole(&Interest::default());
    late.swap(2, 3);
    assert_eq!(
        violations(&late),
        ["backwards: default/a Applied at 14, after 15"]
    );

    let mut made_up = whole(&Interest::default());
    made_up[3] = match made_up[3].clone() {
        Told::Event(event) => Told::Event(Event {
            what: What::Applied,
            ..event
        }),
        other => other,
    };
    assert_eq!(
        violations(&made_up),
        [
            "did not happen: default/b Applied at 15",
            "missed: default/b Deleted at 15"
        ]
    );
}

#[test]
fn a_bookmark_above_what_comes_later_or_backwards_is_found() {
    let mut above = whole(&Interest::default());
    above.insert(2, Told::Bookmark(14));
    assert_eq!(
        violations(&above),
        ["a bookmark at 14 before it was told: default/a Applied at 14"]
    );

    let mut backwards = whole(&Interest::default());
    backwards.insert(4, Told::Bookmark(14));
    assert_eq!(
        violations(&backwards),
        ["backwards: a bookmark at 14, after 15"]
    );
}

#[test]
fn a_list_after_the_first_is_found_and_covers_what_came_before() {
    let mut again = whole(&Interest::default());
    again[1] = Told::Listed(Some(12));
    assert_eq!(violations(&again), ["listed again, at Some(12)"]);

    let mut unknown = whole(&Interest::default());
    unknown.splice(1..3, [Told::Listed(None)]);
    assert_eq!(violations(&unknown), ["listed again, at None"]);
}
