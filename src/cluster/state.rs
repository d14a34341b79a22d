//! The state of the cluster, built from etcd's events. No I/O; the caller passes the time.
//!
//! Only [`super::catalog`] writes it. [`super::members`] compiles it to the snapshot that requests read,
//! [`super::report`] to the report for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::absence::{self, Revisions};
use super::bare::{self, Asked};
use super::codec::{self, PeerEndpoint, ServerVersions};
use super::custom::CustomTracker;
use super::json;
use super::keys::{MASTER_LEASE_TTL, Topic};
use super::leases::{Leases, NamedLease};
use super::prefix::{Addressed, Gap, PrefixState, Versioned};
use super::record::{DrainingKey, LiveKey, Record, canonical, unpack};
use super::source::{EtcdItem, Event};
use super::undecodable::Undecodables;
use super::unproxied::{BareAnswer, NativePeer, Unproxied};
use super::watch::Message;
use crate::kube::gvr::{Custom, Definition, ServedSet};
use crate::kube::requestheader::PublishedNames;

/// Keys of servers that drain.
const MOST_DRAINING: usize = 64;

/// A record and its served set, unpacked.
#[derive(Debug, Clone, PartialEq)]
pub struct UnpackedRecord {
    /// Without its resources.
    pub(super) record: Record,
    pub(super) served: Arc<ServedSet>,
}

/// What is known of etcd as a whole.
#[derive(Debug)]
pub struct EtcdProgress {
    /// Complete lists so far.
    pub lists: u64,
    /// Values so far that could not be decoded.
    pub undecodable: u64,
    /// Watches that found that etcd was restored or replaced.
    pub restores: u64,
    /// The newest known revision.
    pub revision: i64,
    /// When the quietest of the watches last had an event; until all had one, the start.
    pub heard: Instant,
}

/// How far a topic is known.
#[derive(Debug)]
pub(super) struct TopicProgress {
    pub(super) revision: i64,
    /// Complete lists so far.
    pub(super) lists: u64,
    gap: Gap,
}

/// The state of the cluster.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) own_endpoint: SocketAddr,
    pub(super) servers: PrefixState<UnpackedRecord>,
    pub(super) live: PrefixState<LiveKey>,
    pub(super) endpoints: PrefixState<PeerEndpoint>,
    pub(super) storage: PrefixState<Vec<ServerVersions>>,
    pub(super) claims: PrefixState<()>,
    /// What each serves; `None` if its value cannot be decoded.
    definitions: PrefixState<Option<Arc<[Box<str>]>>>,
    /// Whether the APIService has a `spec.service`.
    api_services: PrefixState<bool>,
    pub(super) masters: PrefixState<IpAddr>,
    header_names: PrefixState<Arc<PublishedNames>>,
    pub(super) draining: PrefixState<DrainingKey>,
    pub(super) leases: Leases,
    /// They have changed since the catalog published them.
    pub leases_changed: bool,
    pub(super) natives: BTreeMap<String, (NativePeer, Instant)>,
    pub(super) asked: Asked,
    /// The revision that created the key of the apiserver beside each proxy, by IP address, when the proxy wrote last.
    pub(super) proxied: BTreeMap<IpAddr, i64>,
    /// `rerouting.ignoredAddresses`: they lead to no server of their own.
    pub ignored_addresses: Arc<BTreeSet<IpAddr>>,
    /// What etcd's role does not permit to read.
    pub(super) forbidden: BTreeSet<Topic>,
    pub(super) undecodables: Undecodables,
    /// How far each topic that is followed is known.
    pub(super) topics: BTreeMap<Topic, TopicProgress>,
    /// Watches that found that etcd was restored or replaced.
    pub restores: u64,
    /// All served sets, deduplicated.
    sets: Vec<Arc<ServedSet>>,
    custom: CustomTracker,
    /// Definitions or APIServices changed since `custom` was computed.
    custom_outdated: bool,
    /// Records up to this revision came with an etcd that was restored or replaced.
    pub(super) restored_through: i64,
    pub(super) grace: Duration,
}

impl ClusterState {
    /// Empty. `ttl`: of live keys; `grace`: how long the discovery of an absent server is remembered.
    pub fn new(
        own_endpoint: SocketAddr,
        namespaces: usize,
        ttl: Duration,
        grace: Duration,
    ) -> Self {
        let progress = |topic| TopicProgress {
            revision: 0,
            lists: 0,
            gap: match topic {
                Topic::Live => Gap::of_live_keys(ttl),
                Topic::MasterLeases => Gap::of_watch(ttl.max(MASTER_LEASE_TTL)),
                _ => Gap::of_watch(ttl),
            },
        };
        let topics = Topic::all(namespaces);
        Self {
            own_endpoint: canonical(own_endpoint),
            servers: PrefixState::default(),
            live: PrefixState::default(),
            endpoints: PrefixState::default(),
            storage: PrefixState::default(),
            claims: PrefixState::default(),
            definitions: PrefixState::default(),
            api_services: PrefixState::default(),
            masters: PrefixState::default(),
            header_names: PrefixState::default(),
            draining: PrefixState::at_most(MOST_DRAINING),
            leases: Leases::new(namespaces),
            leases_changed: false,
            natives: BTreeMap::new(),
            asked: BTreeMap::new(),
            proxied: BTreeMap::new(),
            ignored_addresses: Arc::default(),
            forbidden: BTreeSet::new(),
            undecodables: Undecodables::default(),
            topics: topics.map(|topic| (topic, progress(topic))).collect(),
            restores: 0,
            sets: Vec::new(),
            custom: CustomTracker::default(),
            custom_outdated: false,
            restored_through: 0,
            grace,
        }
    }

    /// Applies an event. Returns whether it changed the snapshot that requests read. Changes of CRDs and APIServices count
    /// after [`ClusterState::settle`].
    pub fn take(&mut self, (topic, event): Message, now: Instant) -> bool {
        let permission = match event {
            Event::Forbidden => self.forbidden.insert(topic),
            Event::InitDone(_) => self.forbidden.remove(&topic),
            _ => false,
        };
        self.note_progress(topic, &event, now);
        if topic == Topic::MasterLeases {
            // This may be the end of some.
            self.remember_living(now);
            if event == Event::Forbidden {
                self.masters.forget();
            }
        }
        let until = self.counts_until(topic, now);
        let written = match &event {
            Event::Apply(item) if topic == Topic::Live => Some(item.key.clone()),
            _ => None,
        };
        let was_restored = written.as_ref().is_some_and(|id| self.is_restored(id));
        let mut changed = self.take_value(topic, event, until);
        if let Some(id) = written {
            self.note_proxied(&id);
            // It says again that its record is true.
            changed |= was_restored && !self.is_restored(&id);
        } else if topic == Topic::MasterLeases {
            self.follow_proxied();
        }
        self.custom_outdated |= changed && matches!(topic, Topic::Definitions | Topic::ApiServices);
        changed || permission && topic == Topic::MasterLeases
    }

    /// Whether its live key came with an etcd that was restored or replaced.
    fn is_restored(&self, id: &str) -> bool {
        let key = self.live.get(id);
        key.is_some_and(|key| key.revision <= self.restored_through)
    }

    fn take_value(&mut self, topic: Topic, event: Event, until: Option<Instant>) -> bool {
        let listed = matches!(event, Event::InitDone(_));
        let undecodables = &mut self.undecodables;
        match topic {
            Topic::Servers => {
                let read = |item: &EtcdItem| {
                    let record: Option<Record> = undecodables.read(topic, item, json::read)?;
                    Some(record.map(|mut record| {
                        let resources = std::mem::take(&mut record.resources);
                        let served = shared(Arc::new(unpack(&resources)), &mut self.sets);
                        UnpackedRecord { record, served }
                    }))
                };
                // A live key may have named the revision before it came; and of another history all are void.
                let written = matches!(event, Event::Apply(_) | Event::OtherHistory);
                self.servers.take(event, None, read) || written || listed
            }
            Topic::Live => {
                let read = |item: &EtcdItem| undecodables.read(topic, item, json::read);
                self.live.take(event, until, read) || self.live.has_twins()
            }
            Topic::PeerEndpoints => {
                let read = |item: &EtcdItem| undecodables.read(topic, item, codec::endpoints);
                self.endpoints.take(event, until, read) || self.endpoints.has_twins()
            }
            Topic::StorageVersions => self.storage.take(event, None, |item| {
                undecodables.read(topic, item, codec::storage_version)
            }),
            Topic::Definitions => self.definitions.take(event, None, |item| {
                // Its name is in its key. What it served before says nothing of what it serves now.
                let served = undecodables.read(topic, item, codec::served_versions);
                Some(Some(served.flatten()))
            }),
            Topic::ApiServices => self.api_services.take(event, None, |item| {
                undecodables.read(topic, item, codec::is_aggregated)
            }),
            // The key has all information.
            Topic::Claims => self.claims.take(event, until, |_| Some(Some(()))),
            Topic::MasterLeases => {
                let loopback = self.own_endpoint.ip().is_loopback();
                let read = |item: &EtcdItem| bare::advertised_address(item, loopback, undecodables);
                self.masters.take(event, until, read)
            }
            Topic::HeaderNames => {
                self.header_names.take(event, None, |item| {
                    let read = |value: &[u8]| codec::header_names(value).map(Arc::new);
                    undecodables.read(topic, item, read)
                });
                false
            }
            Topic::Draining => {
                let read = |item: &EtcdItem| undecodables.read(topic, item, json::read);
                let changed = self.draining.take(event, None, read);
                undecodables.note_left_out(topic, &self.draining);
                changed
            }
            Topic::Leases(namespace) => {
                // It may have been the last missing list.
                self.leases_changed |= self.leases.take(namespace, event, undecodables) || listed;
                listed
            }
        }
    }

    /// What an event says of how far its topic is known, whatever its value is.
    fn note_progress(&mut self, topic: Topic, event: &Event, now: Instant) {
        let Some(progress) = self.topics.get_mut(&topic) else {
            return;
        };
        progress.gap.note(now);
        match event {
            Event::Init => self.undecodables.restart(topic),
            Event::InitDone(revision) => {
                // Lower than before, if etcd was restored from a backup.
                progress.revision = *revision;
                progress.lists += 1;
                if topic == Topic::Servers && self.restored_through == i64::MAX {
                    self.restored_through = *revision;
                }
            }
            Event::Delete(key) => self.undecodables.remove(topic, key),
            Event::Progress(revision) => progress.revision = progress.revision.max(*revision),
            Event::OtherHistory => {
                // Nothing of the new history is known yet.
                progress.revision = 0;
                self.restores += 1;
                if topic == Topic::Servers {
                    self.restored_through = i64::MAX;
                }
                // etcd has lost keys, however short it was down.
                if let Some(live) = self.topics.get_mut(&Topic::Live) {
                    live.gap.ended = Some(now);
                }
            }
            Event::InitApply(_) | Event::Apply(_) | Event::Forbidden => {}
        }
    }

    /// How long keys of a topic count that disappear now; `None`: not at all. Live keys show every gap. Each topic has its
    /// own watch, and the watches recover in any order: one may report a deletion while the gap is still open for another,
    /// or long after its end.
    fn counts_until(&self, topic: Topic, now: Instant) -> Option<Instant> {
        let own = &self.topics.get(&topic)?.gap;
        let recent = own.is_recent(now) || self.topics.get(&Topic::Live)?.gap.is_recent(now);
        recent.then(|| now + own.ttl)
    }

    /// The header names by which apiservers recognise users; `None` while there are none in etcd.
    pub fn header_names(&self) -> Option<Arc<PublishedNames>> {
        let (_, names) = self.header_names.iter().next()?;
        Some(names.value.clone())
    }

    /// All identity leases; `None` until they were listed.
    pub fn named_leases(&self) -> Option<Vec<Arc<NamedLease>>> {
        let mut topics = self.topics.iter();
        let listed = topics.all(|(topic, it)| it.lists > 0 || !matches!(topic, Topic::Leases(_)));
        listed.then(|| self.leases.iter().cloned().collect())
    }

    /// Everything that routes depend on was listed at least once.
    pub fn synced(&self) -> bool {
        self.topics.iter().all(|(topic, progress)| {
            progress.lists > 0 || *topic == Topic::HeaderNames || self.forbidden.contains(topic)
        })
    }

    /// Up to which revision the topics are known by which servers show themselves; `i64::MAX`: it is not followed.
    pub fn followed(&self) -> Revisions {
        let revision = |it: &TopicProgress| it.revision;
        absence::TOPICS.map(|topic| self.topics.get(&topic).map_or(i64::MAX, revision))
    }

    /// The newest known revision.
    pub fn revision(&self) -> i64 {
        let revisions = self.topics.values().map(|progress| progress.revision);
        revisions.max().unwrap_or(0)
    }

    /// `before`: what counts as heard while some topic never had an event.
    pub fn progress(&self, before: Instant) -> EtcdProgress {
        let topics = self.topics.iter();
        let permitted = topics.filter(|(topic, _)| !self.forbidden.contains(topic));
        // `None` is less than any.
        let heard = permitted.map(|(_, it)| it.gap.heard).min().flatten();
        EtcdProgress {
            lists: self.topics.values().map(|progress| progress.lists).sum(),
            undecodable: self.undecodables.count,
            restores: self.restores,
            revision: self.revision(),
            heard: heard.unwrap_or(before),
        }
    }

    /// CRDs and aggregated APIs, as of the last [`ClusterState::settle`].
    pub fn custom(&self) -> &Arc<Custom> {
        self.custom.get()
    }

    /// Computes the custom resources, once for all events since the last call. `reads`: how often local discovery was
    /// read.
    pub fn settle(&mut self, reads: u64) {
        if std::mem::take(&mut self.custom_outdated) {
            let aggregated = self.api_services.iter();
            let aggregated = aggregated.filter(|(_, at)| at.value);
            let definitions = self.definitions.iter();
            let definition = |at: &Versioned<Option<Arc<[Box<str>]>>>| Definition {
                versions: at.value.clone(),
                revision: at.revision,
            };
            self.custom.replace(
                definitions.map(|(name, at)| (name.as_str(), definition(at))),
                aggregated.map(|(name, _)| name.as_str()),
                reads,
            );
        }
        self.custom.read(reads);
    }

    /// A server without a proxy answered. Returns whether readers see a change.
    pub fn answered(&mut self, server: Unproxied, answer: BareAnswer, now: Instant) -> bool {
        match (server.id, answer) {
            (None, answer) => self.bare_answered((server.address, server.created), answer, now),
            (Some(id), Ok(native)) => {
                let before = self.natives.remove(&id);
                let native = self.read_after(native, before.as_ref().map(|(before, _)| before));
                self.natives.insert(id, (native, now + self.grace));
                true
            }
            (Some(_), Err(_)) => false,
        }
    }

    /// What was read of a server of which `before` was read last.
    pub(super) fn read_after(
        &mut self,
        mut read: NativePeer,
        before: Option<&NativePeer>,
    ) -> NativePeer {
        if let Some(before) = before.filter(|before| before.served == read.served) {
            read.since = before.since;
        }
        read.served = shared(read.served, &mut self.sets);
        read
    }

    /// A connection to `address` was refused. Returns whether readers see a change.
    pub fn refused(&mut self, address: SocketAddr) -> bool {
        let port = self.own_endpoint.port();
        let live = self.live.refused(|it| it.address() == address);
        let native = self.endpoints.refused(|it| it.address() == address);
        let bare = |ip: &IpAddr| SocketAddr::new(*ip, port) == address;
        let bare = self.masters.refused(bare);
        live || native || bare
    }

    /// When the next entry expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let natives = self.natives.values().map(|(_, until)| *until);
        let asked = self.asked.values().filter(|asked| asked.read.is_some());
        natives
            .chain(asked.map(|asked| asked.until))
            .chain(self.live.next_end())
            .chain(self.endpoints.next_end())
            .chain(self.claims.next_end())
            .chain(self.masters.next_end())
            .min()
    }

    /// Removes expired entries. Returns whether readers see a change.
    pub fn expire(&mut self, now: Instant) -> bool {
        for (id, (_, until)) in &mut self.natives {
            if self.endpoints.listed(id).is_some() {
                *until = now + self.grace;
            }
        }
        let natives = self.natives.len();
        self.natives.retain(|_, (_, until)| *until > now);
        let live = self.live.expire(now);
        let claims = self.claims.expire(now);
        let bare = self.expire_bare(now);
        let endpoints = self.endpoints.expire(now);
        endpoints || live || claims || bare || self.natives.len() != natives
    }
}

/// Servers of one version have the same set, which is kept only once.
fn shared(served: Arc<ServedSet>, sets: &mut Vec<Arc<ServedSet>>) -> Arc<ServedSet> {
    sets.retain(|set| Arc::strong_count(set) > 1);
    if let Some(same) = sets.iter().find(|set| **set == served) {
        return same.clone();
    }
    sets.push(served.clone());
    served
}

impl Addressed for UnpackedRecord {
    fn address(&self) -> SocketAddr {
        self.record.endpoint
    }
}

impl Addressed for LiveKey {
    fn address(&self) -> SocketAddr {
        self.endpoint
    }
}

impl Addressed for PeerEndpoint {
    fn address(&self) -> SocketAddr {
        self.address
    }
}
