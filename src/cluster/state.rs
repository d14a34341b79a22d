//! Everything that is known of the cluster, taken in message by message. No I/O; time comes in from outside.
//!
//! Written by [`super::catalog`] alone. [`super::members`] makes the snapshot of it that requests read,
//! [`super::report`] what an operator is shown.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::codec::{self, Lease, PeerEndpoint, ServerVersions};
use super::custom::Tracker;
use super::json;
use super::keys::Topic;
use super::listed::Listed;
use super::record::{Live, Record, unpack};
use super::source::Item;
use super::undecodable::Undecodables;
use super::vanished::{Gap, Vanished};
use super::watch::{Event, Message};
use crate::routing::table::{Custom, ServedSet};
use crate::routing::version::Version;

/// A record and its served set, unpacked.
#[derive(Debug, Clone)]
pub struct Known {
    pub(super) record: Record,
    pub(super) served: Arc<ServedSet>,
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record
    }
}

/// What a kube-apiserver without a proxy said of itself in its discovery.
#[derive(Debug, Clone)]
pub struct Native {
    /// Where it was asked.
    pub address: SocketAddr,
    /// Everything it lists, custom resources included.
    pub served: Arc<ServedSet>,
    /// `gitVersion`.
    pub binary_version: String,
    /// The version that it emulates, where known.
    pub version: Option<Version>,
    /// When it was read.
    pub read: Instant,
}

/// An identity lease. Its revision is part of it: who deletes one must name the newest, whatever that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) lease: Lease,
    revision: i64,
}

/// What a message changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// What requests read.
    pub snapshot: bool,
    /// Identity leases.
    pub leases: bool,
    /// A value that could not be decoded came.
    pub undecodable: bool,
}

/// How far a topic is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position {
    /// Everything up to this revision.
    pub(super) revision: i64,
    /// Complete lists so far.
    pub(super) lists: u64,
}

/// Everything that is known.
#[derive(Debug)]
pub struct State {
    pub(super) own_endpoint: SocketAddr,
    pub(super) servers: Listed<Known>,
    pub(super) live: Listed<Live>,
    pub(super) vanished_live: Vanished<Live>,
    pub(super) endpoints: Listed<PeerEndpoint>,
    pub(super) vanished_endpoints: Vanished<PeerEndpoint>,
    pub(super) storage: Listed<Vec<ServerVersions>>,
    claims: Listed<()>,
    vanished_claims: Vanished<()>,
    definitions: Listed<()>,
    /// Whether the APIService has a `spec.service`.
    api_services: Listed<bool>,
    /// One for each namespace; leases of others than apiservers and proxies are `None`.
    pub(super) leases: Vec<Listed<Option<Identity>>>,
    pub(super) natives: BTreeMap<String, (Native, Instant)>,
    pub(super) undecodables: Undecodables,
    /// How far each topic is known, by [`Topic::index`].
    pub(super) positions: Vec<Position>,
    /// All served sets, each once.
    sets: Vec<Arc<ServedSet>>,
    custom: Tracker,
    /// What is custom has changed, and has not been put together again.
    unsettled: bool,
    gap: Gap,
    grace: Duration,
}

impl State {
    /// Knows nothing. `ttl`: of live keys; `grace`: how long what a vanished server served is remembered.
    pub fn new(
        own_endpoint: SocketAddr,
        namespaces: usize,
        ttl: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            own_endpoint: canonical(own_endpoint),
            servers: Listed::default(),
            live: Listed::default(),
            vanished_live: Vanished::new(ttl),
            endpoints: Listed::default(),
            vanished_endpoints: Vanished::new(ttl),
            storage: Listed::default(),
            claims: Listed::default(),
            vanished_claims: Vanished::new(ttl),
            definitions: Listed::default(),
            api_services: Listed::default(),
            leases: (0..namespaces).map(|_| Listed::default()).collect(),
            natives: BTreeMap::new(),
            undecodables: Undecodables::default(),
            positions: vec![Position::default(); Topic::all(namespaces).count()],
            sets: Vec::new(),
            custom: Tracker::default(),
            unsettled: false,
            gap: Gap::new(ttl),
            grace,
        }
    }

    /// Takes a message in. What it says of custom resources counts after [`State::settle`].
    pub fn take(&mut self, (topic, event): Message, now: Instant) -> Changes {
        if let Some(position) = self.positions.get_mut(topic.index()) {
            match event {
                Event::Progress(revision) => position.revision = revision.max(position.revision),
                Event::InitDone(revision) => {
                    // Lower than before, if etcd was restored from a backup.
                    position.revision = revision;
                    position.lists += 1;
                }
                _ => {}
            }
        }
        match &event {
            Event::Init => self.undecodables.restart(topic),
            Event::Delete(key) => self.undecodables.remove(topic, key),
            Event::OtherHistory => self.gap.forgot(now),
            _ => {}
        }
        if topic == Topic::Live {
            self.gap.heard(now);
        }
        let mut changes = Changes::default();
        let mut notes = Notes {
            topic,
            undecodables: &mut self.undecodables,
            new: &mut changes.undecodable,
        };
        changes.snapshot = match topic {
            Topic::Servers => {
                let decode = |item: &Item| {
                    let record: Record = notes.decode(item, json::read)?;
                    let served = Arc::new(unpack(&record.resources));
                    let served = shared(served, &mut self.sets);
                    Some(Known { record, served })
                };
                // A live key may have named the revision before it came.
                let written = matches!(event, Event::Apply(_) | Event::InitDone(_));
                self.servers.take(event, now, decode).changed || written
            }
            Topic::Live => {
                let effect = self
                    .live
                    .take(event, now, |item| notes.decode(item, json::read));
                // Which of two at one address is the newer can change with a writing that changes nothing else.
                let crowded = has_twins(&self.live);
                self.vanished_live
                    .take(effect, &self.live.current, &self.gap, now)
                    || crowded
            }
            Topic::PeerEndpoints => {
                let decode = |item: &Item| notes.decode(item, codec::endpoints);
                let effect = self.endpoints.take(event, now, decode);
                let current = &self.endpoints.current;
                self.vanished_endpoints
                    .take(effect, current, &self.gap, now)
            }
            Topic::StorageVersions => {
                let decode = |item: &Item| notes.decode(item, codec::storage_version);
                self.storage.take(event, now, decode).changed
            }
            Topic::Definitions => {
                let changed = self.definitions.take(event, now, |_| Some(())).changed;
                self.unsettled |= changed;
                changed
            }
            Topic::ApiServices => {
                let decode = |item: &Item| notes.decode(item, codec::is_aggregated);
                let changed = self.api_services.take(event, now, decode).changed;
                self.unsettled |= changed;
                changed
            }
            Topic::Claims => {
                // Its key says it all.
                let effect = self.claims.take(event, now, |_| Some(()));
                let current = &self.claims.current;
                self.vanished_claims.take(effect, current, &self.gap, now)
            }
            Topic::Leases(namespace) => {
                // It may have been the last that was missing.
                let listed = matches!(event, Event::InitDone(_));
                if let Some(leases) = self.leases.get_mut(usize::from(namespace)) {
                    let decode = |item: &Item| {
                        let revision = item.mod_revision;
                        let lease = notes.decode(item, lease)?;
                        Some(lease.map(|lease| Identity { lease, revision }))
                    };
                    changes.leases = leases.take(event, now, decode).changed;
                }
                listed
            }
        };
        changes
    }

    /// Everything was listed at least once.
    pub fn synced(&self) -> bool {
        self.servers.complete
            && self.live.complete
            && self.endpoints.complete
            && self.storage.complete
            && self.claims.complete
            && self.definitions.complete
            && self.api_services.complete
            && self.leases.iter().all(|leases| leases.complete)
    }

    /// Newest revision known of.
    pub fn revision(&self) -> i64 {
        let revisions = self.positions.iter().map(|position| position.revision);
        revisions.max().unwrap_or(0)
    }

    /// Proxies that may not use their server ID, as their keys name them.
    pub(super) fn claims(&self) -> impl Iterator<Item = &String> {
        let vanished = self.vanished_claims.iter().map(|(key, _)| key);
        self.claims.current.keys().chain(vanished)
    }

    /// CRDs and aggregated APIs, as they were settled last.
    pub fn custom(&self) -> &Arc<Custom> {
        self.custom.get()
    }

    /// Puts together what is custom, once for all messages since the last time; local discovery was read `reads` times.
    pub fn settle(&mut self, reads: u64) {
        if std::mem::take(&mut self.unsettled) {
            let aggregated = self.api_services.current.iter();
            let aggregated = aggregated.filter(|(_, at)| at.value);
            self.custom.replace(
                self.definitions.current.keys().map(String::as_str),
                aggregated.map(|(name, _)| name.as_str()),
                reads,
            );
        }
        self.custom.read(reads);
    }

    /// A native server's discovery was read.
    pub fn native_read(&mut self, id: String, mut native: Native, now: Instant) {
        native.served = shared(native.served, &mut self.sets);
        self.natives.insert(id, (native, now + self.grace));
    }

    /// A connection to `address` was refused; whether readers see something else.
    pub fn refused(&mut self, address: SocketAddr) -> bool {
        let live = self
            .vanished_live
            .refused(address, |live| canonical(live.endpoint));
        let native = self
            .vanished_endpoints
            .refused(address, |endpoint| endpoint.address);
        live || native
    }

    /// When something is to be let go of.
    pub fn next_expiry(&self) -> Option<Instant> {
        let natives = self.natives.values().map(|(_, until)| *until);
        natives
            .chain(self.vanished_live.next())
            .chain(self.vanished_endpoints.next())
            .chain(self.vanished_claims.next())
            .min()
    }

    /// Lets go of what is over; whether readers see something else.
    pub fn expire(&mut self, now: Instant) -> bool {
        for (id, (_, until)) in &mut self.natives {
            if self.endpoints.current.contains_key(id) {
                *until = now + self.grace;
            }
        }
        let natives = self.natives.len();
        self.natives.retain(|_, (_, until)| *until > now);
        let live = self.vanished_live.expire(now);
        let claims = self.vanished_claims.expire(now);
        self.vanished_endpoints.expire(now) || live || claims || self.natives.len() != natives
    }
}

/// Keeps note of what cannot be decoded.
struct Notes<'a> {
    topic: Topic,
    undecodables: &'a mut Undecodables,
    new: &'a mut bool,
}

impl Notes<'_> {
    fn decode<T, E: std::error::Error>(
        &mut self,
        item: &Item,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Option<T> {
        match decode(&item.value) {
            Ok(value) => {
                self.undecodables.remove(self.topic, &item.key);
                Some(value)
            }
            Err(error) => {
                let topic = self.topic;
                let text = error.to_string();
                tracing::warn!(
                    topic = topic.name(),
                    key = item.key,
                    error = text,
                    "value cannot be decoded, keeping what was known before"
                );
                *self.new |= self
                    .undecodables
                    .add(topic, &item.key, item.mod_revision, text);
                None
            }
        }
    }
}

/// Leases of schedulers, controller managers and nodes are none of ours.
fn lease(value: &[u8]) -> Result<Option<Lease>, codec::Undecodable> {
    Ok(Some(codec::lease(value)?).filter(|lease| lease.identity || lease.published))
}

/// Servers of one version have the same set: it is kept once, and gone through once.
fn shared(served: Arc<ServedSet>, sets: &mut Vec<Arc<ServedSet>>) -> Arc<ServedSet> {
    sets.retain(|set| Arc::strong_count(set) > 1);
    if let Some(same) = sets.iter().find(|set| **set == served) {
        return same.clone();
    }
    sets.push(served.clone());
    served
}

fn has_twins(live: &Listed<Live>) -> bool {
    let endpoints = live.current.values().map(|at| canonical(at.value.endpoint));
    let mut endpoints: Vec<_> = endpoints.collect();
    endpoints.sort_unstable();
    endpoints.windows(2).any(|pair| pair[0] == pair[1])
}

/// One spelling for one address: IPv4 may come as IPv6 (`::ffff:10.0.0.1`).
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
