//! A rolling restart of three real kube-apiservers v1.20.2 with their proxies, two of the apiservers alone, and the first
//! steps of one without proxies, with hundreds of kube-rs watchers of many kinds, while another resource is written: the
//! apiservers count how often the watchers list again. With proxies, informers of what is written are told each change once,
//! and others open their watch anew all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;

use crate::availability::ledger::{Informed, NO_TIMEOUT};
use crate::availability::reopening::Reopening;
use crate::routing::real_apiservers::LONGER;
use crate::watches::resources::{
    CSI_DRIVERS, GADGETS, NETWORK_POLICIES, POD_TEMPLATES, Resource, WIDGETS, define_all,
    kube_client,
};
use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::nodes::Nodes;
use testkit::process::Signal;
use testkit::wait::eventually;

/// As many watchers as show that there is something to mend.
const WITHOUT: Series = Series {
    name: "without",
    watchers: 100,
};
/// As many as find what is rarely wrong.
const WITH: Series = Series {
    name: "with",
    watchers: 500,
};
/// Watchers that begin at a time.
const BEGINNING: usize = 20;
/// Without proxies, so many nodes: watchers of the second come to the first, whose history is gone.
const RESTARTED_WITHOUT: usize = 2;
const BUSY: &str = "/api/v1/namespaces/default/configmaps";
/// Between two writes of what is busy.
const PACE: Duration = Duration::from_millis(100);
/// Between two looks at the apiservers' metrics, of which there are thousands.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);
const RESOURCES: [Resource; 5] = [
    POD_TEMPLATES,
    NETWORK_POLICIES,
    CSI_DRIVERS,
    WIDGETS,
    GADGETS,
];

/// Watchers that say its name in `User-Agent`.
struct Series {
    name: &'static str,
    watchers: usize,
}

/// What a watcher asks for.
struct Kind {
    /// The watchers say it in `User-Agent`.
    name: &'static str,
    resource: Resource,
    all_namespaces: bool,
    labels: Option<&'static str>,
    metadata_only: bool,
}

const fn kind(name: &'static str, resource: Resource) -> Kind {
    Kind {
        name,
        resource,
        all_namespaces: false,
        labels: None,
        metadata_only: false,
    }
}

impl Kind {
    const fn everywhere(mut self) -> Self {
        self.all_namespaces = true;
        self
    }

    const fn labels(mut self, labels: &'static str) -> Self {
        self.labels = Some(labels);
        self
    }

    const fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

/// There are objects of `POD_TEMPLATES`, `CSI_DRIVERS` and `WIDGETS`, and none of the others.
const KINDS: [Kind; 14] = [
    kind("quiet", POD_TEMPLATES),
    kind("quiet-everywhere", POD_TEMPLATES).everywhere(),
    kind("quiet-labels", POD_TEMPLATES).labels("side=left"),
    kind("quiet-labels-of-none", POD_TEMPLATES).labels("when=after"),
    kind("quiet-metadata", POD_TEMPLATES).metadata_only(),
    kind("quiet-of-cluster", CSI_DRIVERS).everywhere(),
    kind("empty", NETWORK_POLICIES),
    kind("empty-everywhere", NETWORK_POLICIES).everywhere(),
    kind("empty-labels", NETWORK_POLICIES).labels("side=left"),
    kind("empty-metadata", NETWORK_POLICIES).metadata_only(),
    kind("custom", WIDGETS),
    kind("custom-everywhere", WIDGETS)
        .everywhere()
        .labels("side=left"),
    kind("custom-empty", GADGETS),
    kind("custom-empty-everywhere", GADGETS).everywhere(),
];

/// Of the watcher with this number.
fn kind_of(watcher: usize) -> &'static Kind {
    &KINDS[watcher % KINDS.len()]
}

/// What watchers were told.
#[derive(Default)]
struct Notifications {
    listed: AtomicUsize,
    /// 410.
    expired: AtomicUsize,
    /// What else went wrong, and how often.
    errors: Mutex<BTreeMap<String, usize>>,
    /// By watcher and name of the object.
    seen: Mutex<BTreeMap<(usize, String), usize>>,
}

impl Notifications {
    fn event(&self, watcher: usize, event: Result<Event<impl ResourceExt>, watcher::Error>) {
        match event {
            Ok(Event::InitDone) => _ = self.listed.fetch_add(1, Ordering::Relaxed),
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                let key = (watcher, object.name_any());
                *self.seen.lock().unwrap().entry(key).or_default() += 1;
            }
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                self.expired.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let kind = format!("{error}: {error:?}");
                let kind = kind.chars().take(160).collect();
                *self.errors.lock().unwrap().entry(kind).or_default() += 1;
            }
        }
    }

    /// How many watchers saw an object of this name just so often.
    fn saw(&self, name: &str, watchers: usize) -> BTreeMap<usize, usize> {
        let seen = self.seen.lock().unwrap();
        let mut counts = BTreeMap::new();
        for watcher in 0..watchers {
            let times = seen.get(&(watcher, name.to_owned())).copied();
            *counts.entry(times.unwrap_or_default()).or_default() += 1;
        }
        counts
    }
}

/// Hundreds of watchers, each with a client of its own.
struct Watchers {
    notifications: Arc<Notifications>,
    _tasks: JoinSet<()>,
}

impl Watchers {
    async fn start(balancer: &Balancer, ground: &Ground, series: &Series) -> Self {
        let notifications = Arc::new(Notifications::default());
        let mut tasks = JoinSet::new();
        for number in 0..series.watchers {
            if number % BEGINNING == 0 {
                // One after the other: this is about restarts, not about how many can begin at once.
                eventually("the watchers before have listed", LONGER, async || {
                    notifications.listed.load(Ordering::Relaxed) == number
                })
                .await;
            }
            let user_agent = format!("{}/{}/{number}", series.name, kind_of(number).name);
            let client = kube_client(balancer, ground, &user_agent);
            tasks.spawn(watch(number, client, notifications.clone()));
        }
        Self {
            notifications,
            _tasks: tasks,
        }
    }
}

async fn watch(number: usize, client: kube::Client, notifications: Arc<Notifications>) {
    match kind_of(number).metadata_only {
        true => watch_as::<PartialObjectMeta>(number, client, notifications).await,
        false => watch_as::<DynamicObject>(number, client, notifications).await,
    }
}

async fn watch_as<K>(number: usize, client: kube::Client, notifications: Arc<Notifications>)
where
    K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let kind = kind_of(number);
    let resource = kind.resource.api();
    let api: Api<K> = match kind.all_namespaces {
        true => Api::all_with(client, &resource),
        false => Api::namespaced_with(client, "default", &resource),
    };
    let config = watcher::Config {
        label_selector: kind.labels.map(str::to_owned),
        timeout: Some(NO_TIMEOUT),
        ..watcher::Config::default()
    };
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        notifications.event(number, event);
    }
}

/// Writes steadily what is busy; what cannot be written is left.
async fn keep_busy(client: Client, written: Arc<AtomicUsize>) {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "busy-"}});
    let object = object.to_string();
    loop {
        let answer = client.try_request("POST", BUSY, object.clone()).await;
        match answer.is_ok_and(|answer| answer.code() == 201) {
            true => _ = written.fetch_add(1, Ordering::Relaxed),
            false => client.reconnect().await,
        }
        tokio::time::sleep(PACE).await;
    }
}

/// At which nodes each watcher of a series listed and watched, as the audit logs tell it.
struct Asked {
    lists: BTreeMap<usize, Vec<usize>>,
    watches: BTreeMap<usize, BTreeSet<usize>>,
}

impl Asked {
    fn read(nodes: &Nodes, series: &str) -> Self {
        let (mut lists, mut watches) = (BTreeMap::new(), BTreeMap::new());
        for event in nodes.audit() {
            let Some(number) = watcher_of(&event.user_agent, series) else {
                continue;
            };
            match event.verb.as_str() {
                // The proxy then asked another one: newer apiservers refuse lists until they have read the resource.
                "list" if event.code == 429 => {}
                "list" => lists.entry(number).or_insert(Vec::new()).push(event.node),
                _ => {
                    _ = watches
                        .entry(number)
                        .or_insert(BTreeSet::new())
                        .insert(event.node)
                }
            }
        }
        Self { lists, watches }
    }

    /// Watchers that listed at one node and watched at another.
    fn elsewhere(&self) -> usize {
        let is_elsewhere = |(watcher, lists): &(&usize, &Vec<usize>)| {
            let watches = self.watches.get(watcher);
            watches.is_some_and(|nodes| nodes.iter().any(|node| !lists.contains(node)))
        };
        self.lists.iter().filter(is_elsewhere).count()
    }

    /// Lists by kind, beyond the first of each watcher.
    fn again(&self) -> BTreeMap<&'static str, usize> {
        let mut again: BTreeMap<_, _> = KINDS.iter().map(|kind| (kind.name, 0)).collect();
        for (watcher, lists) in &self.lists {
            *again.entry(kind_of(*watcher).name).or_default() += lists.len() - 1;
        }
        again
    }
}

/// `with/empty/7`: 7, of the series `with`.
fn watcher_of(user_agent: &str, series: &str) -> Option<usize> {
    let rest = user_agent.strip_prefix(series)?.strip_prefix('/')?;
    rest.rsplit('/').next()?.parse().ok()
}

/// What came of one series of rolling restarts.
struct Outcome {
    /// By kind of watcher: beyond the first of each.
    lists: BTreeMap<&'static str, usize>,
    /// Before the first restart.
    elsewhere: usize,
    expired: usize,
    errors: BTreeMap<String, usize>,
    /// How many watchers saw the objects of afterwards so often.
    saw: BTreeMap<usize, usize>,
    took: Duration,
}

/// Watchers, then the restarts of one node after the other, then one object of each resource.
async fn roll(nodes: &mut Nodes, series: &Series) -> Outcome {
    let begin = Instant::now();
    let balancer = nodes.balancer().await;
    let watchers = Watchers::start(&balancer, &nodes.ground, series).await;
    until_all_watch(nodes, series).await;
    let elsewhere = Asked::read(nodes, series.name).elsewhere();

    let admin = Client::new(balancer.addr(), &nodes.ground.pki).cert("admin");
    match nodes.proxies.is_empty() {
        true => roll_without_proxies(nodes, &balancer, &admin).await,
        false => roll_with_proxies(nodes, &balancer, &admin).await,
    }
    until_all_watch(nodes, series).await;

    let afterwards = format!("after-{}", series.name);
    for resource in RESOURCES {
        let labels = json!({"side": "left", "when": "after"});
        resource.create(&admin, &afterwards, labels).await;
    }
    let notifications = &watchers.notifications;
    let saw = || notifications.saw(&afterwards, series.watchers);
    eventually("all see what happens then", LONGER, async || {
        (!saw().contains_key(&0))
            .then_some(())
            .ok_or(format!("{:?}", saw()))
    })
    .await;
    Outcome {
        lists: Asked::read(nodes, series.name).again(),
        elsewhere,
        expired: notifications.expired.load(Ordering::Relaxed),
        errors: notifications.errors.lock().unwrap().clone(),
        saw: saw(),
        took: begin.elapsed(),
    }
}

async fn until_all_watch(nodes: &Nodes, series: &Series) {
    eventually("all watch", LONGER, async || {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let resources = RESOURCES.map(|resource| resource.plural);
        let watches = nodes.watches(&resources).await;
        let all = watches.iter().sum::<usize>() == series.watchers;
        match all {
            true => Ok(()),
            false => Err(format!("{watches:?}, {:?} held", nodes.held().await)),
        }
    })
    .await;
}

async fn roll_without_proxies(nodes: &mut Nodes, balancer: &Balancer, admin: &Client) {
    let written = Arc::new(AtomicUsize::new(0));
    let mut busy = JoinSet::new();
    busy.spawn(keep_busy(admin.fresh(), written.clone()));
    let step = async || more(&written).await;
    nodes.roll(RESTARTED_WITHOUT, balancer, step).await;
    busy.shutdown().await;
}

/// The apiservers alone, told to stop and killed: no stream ends if they are of one version. Then both.
async fn roll_with_proxies(nodes: &mut Nodes, balancer: &Balancer, admin: &Client) {
    let informed = Informed::start(nodes, balancer).await;
    let (lists, opened) = (informed.lists(), informed.opened());
    for signal in [Signal::Term, Signal::Kill] {
        let [continued, ended] = [
            nodes.handed_over("continued").await,
            nodes.handed_over("ended").await,
        ];
        nodes
            .roll_apiservers(signal, async || informed.more().await)
            .await;
        until_all_watch(nodes, &WITH).await;
        let continued = nodes.handed_over("continued").await - continued;
        let ended = nodes.handed_over("ended").await - ended;
        println!("the apiservers alone, {signal:?}: {continued} watches went on, {ended} ended");
        // Each is handed over when its apiserver stops, some of them several times.
        if nodes.are_of_one_version() {
            assert!(continued >= WITH.watchers as f64);
            assert_eq!(ended, 0.0);
        }
    }
    assert_eq!(informed.lists(), lists);
    assert!(informed.opened() == opened || !nodes.are_of_one_version());
    let reopening = Reopening::start(admin);
    let step = async || _ = tokio::join!(informed.more(), reopening.come_back());
    nodes.roll(nodes.servers.len(), balancer, step).await;
    reopening.check().await;
    informed.check().await;
}

/// Waits until a few more objects are written.
async fn more(written: &AtomicUsize) {
    let goal = written.load(Ordering::Relaxed) + 5;
    eventually("more is written", LONG, async || {
        written.load(Ordering::Relaxed) >= goal
    })
    .await;
}

impl Outcome {
    fn again(&self) -> usize {
        self.lists.values().sum()
    }

    fn print(&self, series: &Series) {
        println!(
            "{} proxies: {} lists beyond the first of each of {} watchers, {} told 410; {} watched at \
             another node than they had listed at; {:.0?}; afterwards seen so often by so many: \
             {:?}; other errors: {:?}",
            series.name,
            self.again(),
            series.watchers,
            self.expired,
            self.elsewhere,
            self.took,
            self.saw,
            self.errors,
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_let_nobody_list_again_and_tell_each_change_once() {
    testkit::install_crypto_provider();
    let named = RESOURCES.map(|resource| (resource.group, resource.plural));
    let mut nodes = Nodes::start(&named).await;
    define_all(&nodes).await;
    let admin = nodes.servers[0].admin();
    for resource in [POD_TEMPLATES, CSI_DRIVERS, WIDGETS] {
        resource
            .create(admin, "left", json!({"side": "left"}))
            .await;
        resource
            .create(admin, "right", json!({"side": "right"}))
            .await;
    }
    let without = roll(&mut nodes, &WITHOUT).await;
    // What was written to see whether all see it.
    let admin = nodes.servers[0].admin().fresh();
    for resource in RESOURCES {
        resource.delete(&admin, "after-without").await;
    }
    nodes.add_proxies(|options| options).await;
    let with = roll(&mut nodes, &WITH).await;

    without.print(&WITHOUT);
    with.print(&WITH);
    println!(
        "{:>26} {:>8} {:>8}",
        "lists beyond the first", "without", "with"
    );
    for (kind, lists) in &without.lists {
        println!("{kind:>26} {lists:>8} {:>8}", with.lists[kind]);
    }
    assert!(without.again() > 0, "there was nothing to mend");
    assert!(with.elsewhere > WITH.watchers / 10, "{}", with.elsewhere);
    if with.expired > 0 {
        // Why nobody went on with a watch.
        for proxy in &nodes.proxies {
            println!("{}", proxy.log_tail());
        }
    }
    assert_eq!((with.again(), with.expired), (0, 0));
    assert_eq!(with.saw, BTreeMap::from([(1, WITH.watchers)]));
}
