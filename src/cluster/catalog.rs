//! The one writer of the snapshot: takes what etcd and the local apiserver tell, and publishes what follows from it.
//!
//! Readers ([`crate::relay`], the status page) load the snapshot without locks. A new one is compiled when something
//! changed, once for all messages that are waiting.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

use super::keys::Topic;
use super::record::{Live, Record, unpack};
use super::source::Item;
use super::watch::{Event, Message};
use crate::local::discovery::LocalView;
use crate::routing::table::{Custom, Pair, ServedSet, Server, Snapshot};

/// When etcd was last heard of.
#[derive(Debug)]
pub struct Freshness {
    start: Instant,
    /// Milliseconds after `start`, plus 1; 0: never.
    heard: AtomicU64,
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            heard: AtomicU64::new(0),
        }
    }
}

impl Freshness {
    /// Time since etcd was last heard of, or since start.
    pub fn age(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed).saturating_sub(1));
        self.start.elapsed().saturating_sub(heard)
    }

    fn touch(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.heard.store(millis + 1, Ordering::Relaxed);
    }
}

/// Counts of what etcd told, for metrics.
#[derive(Debug, Default)]
pub struct Told {
    /// Complete lists.
    pub lists: AtomicU64,
    /// Values that could not be decoded.
    pub undecodable: AtomicU64,
}

/// What the catalog publishes to.
#[derive(Debug, Clone, Default)]
pub struct Published {
    /// The snapshot that requests read.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// When etcd was last heard of.
    pub freshness: Arc<Freshness>,
    /// Counts.
    pub told: Arc<Told>,
}

/// Who we are: our own record is not a peer's.
#[derive(Debug, Clone)]
pub struct Own {
    /// Our server ID.
    pub id: Arc<str>,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
}

/// Runs until no follower is left. `custom` carries on what is known of CRDs and aggregated APIs.
pub async fn run(
    own: Own,
    mut messages: mpsc::Receiver<Message>,
    mut local: watch::Receiver<LocalView>,
    custom: watch::Sender<Option<Custom>>,
    published: Published,
) {
    let mut state = State::default();
    let mut local_gone = false;
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return };
                let mut changed = state.take(message, &published);
                while let Ok(message) = messages.try_recv() {
                    changed |= state.take(message, &published);
                }
                if !changed {
                    continue;
                }
            }
            result = local.changed(), if !local_gone => local_gone = result.is_err(),
        }
        let view = local.borrow_and_update().clone();
        let now_custom = state.custom(view.reads);
        let known = state.synced().then(|| now_custom.clone());
        custom.send_if_modified(|before| std::mem::replace(before, known.clone()) != known);
        published
            .snapshot
            .store(Arc::new(state.compile(&own, &view, now_custom)));
    }
}

/// A list that is being replaced by a newer one while it is still in use.
#[derive(Debug)]
struct Listed<T> {
    current: BTreeMap<String, T>,
    staged: Option<BTreeMap<String, T>>,
    complete: bool,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            current: BTreeMap::new(),
            staged: None,
            complete: false,
        }
    }
}

/// A value and the revision that wrote it.
#[derive(Debug, Clone)]
struct At<T> {
    value: T,
    revision: i64,
}

#[derive(Debug, Default)]
struct State {
    servers: Listed<At<(Record, Arc<ServedSet>)>>,
    live: Listed<At<Live>>,
    definitions: Listed<()>,
    /// Whether the APIService has a `spec.service`.
    api_services: Listed<bool>,
    /// Custom resources that are gone, and the discovery read in which that was noticed.
    departed: BTreeMap<Departed, u64>,
    revision: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Departed {
    Definition(Pair),
    Aggregated(Pair),
}

/// Reads of discovery after which something that was custom may be taken for built-in: it stays listed for a moment
/// after its deletion.
const READS_UNTIL_BUILT_IN: u64 = 2;

impl State {
    /// Takes a message in; whether a new snapshot is due.
    fn take(&mut self, (topic, event): Message, published: &Published) -> bool {
        published.freshness.touch();
        if let Event::InitDone(revision) | Event::Progress(revision) = event {
            self.revision = self.revision.max(revision);
        }
        if matches!(event, Event::InitDone(_)) {
            published.told.lists.fetch_add(1, Ordering::Relaxed);
        }
        let undecodable = |key: &str, error: serde_json::Error| {
            published.told.undecodable.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(topic = topic.name(), key, %error, "value cannot be decoded, keeping what was known before");
        };
        match topic {
            Topic::Servers => self.servers.take(event, |item| {
                decode::<Record>(item, undecodable).map(|At { value, revision }| {
                    let served = Arc::new(unpack(&value.resources));
                    At {
                        value: (value, served),
                        revision,
                    }
                })
            }),
            Topic::Live => self.live.take(event, |item| decode(item, undecodable)),
            Topic::Definitions => self.definitions.take(event, |_| Some(())),
            Topic::ApiServices => self.api_services.take(event, |item| {
                decode::<ApiService>(item, undecodable).map(|at| at.value.spec.service.is_some())
            }),
        }
    }

    fn synced(&self) -> bool {
        self.servers.complete
            && self.live.complete
            && self.definitions.complete
            && self.api_services.complete
    }

    /// CRDs and aggregated APIs, those included that are gone only since discovery was read for the `reads`th time.
    fn custom(&mut self, reads: u64) -> Custom {
        let mut now = Custom {
            definitions: self
                .definitions
                .current
                .keys()
                .filter_map(|name| pair(name))
                .map(swapped)
                .collect(),
            aggregated: self
                .api_services
                .current
                .iter()
                .filter(|(_, aggregated)| **aggregated)
                .filter_map(|(name, _)| pair(name))
                .map(swapped)
                .collect(),
        };
        // Everything present is remembered with the read after which it may be forgotten.
        let seen = now.definitions.iter().cloned().map(Departed::Definition);
        let seen = seen.chain(now.aggregated.iter().cloned().map(Departed::Aggregated));
        self.departed
            .extend(seen.map(|which| (which, reads + READS_UNTIL_BUILT_IN)));
        self.departed.retain(|_, until| reads < *until);
        for which in self.departed.keys().cloned() {
            match which {
                Departed::Definition(pair) => now.definitions.insert(pair),
                Departed::Aggregated(pair) => now.aggregated.insert(pair),
            };
        }
        now
    }

    fn compile(&self, own: &Own, view: &LocalView, custom: Custom) -> Snapshot {
        let servers = self.ids().filter_map(|id| self.server(id, own)).collect();
        Snapshot::new(
            self.synced(),
            self.revision,
            servers,
            view.served.as_deref(),
            custom,
        )
    }

    /// Everyone but us.
    fn ids(&self) -> impl Iterator<Item = &String> {
        let unrecorded = self
            .live
            .current
            .keys()
            .filter(|id| !self.servers.current.contains_key(*id));
        self.servers.current.keys().chain(unrecorded)
    }

    fn server(&self, id: &str, own: &Own) -> Option<Server> {
        if id == &*own.id {
            return None;
        }
        let record = self.servers.current.get(id);
        let live = self.live.current.get(id);
        let endpoint = live
            .map(|live| live.value.endpoint)
            .or(record.map(|record| record.value.0.endpoint))?;
        if live.is_none() && self.is_replaced(endpoint, record?.revision) {
            return None;
        }
        let newest = live.is_some_and(|live| !self.has_newer_live(live));
        let initialized = live.is_some_and(|live| live.value.initialized);
        Some(Server {
            id: id.into(),
            endpoint,
            live: live.is_some(),
            initialized,
            target: initialized && newest && endpoint != own.endpoint,
            binary_version: record.and_then(|record| record.value.0.binary_version.clone()),
            known: is_known(live, record),
            served: record.map(|record| record.value.1.clone()),
        })
    }

    /// Whether a newer record has the same address: what was there before is gone for good.
    fn is_replaced(&self, endpoint: SocketAddr, revision: i64) -> bool {
        self.servers
            .current
            .values()
            .any(|other| other.value.0.endpoint == endpoint && other.revision > revision)
    }

    fn has_newer_live(&self, live: &At<Live>) -> bool {
        self.live.current.values().any(|other| {
            other.value.endpoint == live.value.endpoint && other.revision > live.revision
        })
    }
}

/// Whether the record is the one that the live key means.
fn is_known<R>(live: Option<&At<Live>>, record: Option<&At<R>>) -> bool {
    let meant = live.and_then(|live| live.value.record_revision);
    meant
        .zip(record)
        .is_some_and(|(meant, record)| record.revision == meant)
}

impl<T: Clone> Listed<T> {
    /// Takes an event in; whether what readers see changed.
    fn take(&mut self, event: Event, decode: impl Fn(&Item) -> Option<T>) -> bool {
        match event {
            Event::Init => self.staged = Some(BTreeMap::new()),
            Event::InitApply(item) => {
                // What cannot be decoded now leaves what was known.
                let value = decode(&item).or_else(|| self.current.get(&item.key).cloned());
                if let (Some(staged), Some(value)) = (&mut self.staged, value) {
                    staged.insert(item.key, value);
                }
            }
            Event::InitDone(_) => {
                self.current = self.staged.take().unwrap_or_default();
                self.complete = true;
                return true;
            }
            Event::Apply(item) => {
                let Some(value) = decode(&item) else {
                    return false;
                };
                self.current.insert(item.key, value);
                return true;
            }
            Event::Delete(key) => return self.current.remove(&key).is_some(),
            Event::Progress(_) => {}
        }
        false
    }
}

fn decode<T: for<'de> Deserialize<'de>>(
    item: &Item,
    undecodable: impl Fn(&str, serde_json::Error),
) -> Option<At<T>> {
    match serde_json::from_slice(&item.value) {
        Ok(value) => Some(At {
            value,
            revision: item.mod_revision,
        }),
        Err(error) => {
            undecodable(&item.key, error);
            None
        }
    }
}

#[derive(Deserialize)]
struct ApiService {
    #[serde(default)]
    spec: ApiServiceSpec,
}

#[derive(Default, Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    service: Option<serde::de::IgnoredAny>,
}

/// `<plural>.<group>` of a CRD, `<version>.<group>` of an APIService.
fn pair(name: &str) -> Option<Pair> {
    name.split_once('.')
        .map(|(first, group)| Pair(first.to_owned(), group.to_owned()))
}

fn swapped(Pair(first, group): Pair) -> Pair {
    Pair(group, first)
}

#[cfg(test)]
mod tests;
