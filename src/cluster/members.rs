//! Compiles the cluster's state into a snapshot: which servers exist, which are live, and what each serves. Pure.
//!
//! A server is live if it has a live key or, without a proxy, a `peerserverleases` entry. Leases and StorageVersions
//! name servers but do not prove that they are live. An apiserver with neither is live if it answers at the address that
//! its key below `masterleases/` names ([`super::bare`]). A server serves what its record lists; without a record, what its
//! discovery lists; while neither is known, the last known set and what StorageVersions list. A proxy that was refused
//! its ID has only a claim key: what it serves is unknown.
//!
//! A known record or discovery is complete, so StorageVersions add nothing to it. They can be outdated: a server that
//! returns under its ID as another release leaves resources in them that it no longer serves. If they were added to its
//! discovery, requests for such resources would go to it again and again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::absence::{self, Revisions};
use super::bare::MAX_ASKED;
use super::codec::{PeerEndpoint, stored_resource};
use super::keys::{Topic, claim, claimant};
use super::prefix::Versioned;
use super::record::canonical;
use super::state::ClusterState;
use super::unproxied::{Candidates, NativePeer, Unproxied};
use crate::kube::gvr::{Gvr, ServedSet};
use crate::local::discovery::LocalView;
use crate::local::reader::FormerRecord;
use crate::routing::table::{DiscoveryReads, Server, ServerKind, Snapshot};

/// The IDs that servers at other addresses than ours have: no Lease makes one of them ours, because API users can write
/// Leases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OthersIds {
    /// Of records and live keys, and the IDs that these live keys name for their apiservers.
    pub proxied: BTreeSet<String>,
    /// Of apiservers with the native feature that live or are remembered. Our own apiserver's may be one of them.
    pub native: BTreeSet<String>,
}

impl ClusterState {
    /// The snapshot for requests. `own`: our server ID, once it is known.
    pub fn compile(&self, own: Option<&str>, view: &LocalView) -> Snapshot {
        let here = own.filter(|id| !self.is_elsewhere(id));
        let others = self.ids().into_iter().filter(|id| Some(*id) != here);
        let servers = others.filter_map(|id| self.server(id));
        let mut servers: Vec<_> = servers.chain(self.bare_servers()).collect();
        servers.sort_by(|one, other| one.id.cmp(&other.id));
        let custom = self.custom().clone();
        let mut snapshot = Snapshot::new(self.synced(), servers, view.served.as_deref(), custom);
        // As the process before may have written it.
        let own_record = here.and_then(|id| self.servers.get(id));
        snapshot.own_record = own_record.map(|at| at.value.served.clone());
        snapshot.peer_unknown |= self.has_unpublished_server() || self.has_unknown_bare_server();
        snapshot.set_scopes(&view.scopes);
        snapshot.set_doubted(view.doubted.clone());
        snapshot.local_read = view.read.map(|begun| (view.epoch, begun));
        snapshot.reads = self.discovery_reads();
        snapshot.set_local_version(view.versions.as_ref().and_then(|it| it.compatibility));
        snapshot
    }

    /// When discovery of servers without a proxy was read.
    fn discovery_reads(&self) -> HashMap<SocketAddr, DiscoveryReads> {
        let natives = self.natives.values().map(|(native, _)| native);
        let bare = self.asked.values().filter_map(|it| it.read.as_ref());
        let reads = |native: &NativePeer| DiscoveryReads {
            first: Some(native.since),
            last: native.read,
        };
        let read = natives.chain(bare);
        read.map(|native| (native.address, reads(native))).collect()
    }

    /// Whether a live proxy does not publish what it serves, because another one has its ID. A proxy at the address of
    /// a live key publishes it there.
    fn has_unpublished_server(&self) -> bool {
        let publishes = |address| address == self.own_endpoint || self.live.has_address(address);
        // A claim that cannot be parsed counts as one.
        let mut claims = self.claims.iter();
        claims.any(|(key, _)| claimant(key).is_none_or(|at| !publishes(canonical(at))))
    }

    /// The servers without a proxy that are to be asked.
    pub fn candidates(&self, own: Option<&str>) -> Candidates {
        let entries = self.endpoints.iter();
        let natives = entries.filter(|(id, at)| Some(&***id) != own && self.is_native(id, at));
        let native = |(id, at): (&String, &Versioned<PeerEndpoint>)| Unproxied {
            id: Some(id.clone()),
            address: at.value.address,
            created: at.created,
        };
        let natives = natives.map(|entry| (native(entry), true));
        let bare = self.unexplained().into_iter().take(MAX_ASKED);
        let bare = bare.map(|address| {
            let server = Unproxied {
                id: None,
                address,
                created: self.created(address.ip()).unwrap_or_default(),
            };
            (server, self.servers.has_address(address))
        });
        natives.chain(bare).collect()
    }

    /// Whether a server at another address than ours has this ID. With our own ID it is still another server.
    fn is_elsewhere(&self, id: &str) -> bool {
        let live = self.live.get(id).map(|at| at.value.endpoint);
        let record = self.servers.get(id).map(|at| at.value.record.endpoint);
        live.or(record).is_some_and(|at| at != self.own_endpoint)
    }

    /// Every server that may be one of the cluster.
    fn ids(&self) -> BTreeSet<&str> {
        let known = self.servers.iter().map(|(id, _)| id);
        let live = self.live.iter().map(|(id, _)| id);
        let entries = self.endpoints.iter().map(|(id, _)| id);
        let ids = known.chain(live).chain(entries).chain(self.natives.keys());
        ids.map(String::as_str).collect()
    }

    /// Proxies write such entries too, and an apiserver behind a proxy has one at the proxy's address, or at another one.
    fn is_native(&self, id: &str, entry: &Versioned<PeerEndpoint>) -> bool {
        let address = entry.value.address;
        !self.has_newest_record(id)
            && self.live.get(id).is_none()
            && address != self.own_endpoint
            && !self.live.has_address(address)
            && !self.is_behind_proxy(id, address)
    }

    /// Whether a proxy with another ID names this as its apiserver's; or has named it, and what is at this address is found
    /// without the entry.
    fn is_behind_proxy(&self, id: &str, address: SocketAddr) -> bool {
        let named = |of: Option<&String>| of.is_some_and(|of| of == id);
        let mut lives = self.live.iter();
        let mut records = self.servers.iter();
        let has_named = records.any(|(_, at)| {
            named(at.value.record.api_server_id.as_ref()) && self.servers.is_newest(at)
        });
        lives.any(|(_, at)| named(at.value.api_server_id.as_ref()))
            || has_named && self.advertised().contains(&address)
    }

    fn server(&self, id: &str) -> Option<Server> {
        let (live, record) = (self.live.get(id), self.servers.get(id));
        if live.is_none() && !self.has_newest_record(id) {
            return self.native(id);
        }
        let endpoint = live
            .map(|live| live.value.endpoint)
            .or(record.map(|record| record.value.record.endpoint))?;
        if live.is_none() && self.reads(endpoint.ip()) {
            return None;
        }
        let newest = live.is_some_and(|live| self.live.is_newest(live));
        let initialized = live.is_some_and(|live| live.value.initialized);
        // The two keys have separate watches: the record must be at least as new as the live key requires.
        let meant = live.and_then(|live| live.value.record_revision);
        let known = meant.zip(record);
        // What came back with a restored etcd tells of what was, until its proxy has written again.
        let is_written =
            |record: i64| record.max(live.map_or(0, |live| live.revision)) > self.restored_through;
        let known = known
            .is_some_and(|(meant, record)| record.revision >= meant && is_written(record.revision));
        let served = record.map(|record| record.value.served.clone());
        let unknown = live.filter(|_| !known);
        let unknown = unknown.map(|live| live.value.api_server_id.as_deref().unwrap_or(id));
        let served = self.with_storage_versions(unknown, served);
        let target = initialized && newest && endpoint != self.own_endpoint;
        // It began before etcd's present history, as it says, or as a record that was restored with etcd.
        let history_void = record.is_some_and(|record| {
            record.value.record.history_void || record.revision <= self.restored_through
        });
        let drains = live.is_none() && !history_void;
        let draining = self.draining_since(id, endpoint).filter(|_| drains);
        let start = record.and_then(|record| record.value.record.history_start);
        Some(Server {
            id: id.into(),
            endpoint,
            kind: ServerKind::Proxied,
            live: live.is_some(),
            initialized,
            target,
            ready: target && live.is_some_and(|live| live.value.ready),
            binary_version: record.and_then(|record| record.value.record.binary_version.clone()),
            version: record.and_then(|record| record.value.record.version()),
            history_start: start.filter(|_| known && !history_void).or(draining),
            history_void,
            draining: draining.is_some(),
            known,
            served,
        })
    }

    /// Where the history begins of a server that drains at this address.
    fn draining_since(&self, id: &str, endpoint: SocketAddr) -> Option<i64> {
        let key = self.draining.get(id)?;
        // Written before etcd was restored, it says nothing of the present history.
        let counts = key.value.endpoint == endpoint && key.revision > self.restored_through;
        let is_anothers = endpoint == self.own_endpoint || self.is_explained(endpoint);
        (counts && !is_anothers).then_some(key.value.history_start)
    }

    fn native(&self, id: &str) -> Option<Server> {
        let entry = self
            .endpoints
            .get(id)
            .filter(|entry| self.is_native(id, entry));
        let read = self.natives.get(id).map(|(native, _)| native);
        let address = match (entry, read) {
            (Some(entry), _) => entry.value.address,
            // It is absent: somebody else at its address replaces it, or a proxy is beside it.
            (None, Some(read))
                if !self.is_replaced(read.address) && !self.is_behind_proxy(id, read.address) =>
            {
                read.address
            }
            _ => return None,
        };
        let newest = entry.is_some_and(|entry| self.endpoints.is_newest(entry));
        let is_its = |entry: &Versioned<PeerEndpoint>, read: &NativePeer| {
            read.address == address && read.created == entry.created
        };
        let known = entry
            .zip(read)
            .is_some_and(|(entry, read)| is_its(entry, read));
        let served = read.map(|read| read.served.clone());
        let served = self.with_storage_versions(entry.filter(|_| !known).map(|_| id), served);
        Some(Server {
            live: entry.is_some(),
            initialized: entry.is_some(),
            target: newest,
            ready: newest,
            known,
            served,
            ..NativePeer::server(read, id, ServerKind::Native, address)
        })
    }

    /// `served` and the resources that StorageVersions list for a live apiserver of which it is not known whether it still
    /// serves just that: since Kubernetes 1.28, without subresources. Those of a CRD's name are left out: nobody says whether
    /// the server serves them itself. `unknown`: the ID by which StorageVersions name this apiserver.
    fn with_storage_versions(
        &self,
        unknown: Option<&str>,
        served: Option<Arc<ServedSet>>,
    ) -> Option<Arc<ServedSet>> {
        let Some(id) = unknown else { return served };
        let is_known = |gvr: &Gvr| served.as_ref().is_some_and(|served| served.contains(gvr));
        let mut more = ServedSet::new();
        for (name, at) in self.storage.iter() {
            let Some((group, resource)) = stored_resource(name) else {
                continue;
            };
            let of = at.value.iter().filter(|versions| versions.server == id);
            for version in of.flat_map(|versions| &versions.served) {
                let gvr = Gvr::new(group, version, resource, "");
                if !is_known(&gvr) && !self.custom().contains(gvr.borrow()) {
                    more.insert(gvr);
                }
            }
        }
        // Mostly there is nothing to add, and the set stays shared.
        if more.is_empty() {
            return served;
        }
        more.extend(served.iter().flat_map(|served| served.iter()).cloned());
        Some(Arc::new(more))
    }

    /// What the newest record of our address says, whatever its ID: this server may not know its own yet.
    pub fn former_record(&self) -> Option<FormerRecord> {
        let records = self.servers.iter().map(|(_, at)| at);
        let own = records.filter(|at| at.value.record.endpoint == self.own_endpoint);
        let newest = own.max_by_key(|at| at.revision)?;
        Some(FormerRecord {
            binary_version: newest.value.record.binary_version.clone(),
            served: newest.value.served.clone(),
            history_void: newest.value.record.history_void,
        })
    }

    /// The revisions of the keys of the server `own`, as the watches show them; 0: absent. What is followed does not say it:
    /// of a large value it is known only later that it was the last of its revision.
    pub fn own_keys(&self, own: Option<&str>) -> Revisions {
        let record = own.and_then(|id| self.servers.get(id));
        let live = own.and_then(|id| self.live.listed(id));
        let claim = self.claims.listed(&claim(own, self.own_endpoint));
        absence::revisions(&[
            (Topic::Servers, record.map_or(0, |at| at.revision)),
            (Topic::Live, live.map_or(0, |at| at.revision)),
            (Topic::Claims, claim.map_or(0, |at| at.revision)),
        ])
    }

    /// Those of all servers that are not at our address; `None` until etcd was read.
    pub fn others_ids(&self) -> Option<OthersIds> {
        let is_elsewhere = |address: SocketAddr| address != self.own_endpoint;
        let records = self.servers.iter();
        let records = records.filter(|(_, at)| is_elsewhere(at.value.record.endpoint));
        let lives = self.live.iter();
        let lives = lives.filter(|(_, at)| is_elsewhere(at.value.endpoint));
        let lives = lives.flat_map(|(id, at)| [Some(id), at.value.api_server_id.as_ref()]);
        let proxied = records.map(|(id, _)| id).chain(lives.flatten());
        let entries = self.endpoints.iter().map(|(id, at)| (id, at.value.address));
        let natives = self.natives.iter();
        let natives = entries.chain(natives.map(|(id, (native, _))| (id, native.address)));
        let natives = natives.filter(|(_, address)| is_elsewhere(*address));
        self.synced().then(|| OthersIds {
            proxied: proxied.cloned().collect(),
            native: natives.map(|(id, _)| id.clone()).collect(),
        })
    }

    /// Whether there is a record of this ID, and none that is newer has its address: then the former server is gone for
    /// good.
    fn has_newest_record(&self, id: &str) -> bool {
        let record = self.servers.get(id);
        record.is_some_and(|at| self.servers.is_newest(at))
    }

    /// Whether a live proxy, its apiserver or a native peer has this address. The entry of an apiserver whose proxy is gone
    /// explains nothing.
    pub(super) fn is_explained(&self, address: SocketAddr) -> bool {
        let mut entries = self.endpoints.iter();
        self.live.has_address(address)
            || entries.any(|(id, at)| {
                at.value.address == address
                    && (self.live.get(id).is_some() || self.is_native(id, at))
            })
    }

    /// Whether a server is known to be where an absent one was.
    fn is_replaced(&self, address: SocketAddr) -> bool {
        self.is_explained(address) || self.reads(address.ip())
    }
}

#[cfg(test)]
mod tests;
