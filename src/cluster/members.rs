//! Who is in the cluster, who of them lives, and what each serves: from everything known to one snapshot. Pure.
//!
//! Who lives is who has a live key, or a `peerserverleases` entry for an apiserver without a proxy. Leases and
//! StorageVersions name servers and prove nothing. What a server serves is what its record lists; without one, what its
//! discovery lists; while neither is known, what was known last and what StorageVersions say it serves. A proxy that was
//! refused its ID has only a claim to it: it serves nobody knows what.
//!
//! A known record or discovery is whole, so StorageVersions add nothing to it: they only prove presence, and not for
//! ever. A server that comes back under its ID as another release leaves what it no longer serves in them; believed
//! beside its discovery, that would be asked of it again and again instead of being nobody's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::codec::{PeerEndpoint, stored_resource};
use super::keys::claimant;
use super::listed::At;
use super::record::Live;
use super::state::{Known, State, canonical};
use crate::local::discovery::LocalView;
use crate::routing::table::{Gvr, ServedSet, Server, Snapshot};

impl State {
    /// What requests read. `own`: our server ID, once it is found.
    pub fn compile(&self, own: Option<&str>, view: &LocalView) -> Snapshot {
        let ids = self.ids();
        let others = ids
            .into_iter()
            .filter(|id| Some(*id) != own || self.is_elsewhere(id));
        let servers = others.filter_map(|id| self.server(id)).collect();
        let mut snapshot = Snapshot::new(
            self.synced(),
            servers,
            view.served.as_deref(),
            self.custom().clone(),
        );
        snapshot.peer_unknown |= self.is_somebody_silent();
        snapshot.local_version = view.versions.as_ref().and_then(|it| it.compatibility);
        snapshot
    }

    /// Whether a proxy lives that tells nothing of what it serves, because another one has its ID. One at the address of
    /// a live key tells it there.
    fn is_somebody_silent(&self) -> bool {
        let tells = |address: SocketAddr| {
            address == self.own_endpoint
                || self
                    .live_keys()
                    .any(|(_, at)| canonical(at.value.endpoint) == address)
        };
        // A claim that cannot be read is somebody's.
        self.claims()
            .any(|key| claimant(key).is_none_or(|address| !tells(canonical(address))))
    }

    /// Living apiservers without a proxy, to be asked for their discovery.
    pub fn native_peers(&self, own: Option<&str>) -> BTreeMap<String, SocketAddr> {
        let entries = self.entries();
        entries
            .filter(|(id, at)| Some(id.as_str()) != own && self.is_native(id, at))
            .map(|(id, at)| (id.clone(), at.value.address))
            .collect()
    }

    /// Whether somebody has this ID whose address is not ours: with our own ID it is another server all the same.
    fn is_elsewhere(&self, id: &str) -> bool {
        let live = self.live_key(id).map(|at| at.value.endpoint);
        let record = self.servers.current.get(id);
        let endpoint = live.or(record.map(|at| at.value.record.endpoint));
        endpoint.is_some_and(|endpoint| canonical(endpoint) != self.own_endpoint)
    }

    /// Every server that may be one of the cluster.
    pub(super) fn ids(&self) -> BTreeSet<&str> {
        let known = self.servers.current.keys();
        let live = self.live_keys().map(|(id, _)| id);
        let entries = self.entries().map(|(id, _)| id);
        let ids = known.chain(live).chain(entries).chain(self.natives.keys());
        ids.map(String::as_str).collect()
    }

    fn live_keys(&self) -> impl Iterator<Item = (&String, &At<Live>)> {
        self.live.current.iter().chain(self.vanished_live.iter())
    }

    fn entries(&self) -> impl Iterator<Item = (&String, &At<PeerEndpoint>)> {
        self.endpoints
            .current
            .iter()
            .chain(self.vanished_endpoints.iter())
    }

    pub(super) fn live_key(&self, id: &str) -> Option<&At<Live>> {
        let vanished = || self.vanished_live.get(id);
        self.live.current.get(id).or_else(vanished)
    }

    pub(super) fn entry(&self, id: &str) -> Option<&At<PeerEndpoint>> {
        let vanished = || self.vanished_endpoints.get(id);
        self.endpoints.current.get(id).or_else(vanished)
    }

    /// Proxies write such entries too, and an apiserver behind a proxy has one at the proxy's address.
    fn is_native(&self, id: &str, entry: &At<PeerEndpoint>) -> bool {
        let address = entry.value.address;
        let proxied = |live: &At<Live>| canonical(live.value.endpoint) == address;
        !self.servers.current.contains_key(id)
            && self.live_key(id).is_none()
            && address != self.own_endpoint
            && !self.live_keys().any(|(_, live)| proxied(live))
    }

    fn server(&self, id: &str) -> Option<Server> {
        let record = self.servers.current.get(id);
        match self.live_key(id) {
            None if record.is_none() => self.native(id),
            live => self.proxied(id, record, live),
        }
    }

    fn proxied(
        &self,
        id: &str,
        record: Option<&At<Known>>,
        live: Option<&At<Live>>,
    ) -> Option<Server> {
        let endpoint = live
            .map(|live| live.value.endpoint)
            .or(record.map(|record| record.value.record.endpoint))?;
        let endpoint = canonical(endpoint);
        if live.is_none() && self.is_replaced(endpoint, record?.revision) {
            return None;
        }
        let newest = live.is_some_and(|live| !self.has_newer_live(live));
        let initialized = live.is_some_and(|live| live.value.initialized);
        let known = is_known(live, record);
        let served = record.map(|record| record.value.served.clone());
        let served = match live {
            Some(_) if !known => self.with_storage_versions(id, served),
            _ => served,
        };
        Some(Server {
            id: id.into(),
            endpoint,
            native: false,
            live: live.is_some(),
            initialized,
            target: initialized && newest && endpoint != self.own_endpoint,
            binary_version: record.and_then(|record| record.value.record.binary_version.clone()),
            version: record.and_then(|record| record.value.record.version()),
            history_start: record
                .filter(|_| known)
                .and_then(|record| record.value.record.history_start),
            known,
            served,
        })
    }

    fn native(&self, id: &str) -> Option<Server> {
        let entry = self.entry(id).filter(|entry| self.is_native(id, entry));
        let read = self.natives.get(id).map(|(native, _)| native);
        let address = match (entry, read) {
            (Some(entry), _) => entry.value.address,
            // It is gone: somebody else at its address replaces it.
            (None, Some(read)) if !self.is_taken(read.address) => read.address,
            _ => return None,
        };
        let read_here = read.filter(|read| read.address == address);
        let newest = entry.is_some_and(|entry| !self.has_newer_entry(entry));
        let known = entry.is_some() && read_here.is_some();
        let served = read.map(|read| read.served.clone());
        let served = match entry {
            Some(_) if !known => self.with_storage_versions(id, served),
            _ => served,
        };
        Some(Server {
            id: id.into(),
            endpoint: address,
            native: true,
            live: entry.is_some(),
            initialized: entry.is_some(),
            target: newest,
            binary_version: read.map(|read| read.binary_version.clone()),
            version: read.and_then(|read| read.version),
            history_start: None,
            known,
            served,
        })
    }

    /// `served`, and what StorageVersions say that `id` serves.
    fn with_storage_versions(
        &self,
        id: &str,
        served: Option<Arc<ServedSet>>,
    ) -> Option<Arc<ServedSet>> {
        let named = self.stored_by(id);
        if named.is_empty() {
            return served;
        }
        let mut all = served.map_or_else(ServedSet::new, |served| ServedSet::clone(&served));
        all.extend(named);
        Some(Arc::new(all))
    }

    /// What StorageVersions say that `id` serves: Kubernetes 1.28 and later, and not subresources.
    pub(super) fn stored_by(&self, id: &str) -> ServedSet {
        let mut served = ServedSet::new();
        for (name, at) in &self.storage.current {
            let Some((group, resource)) = stored_resource(name) else {
                continue;
            };
            let of = at.value.iter().filter(|versions| versions.server == id);
            for (_, version) in of.flat_map(|versions| &versions.served) {
                served.insert(Gvr {
                    group: group.to_owned(),
                    version: version.clone(),
                    resource: resource.to_owned(),
                    subresource: String::new(),
                });
            }
        }
        served
    }

    /// Whether a newer record has the same address: what was there before is gone for good.
    fn is_replaced(&self, endpoint: SocketAddr, revision: i64) -> bool {
        self.servers.current.values().any(|other| {
            canonical(other.value.record.endpoint) == endpoint && other.revision > revision
        })
    }

    fn is_taken(&self, address: SocketAddr) -> bool {
        let live = |(_, at): (_, &At<Live>)| canonical(at.value.endpoint) == address;
        let entry = |(_, at): (_, &At<PeerEndpoint>)| at.value.address == address;
        self.live_keys().any(live) || self.entries().any(entry)
    }

    fn has_newer_live(&self, live: &At<Live>) -> bool {
        let endpoint = canonical(live.value.endpoint);
        self.live_keys().any(|(_, other)| {
            canonical(other.value.endpoint) == endpoint && other.revision > live.revision
        })
    }

    fn has_newer_entry(&self, entry: &At<PeerEndpoint>) -> bool {
        self.entries().any(|(_, other)| {
            other.value.address == entry.value.address && other.revision > entry.revision
        })
    }
}

/// Whether the record is the one that the live key means, or a newer one: both come on different ways.
fn is_known<R>(live: Option<&At<Live>>, record: Option<&At<R>>) -> bool {
    let meant = live.and_then(|live| live.value.record_revision);
    meant
        .zip(record)
        .is_some_and(|(meant, record)| record.revision >= meant)
}

#[cfg(test)]
mod tests;
