//! The state of the cluster, built from etcd's events. No I/O; the caller passes the time.
//!
//! Only [`super::catalog`] writes it. [`super::members`] compiles it to the snapshot that requests read,
//! [`super::report`] to the report for operators.

use std::collections::BTreeMap;
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
use super::undecodable::Undecodables;
use super::watch::{Event, Message};
use crate::cluster::suspended::{Gap, Suspended};
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
    pub(super) live: PrefixState<LiveKey>,
    pub(super) suspended_live: Suspended<LiveKey>,
    pub(super) endpoints: PrefixState<PeerEndpoint>,
    pub(super) suspended_endpoints: Suspended<PeerEndpoint>,
    pub(super) storage: PrefixState<Vec<ServerVersions>>,
    pub(super) claims: PrefixState<()>,
    suspended_claims: Suspended<()>,
    /// What each serves; `None` if its value cannot be decoded.
    definitions: PrefixState<Option<Arc<[Box<str>]>>>,
    /// Whether the APIService has a `spec.service`.
    api_services: PrefixState<bool>,
    pub(super) leases: Leases,
    pub(super) natives: BTreeMap<String, (NativePeer, Instant)>,
    pub(super) bare: BareServers,
    header_names: PrefixState<PublishedNames>,
    /// etcd's role does not permit to read them.
    pub(super) header_names_forbidden: bool,
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
            live: PrefixState::default(),
            suspended_live: Suspended::new(ttl),
            endpoints: PrefixState::default(),
            suspended_endpoints: Suspended::new(ttl),
            storage: PrefixState::default(),
            claims: PrefixState::default(),
            suspended_claims: Suspended::new(ttl),
            definitions: PrefixState::default(),
            api_services: PrefixState::default(),
            leases: Leases::new(namespaces),
            natives: BTreeMap::new(),
            bare: BareServers::new(canonical(own_endpoint), ttl, grace),
            header_names: PrefixState::default(),
            header_names_forbidden: false,
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
        if let Some(position) = self.positions.get_mut(topic.index()) {
            match event {
                Event::Progress(revision) => position.revision = revision.max(position.revision),
                Event::InitDone(revision) => {
                    // Lower than before, if etcd was restored from a backup.
                    position.revision = revision;
                    position.lists += 1;
                }
                // Nothing of the new history is known yet.
                Event::OtherHistory => position.revision = 0,
                _ => {}
            }
        }
        match &event {
            Event::OtherHistory if topic == Topic::Servers => {
                (self.restored, self.restored_through) = (true, i64::MAX);
                self.gap.forgot(now);
            }
            Event::InitDone(revision) if topic == Topic::Servers && self.restored => {
                (self.restored, self.restored_through) = (false, *revision);
            }
            Event::Init => self.undecodables.restart(topic),
            Event::Delete(key) => self.undecodables.remove(topic, key),
            Event::OtherHistory => self.gap.forgot(now),
            _ => {}
        }
        if topic == Topic::Live {
            self.gap.heard(now);
        }
        let mut changes = StateChanges::default();
        let mut decoder = Decoder {
            topic,
            undecodables: &mut self.undecodables,
            new: &mut changes.undecodable,
        };
        changes.snapshot = match topic {
            Topic::Servers => {
                let decode = |item: &EtcdItem| {
                    let record: Record = decoder.decode(item, json::read)?;
                    let served = Arc::new(unpack(&record.resources));
                    let served = shared(served, &mut self.sets);
                    Some(UnpackedRecord { record, served })
                };
                // A live key may have named the revision before it came; and of another history all are void.
                let written = matches!(
                    event,
                    Event::Apply(_) | Event::InitDone(_) | Event::OtherHistory
                );
                self.servers.take(event, now, decode).changed || written
            }
            Topic::Live => {
                let decode = |item: &EtcdItem| decoder.decode(item, json::read);
                let effect = self.live.take(event, now, decode);
                let current = &self.live.current;
                let changed = self.suspended_live.take(effect, current, &self.gap, now);
                changed || has_twins(self.live_keys().map(|(_, at)| at.value.endpoint))
            }
            Topic::PeerEndpoints => {
                let decode = |item: &EtcdItem| decoder.decode(item, codec::endpoints);
                let effect = self.endpoints.take(event, now, decode);
                let current = &self.endpoints.current;
                let suspended = &mut self.suspended_endpoints;
                let changed = suspended.take(effect, current, &self.gap, now);
                changed || has_twins(self.entries().map(|(_, at)| at.value.address))
            }
            Topic::StorageVersions => {
                let decode = |item: &EtcdItem| decoder.decode(item, codec::storage_version);
                self.storage.take(event, now, decode).changed
            }
            Topic::Definitions => {
                // Its name is in its key. What it served before says nothing of what it serves now.
                let decode = |item: &EtcdItem| Some(decoder.decode(item, codec::served_versions));
                let changed = self.definitions.take(event, now, decode).changed;
                self.custom_outdated |= changed;
                changed
            }
            Topic::ApiServices => {
                let decode = |item: &EtcdItem| decoder.decode(item, codec::is_aggregated);
                let changed = self.api_services.take(event, now, decode).changed;
                self.custom_outdated |= changed;
                changed
            }
            Topic::Claims => {
                // The key has all information.
                let effect = self.claims.take(event, now, |_| Some(()));
                let current = &self.claims.current;
                self.suspended_claims.take(effect, current, &self.gap, now)
            }
            Topic::MasterLeases => {
                let loopback = self.own_endpoint.ip().is_loopback();
                let decode = |item: &EtcdItem| decoder.master_lease(item, loopback);
                self.bare.take_lease(event, now, &self.gap, decode)
            }
            Topic::HeaderNames => {
                match event {
                    Event::Forbidden => self.header_names_forbidden = true,
                    Event::InitDone(_) => self.header_names_forbidden = false,
                    _ => {}
                }
                let decode = |item: &EtcdItem| decoder.decode(item, codec::header_names);
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
        changes
    }

    /// The header names by which apiservers recognise users; `None` while there are none in etcd.
    pub fn header_names(&self) -> Option<Arc<PublishedNames>> {
        let names = self.header_names.current.values().next();
        names.map(|at| Arc::new(at.value.clone()))
    }

    /// Everything that routes depend on was listed at least once.
    pub fn synced(&self) -> bool {
        self.servers.complete
            && self.live.complete
            && self.endpoints.complete
            && self.storage.complete
            && self.claims.complete
            && self.definitions.complete
            && self.api_services.complete
            && self.bare.is_complete()
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
        let suspended = self.suspended_claims.iter().map(|(key, _)| key);
        self.claims.current.keys().chain(suspended)
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

    /// A native server's discovery was read.
    pub fn native_read(&mut self, id: String, mut native: NativePeer, now: Instant) {
        native.served = shared(native.served, &mut self.sets);
        let native = native.after(self.natives.get(&id).map(|(before, _)| before));
        self.natives.insert(id, (native, now + self.grace));
    }

    /// A candidate for a bare server answered. Returns whether readers see a change.
    pub fn bare_answered(&mut self, from: SocketAddr, answer: BareAnswer, now: Instant) -> bool {
        let answer = match answer {
            BareAnswer::Read(mut native) => {
                native.served = shared(native.served, &mut self.sets);
                BareAnswer::Read(native)
            }
            other => other,
        };
        self.bare.answered(from, answer, now)
    }

    /// A connection to `address` was refused. Returns whether readers see a change.
    pub fn refused(&mut self, address: SocketAddr) -> bool {
        let live = self
            .suspended_live
            .refused(address, |live| canonical(live.endpoint));
        let native = self
            .suspended_endpoints
            .refused(address, |endpoint| endpoint.address);
        let bare = self.bare.refused(address);
        live || native || bare
    }

    /// When the next entry expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let natives = self.natives.values().map(|(_, until)| *until);
        natives
            .chain(self.suspended_live.next())
            .chain(self.suspended_endpoints.next())
            .chain(self.suspended_claims.next())
            .chain(self.bare.next_expiry())
            .min()
    }

    /// Removes expired entries. Returns whether readers see a change.
    pub fn expire(&mut self, now: Instant) -> bool {
        for (id, (_, until)) in &mut self.natives {
            if self.endpoints.current.contains_key(id) {
                *until = now + self.grace;
            }
        }
        let natives = self.natives.len();
        self.natives.retain(|_, (_, until)| *until > now);
        let live = self.suspended_live.expire(now);
        let claims = self.suspended_claims.expire(now);
        let bare = self.expire_bare(now);
        let endpoints = self.suspended_endpoints.expire(now);
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

/// Whether two keys have one address. Then the newer one counts, and a renewal, which changes no value, can change which
/// one that is.
fn has_twins(addresses: impl Iterator<Item = SocketAddr>) -> bool {
    let mut addresses: Vec<_> = addresses.map(canonical).collect();
    addresses.sort_unstable();
    addresses.windows(2).any(|pair| pair[0] == pair[1])
}

/// One spelling for one address: IPv4 may come as IPv6 (`::ffff:10.0.0.1`).
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
