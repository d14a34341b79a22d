//! Informers that open their watch anew every few seconds. What they watch does not change, so each comes back with the
//! revision of its list, also while the last server drains that has its history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::watches::resources::{
    CSI_DRIVERS, GADGETS, NETWORK_POLICIES, POD_TEMPLATES, Resource, WIDGETS,
};
use testkit::client::{Client, Streaming};
use testkit::cluster::LONG;
use testkit::wait::eventually;

/// There are objects of the first three.
const RESOURCES: [Resource; 5] = [
    POD_TEMPLATES,
    CSI_DRIVERS,
    WIDGETS,
    NETWORK_POLICIES,
    GADGETS,
];
const OF_EACH: usize = 4;
/// How long a watch is open. Less than the drain takes.
const SECONDS: u64 = 3;
const BACKOFF: Duration = Duration::from_millis(100);

/// Who ends the watches of an informer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EndedBy {
    /// `timeoutSeconds`
    Apiserver,
    /// Whatever is in between, without a word.
    IdleTimeout,
}

/// One informer, and what came of it.
#[derive(Debug)]
struct Informer {
    resource: Resource,
    ended_by: EndedBy,
    lists: AtomicUsize,
    watches: AtomicUsize,
    seen: Mutex<Vec<String>>,
    /// Other answers than 200, and why it listed again.
    failures: Mutex<Vec<String>>,
}

impl Informer {
    fn new(number: usize) -> Self {
        let ended_by = match (number / RESOURCES.len()).is_multiple_of(2) {
            true => EndedBy::Apiserver,
            false => EndedBy::IdleTimeout,
        };
        Self {
            resource: RESOURCES[number % RESOURCES.len()],
            ended_by,
            lists: AtomicUsize::default(),
            watches: AtomicUsize::default(),
            seen: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    async fn run(self: Arc<Self>, client: Client) {
        loop {
            let mut position = self.list(&client).await;
            // Until that is too old.
            while let Some(newer) = self.watch(&client, position).await {
                position = newer;
            }
        }
    }

    async fn list(&self, client: &Client) -> String {
        loop {
            match client.fresh().try_get(&self.resource.path()).await {
                Ok(answer) if answer.code() == 200 => {
                    self.lists.fetch_add(1, Ordering::Relaxed);
                    return revision(&answer.json());
                }
                answer => {
                    self.failed(format!("{:?}", answer.map(|it| it.code())))
                        .await
                }
            }
        }
    }

    /// From where the next watch goes on.
    async fn watch(&self, client: &Client, from: String) -> Option<String> {
        let path = self.resource.path();
        let timeout = match self.ended_by {
            EndedBy::Apiserver => format!("&timeoutSeconds={SECONDS}"),
            EndedBy::IdleTimeout => String::new(),
        };
        let watch =
            format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={from}{timeout}");
        match client.fresh().try_open("GET", &watch, "").await {
            Ok(stream) if stream.status == 200 => {
                self.watches.fetch_add(1, Ordering::Relaxed);
                self.follow(stream, from).await
            }
            Ok(stream) if stream.status == 410 => {
                self.failed(format!("410 for {from}")).await;
                None
            }
            answer => {
                let answer = answer.map(|stream| stream.status);
                self.failed(format!("{answer:?}")).await;
                Some(from)
            }
        }
    }

    async fn follow(&self, mut stream: Streaming, mut position: String) -> Option<String> {
        let end = match self.ended_by {
            EndedBy::Apiserver => Instant::now() + LONG,
            EndedBy::IdleTimeout => Instant::now() + Duration::from_secs(SECONDS),
        };
        while let Ok(Ok(Some(event))) = timeout_at(end, stream.next_event(LONG)).await {
            let object = &event["object"];
            match event["type"].as_str() {
                Some("BOOKMARK") => {}
                Some("ADDED") => {
                    let name = object["metadata"]["name"].as_str().unwrap();
                    self.seen.lock().unwrap().push(name.to_owned());
                }
                _ if object["code"] == 410 => {
                    self.failed(format!("{} for {position}", object["message"]))
                        .await;
                    return None;
                }
                _ => panic!("{event}"),
            }
            position = revision(object);
        }
        Some(position)
    }

    async fn failed(&self, how: String) {
        self.failures.lock().unwrap().push(how);
        tokio::time::sleep(BACKOFF).await;
    }
}

fn revision(object: &Value) -> String {
    let revision = object["metadata"]["resourceVersion"].as_str();
    revision.unwrap_or_else(|| panic!("{object}")).to_owned()
}

/// Informers that run until they are dropped.
pub(super) struct Reopening {
    informers: Vec<Arc<Informer>>,
    admin: Client,
    _tasks: JoinSet<()>,
}

impl Reopening {
    /// `admin`: by what the informers reach the apiservers.
    pub(super) fn start(admin: &Client) -> Self {
        let informers = (0..RESOURCES.len() * OF_EACH).map(Informer::new);
        let informers: Vec<_> = informers.map(Arc::new).collect();
        let mut tasks = JoinSet::new();
        for informer in &informers {
            tasks.spawn(informer.clone().run(admin.fresh()));
        }
        Self {
            informers,
            admin: admin.clone(),
            _tasks: tasks,
        }
    }

    /// Returns when each has come back twice.
    pub(super) async fn come_back(&self) {
        let opened = |informer: &Arc<Informer>| informer.watches.load(Ordering::Relaxed);
        let before: Vec<_> = self.informers.iter().map(opened).collect();
        eventually("all have come back", LONG, async || {
            let mut all = self.informers.iter().zip(&before);
            all.all(|(informer, before)| opened(informer) > *before + 1)
        })
        .await;
    }

    /// They see what happens now, and nobody has listed again.
    pub(super) async fn check(self) {
        self.come_back().await;
        for resource in RESOURCES {
            resource.create(&self.admin, "new", json!({})).await;
        }
        eventually("all see what happens then", LONG, async || {
            let seen = |it: &Informer| it.seen.lock().unwrap().clone();
            let mut missing = self.informers.iter().filter(|it| seen(it) != ["new"]);
            missing
                .next()
                .map_or(Ok(()), |one| Err(format!("{one:#?}")))
        })
        .await;
        let mut again: BTreeMap<_, usize> = BTreeMap::new();
        for informer in &self.informers {
            let place = (informer.resource.plural, informer.ended_by);
            *again.entry(place).or_default() += informer.lists.load(Ordering::Relaxed) - 1;
            println!("{informer:?}");
        }
        println!("lists beyond the first: {again:#?}");
        assert!(again.values().all(|lists| *lists == 0), "{again:#?}");
    }
}
