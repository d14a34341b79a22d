//! The state of the cluster, built from etcd's events. No I/O; the caller passes the time.
//!
//! Only [`super::catalog`] writes it. [`super::members`] compiles it to the snapshot that requests read,
//! [`super::report`] to the report for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::absence::{self, Revisions};
use super::bare::{BareAnswer, BareServers};
use super::codec::{self, PeerEndpoint, ServerVersions};
use super::custom::CustomTracker;
use super::decoder::Decoder;
use super::json;
use super::keys::Topic;
use super::leases::Leases;
use super::native_peer::NativePeer;
use super::prefix::{PrefixState, Versioned};
use super::record::{LiveKey, Record, unpack};
use super::source::EtcdItem;
use super::suspended::{Addressed, Gap, LeasedKeys};
use super::undecodable::Undecodables;
use super::unproxied::Unproxied;
use super::watch::{Event, Message};
use crate::kube::gvr::{Custom, Definition, ServedSet};
use crate::kube::requestheader::PublishedNames;

/// A record and its served set, unpacked.
#[derive(Debug, Clone)]
pub struct UnpackedRecord {
    pub(super) record: Record,
    pub(super) served: Arc<ServedSet>,
}

impl PartialEq for UnpackedRecord {
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record
    }
}

/// What an event changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateChanges {
    /// The snapshot that requests read.
    pub snapshot: bool,
    /// Identity leases.
    pub leases: bool,
    /// The header names by which apiservers recognise users.
    pub header_names: bool,
    /// A value could not be decoded.
    pub undecodable: bool,
}

/// Up to which revision a topic is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TopicProgress {
    pub(super) revision: i64,
    /// Complete lists so far.
    pub(super) lists: u64,
}

/// The state of the cluster.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) own_endpoint: SocketAddr,
    pub(super) servers: PrefixState<UnpackedRecord>,
    pub(super) live: LeasedKeys<LiveKey>,
    pub(super) endpoints: LeasedKeys<PeerEndpoint>,
    pub(super) storage: PrefixState<Vec<ServerVersions>>,
    pub(super) claims: LeasedKeys<()>,
    /// What each serves; `None` if its value cannot be decoded.
    definitions: PrefixState<Option<Arc<[Box<str>]>>>,
    /// Whether the APIService has a `spec.service`.
    api_services: PrefixState<bool>,
    pub(super) leases: Leases,
    pub(super) natives: BTreeMap<String, (NativePeer, Instant)>,
    pub(super) bare: BareServers,
    header_names: PrefixState<PublishedNames>,
    /// What etcd's role does not permit to read.
    pub(super) forbidden: BTreeSet<Topic>,
    pub(super) undecodables: Undecodables,
    /// How far each topic is known, by [`Topic::index`].
    pub(super) positions: Vec<TopicProgress>,
    /// All served sets, deduplicated.
    sets: Vec<Arc<ServedSet>>,
    custom: CustomTracker,
    /// Definitions or APIServices changed since `custom` was computed.
    custom_outdated: bool,
    gap: Gap,
    /// Records up to this revision came with an etcd that was restored or replaced.
    pub(super) restored_through: i64,
    /// etcd was, and its records are not listed yet.
    restored: bool,
    grace: Duration,
}

impl ClusterState {
    /// Empty. `ttl`: of live keys; `grace`: how long the discovery of an absent server is remembered.
    pub fn new(
        own_endpoint: SocketAddr,
        namespaces: usize,
        ttl: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            own_endpoint: canonical(own_endpoint),
            servers: PrefixState::default(),
            live: LeasedKeys::new(ttl),
            endpoints: LeasedKeys::new(ttl),
            storage: PrefixState::default(),
            claims: LeasedKeys::new(ttl),
            definitions: PrefixState::default(),
            api_services: PrefixState::default(),
            leases: Leases::new(namespaces),
            natives: BTreeMap::new(),
            bare: BareServers::new(canonical(own_endpoint), ttl, grace),
            header_names: PrefixState::default(),
            forbidden: BTreeSet::new(),
            undecodables: Undecodables::default(),
            positions: vec![TopicProgress::default(); Topic::all(namespaces).count()],
            sets: Vec::new(),
            custom: CustomTracker::default(),
            custom_outdated: false,
            gap: Gap::new(ttl),
            restored_through: 0,
            restored: false,
            grace,
        }
    }

    /// Applies an event. Changes of CRDs and APIServices count after [`ClusterState::settle`].
    pub fn take(&mut self, (topic, event): Message, now: Instant) -> StateChanges {
        self.note_progress(topic, &event, now);
        let permission = match event {
            Event::Forbidden => self.forbidden.insert(topic),
            Event::InitDone(_) => self.forbidden.remove(&topic),
            _ => false,
        };
        let mut changes = StateChanges::default();
        let mut decoder = Decoder {
            topic,
            undecodables: &mut self.undecodables,
            new: &mut changes.undecodable,
        };
        changes.snapshot = match topic {
            Topic::Servers => {
                let decode = |item: &EtcdItem| unpacked(item, &mut decoder, &mut self.sets);
                // A live key may have named the revision before it came; and of another history all are void.
                let written = matches!(
                    event,
                    Event::Apply(_) | Event::InitDone(_) | Event::OtherHistory
                );
                self.servers.take(event, now, decode).changed || written
            }
            Topic::Live => {
                let decode = decoder.with(json::read);
                let changed = self.live.take(event, now, &self.gap, decode);
                changed || self.live.has_twins()
            }
            Topic::PeerEndpoints => {
                let decode = decoder.with(codec::endpoints);
                let changed = self.endpoints.take(event, now, &self.gap, decode);
                changed || self.endpoints.has_twins()
            }
            Topic::StorageVersions => {
                let decode = decoder.with(codec::storage_version);
                self.storage.take(event, now, decode).changed
            }
            Topic::Definitions => {
                // Its name is in its key. What it served before says nothing of what it serves now.
                let decode = |item: &EtcdItem| Some(decoder.decode(item, codec::served_versions));
                self.definitions.take(event, now, decode).changed
            }
            Topic::ApiServices => {
                let decode = decoder.with(codec::is_aggregated);
                self.api_services.take(event, now, decode).changed
            }
            // The key has all information.
            Topic::Claims => self.claims.take(event, now, &self.gap, |_| Some(())),
            Topic::MasterLeases => {
                let loopback = self.own_endpoint.ip().is_loopback();
                let decode = |item: &EtcdItem| decoder.master_lease(item, loopback);
                self.bare.take_lease(event, now, &self.gap, decode) || permission
            }
            Topic::HeaderNames => {
                let decode = decoder.with(codec::header_names);
                changes.header_names = self.header_names.take(event, now, decode).changed;
                false
            }
            Topic::Leases(namespace) => {
                // It may have been the last missing list.
                let listed = matches!(event, Event::InitDone(_));
                let leases = &mut self.leases;
                changes.leases = leases.take(namespace.into(), event, now, &mut decoder);
                listed
            }
        };
        self.custom_outdated |=
            changes.snapshot && matches!(topic, Topic::Definitions | Topic::ApiServices);
        changes
    }

    /// What an event says of how far its topic is known, whatever its value is.
    fn note_progress(&mut self, topic: Topic, event: &Event, now: Instant) {
        if let Some(position) = self.positions.get_mut(topic.index()) {
            match event {
                Event::Progress(revision) => position.revision = position.revision.max(*revision),
                Event::InitDone(revision) => {
                    // Lower than before, if etcd was restored from a backup.
                    position.revision = *revision;
                    position.lists += 1;
                }
                // Nothing of the new history is known yet.
                Event::OtherHistory => position.revision = 0,
                _ => {}
            }
        }
        match event {
            Event::Init => self.undecodables.restart(topic),
            Event::Delete(key) => self.undecodables.remove(topic, key),
            Event::OtherHistory => self.gap.forgot(now),
            _ => {}
        }
        match (topic, event) {
            (Topic::Servers, Event::OtherHistory) => {
                (self.restored, self.restored_through) = (true, i64::MAX);
            }
            (Topic::Servers, Event::InitDone(revision)) if self.restored => {
                (self.restored, self.restored_through) = (false, *revision);
            }
            (Topic::Live, _) => self.gap.heard(now),
            _ => {}
        }
    }

    /// The header names by which apiservers recognise users; `None` while there are none in etcd.
    pub fn header_names(&self) -> Option<Arc<PublishedNames>> {
        let names = self.header_names.current.values().next();
        names.map(|at| Arc::new(at.value.clone()))
    }

    /// Everything that routes depend on was listed at least once.
    pub fn synced(&self) -> bool {
        self.servers.complete
            && self.live.listed.complete
            && self.endpoints.listed.complete
            && self.storage.complete
            && self.claims.listed.complete
            && self.definitions.complete
            && self.api_services.complete
            && (self.bare.is_complete() || self.forbidden.contains(&Topic::MasterLeases))
            && self.leases.are_complete()
    }

    /// Up to which revision the topics are known by which servers show themselves.
    pub fn followed(&self) -> Revisions {
        let revision = |topic: Topic| {
            let position = self.positions.get(topic.index());
            position.map_or(0, |position| position.revision)
        };
        absence::TOPICS.map(revision)
    }

    /// The newest known revision.
    pub fn revision(&self) -> i64 {
        let revisions = self.positions.iter().map(|position| position.revision);
        revisions.max().unwrap_or(0)
    }

    /// Proxies that may not use their server ID, as their keys name them.
    pub(super) fn claims(&self) -> impl Iterator<Item = &String> {
        self.claims.iter().map(|(key, _)| key)
    }

    /// CRDs and aggregated APIs, as of the last [`ClusterState::settle`].
    pub fn custom(&self) -> &Arc<Custom> {
        self.custom.get()
    }

    /// Computes the custom resources, once for all events since the last call. `reads`: how often local discovery was
    /// read.
    pub fn settle(&mut self, reads: u64) {
        if std::mem::take(&mut self.custom_outdated) {
            let aggregated = self.api_services.current.iter();
            let aggregated = aggregated.filter(|(_, at)| at.value);
            let definitions = self.definitions.current.iter();
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
            (None, answer) => self.bare_answered(server.address, answer, now),
            (Some(id), Ok(native)) => {
                self.native_read(id, native, now);
                true
            }
            (Some(_), Err(_)) => false,
        }
    }

    /// A native server's discovery was read.
    pub fn native_read(&mut self, id: String, mut native: NativePeer, now: Instant) {
        native.served = shared(native.served, &mut self.sets);
        let native = native.after(self.natives.get(&id).map(|(before, _)| before));
        self.natives.insert(id, (native, now + self.grace));
    }

    /// A candidate for a bare server answered. Returns whether readers see a change.
    pub fn bare_answered(&mut self, from: SocketAddr, answer: BareAnswer, now: Instant) -> bool {
        let answer = answer.map(|mut native| {
            native.served = shared(native.served, &mut self.sets);
            native
        });
        self.bare.answered(from, answer, now)
    }

    /// A connection to `address` was refused. Returns whether readers see a change.
    pub fn refused(&mut self, address: SocketAddr) -> bool {
        let live = self.live.refused(address, LiveKey::address);
        let native = self.endpoints.refused(address, PeerEndpoint::address);
        let bare = self.bare.refused(address);
        live || native || bare
    }

    /// When the next entry expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let natives = self.natives.values().map(|(_, until)| *until);
        natives
            .chain(self.live.next())
            .chain(self.endpoints.next())
            .chain(self.claims.next())
            .chain(self.bare.next_expiry())
            .min()
    }

    /// Removes expired entries. Returns whether readers see a change.
    pub fn expire(&mut self, now: Instant) -> bool {
        for (id, (_, until)) in &mut self.natives {
            if self.endpoints.listed.current.contains_key(id) {
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

/// A record and what it lists.
fn unpacked(
    item: &EtcdItem,
    decoder: &mut Decoder<'_>,
    sets: &mut Vec<Arc<ServedSet>>,
) -> Option<UnpackedRecord> {
    let record: Record = decoder.decode(item, json::read)?;
    let served = shared(Arc::new(unpack(&record.resources)), sets);
    Some(UnpackedRecord { record, served })
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

impl Addressed for LiveKey {
    fn address(&self) -> SocketAddr {
        canonical(self.endpoint)
    }
}

impl Addressed for PeerEndpoint {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// One spelling for one address: IPv4 may come as IPv6 (`::ffff:10.0.0.1`).
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
