//! The report of the whole state for operators: each fact with its source, revision and age. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::bare::MAX_ASKED;
use super::freshness::Freshness;
use super::keys::{Topic, claimant, claims_an_id};
use super::leases::NamedLease;
use super::native_peer::NativePeer;
use super::prefix::Versioned;
use super::state::ClusterState;

/// Most advertised addresses that are named, and most servers that only StorageVersions name: each is looked for in all of
/// them.
const NAMED: usize = 100;

impl ClusterState {
    /// All identity leases; `None` until they were listed.
    pub fn named_leases(&self) -> Option<Vec<Arc<NamedLease>>> {
        let leases = &self.leases;
        leases
            .are_complete()
            .then(|| leases.iter().cloned().collect())
    }

    /// The report, as JSON.
    pub fn report(&self, freshness: &Freshness) -> Value {
        let topics = Topic::all(self.leases.namespaces());
        let topics = topics.zip(&self.positions).map(|(topic, position)| {
            json!({
                "topic": topic.name(),
                "revision": position.revision,
                "lists": position.lists,
                "ageSeconds": freshness.age_of(topic.index()).as_secs_f64(),
            })
        });
        // Proxies that have no server ID yet.
        let unnamed = self.claims().filter(|key| !claims_an_id(key));
        json!({
            "topics": topics.collect::<Vec<_>>(),
            "advertised": self.advertised(),
            "notFollowed": self.not_followed(),
            "claims": self.claims().filter(|key| claims_an_id(key)).collect::<Vec<_>>(),
            "unnamed": unnamed.filter_map(|key| claimant(key)).collect::<Vec<_>>(),
            "undecodable": self.undecodables.list(),
            "servers": self.named().iter().map(|id| self.facts(id)).collect::<Vec<_>>(),
        })
    }

    /// Topics that etcd's role does not permit to read.
    fn not_followed(&self) -> Vec<&'static str> {
        self.forbidden.iter().map(|topic| topic.name()).collect()
    }

    /// The addresses that living apiservers advertise, and what those answered that no proxy explains.
    fn advertised(&self) -> Value {
        let unexplained = self.unexplained();
        let state = |ip: IpAddr| {
            let found = unexplained.iter().position(|address| address.ip() == ip);
            let (place, address) = found.map(|place| (place, unexplained[place]))?;
            Some(match self.bare.asked_of(address) {
                Some(asked) => asked.name(),
                None if place < MAX_ASKED => "not asked yet",
                None => "not asked, there are too many",
            })
        };
        let leases = self.bare.leases().take(NAMED);
        let advertised = leases.map(|(_, at)| {
            let ip = at.value;
            fact(
                at,
                json!({"address": ip.to_string(), "withoutProxy": state(ip)}),
            )
        });
        advertised.collect()
    }

    /// Every server that any key names.
    fn named(&self) -> BTreeSet<String> {
        let leases = self.leases.iter().map(|lease| lease.name.as_str());
        let stored = self.storage.current.values().flat_map(|at| &at.value);
        let mut ids = self.ids();
        ids.extend(leases);
        let most = ids.len() + NAMED;
        for versions in stored {
            if ids.len() < most {
                ids.insert(&versions.server);
            }
        }
        // What has the ID of an apiserver is told with its proxy.
        let proxied = self
            .servers
            .current
            .keys()
            .chain(self.live.listed.current.keys());
        let apart: BTreeSet<_> = proxied
            .map(|id| self.apiserver_id(id))
            .filter(|id| !self.servers.current.contains_key(*id) && self.live.get(id).is_none())
            .collect();
        ids.retain(|id| !apart.contains(id));
        let bare = self.bare_servers();
        ids.extend(bare.iter().map(|server| &*server.id));
        ids.into_iter().map(str::to_owned).collect()
    }

    fn facts(&self, id: &str) -> Value {
        let record = self.servers.current.get(id).map(|at| {
            let record = &at.value.record;
            fact(
                at,
                json!({
                    "endpoint": record.endpoint,
                    "binaryVersion": record.binary_version,
                    "compatibilityVersion": record.compatibility_version,
                    "resources": at.value.served.len(),
                }),
            )
        });
        let live = self.live.get(id).map(|at| {
            fact(
                at,
                json!({
                    "endpoint": at.value.endpoint,
                    "initialized": at.value.initialized,
                    "recordRevision": at.value.record_revision,
                    "vanished": self.live.is_suspended(id),
                }),
            )
        });
        let apiserver = self.apiserver_id(id);
        let entry = self.endpoints.get(apiserver).map(|at| {
            fact(
                at,
                json!({
                    "endpoint": at.value.address,
                    "vanished": self.endpoints.is_suspended(apiserver),
                }),
            )
        });
        let native = self.natives.get(id).map(|(native, _)| native);
        let discovery = native.or_else(|| self.bare_discovery(id)).map(|native| {
            json!({
                "endpoint": native.address,
                "binaryVersion": native.binary_version,
                "compatibilityVersion": native.version.map(|version| version.to_string()),
                "resources": native.served.len(),
                "ageSeconds": age(native.read),
            })
        });
        json!({
            "id": id,
            "apiserverId": apiserver,
            "record": record,
            "live": live,
            "peerServerLease": entry,
            "discovery": discovery,
            "lease": self.lease_facts(apiserver),
            "storageVersions": self.stored_facts(apiserver),
        })
    }

    /// The identity Lease of an apiserver.
    fn lease_facts(&self, id: &str) -> Option<Value> {
        let at = &self.leases.get(id)?.at;
        let value = json!({
            "holder": at.value.holder,
            "hostname": at.value.hostname,
            "publishedByProxy": at.value.published,
        });
        Some(fact(at, value))
    }

    fn bare_discovery(&self, id: &str) -> Option<&NativePeer> {
        let address: SocketAddr = id.parse().ok()?;
        let mut asked = self.bare.asked();
        asked.find(|(known, _)| **known == address)?.1.read.as_ref()
    }

    /// How many resources StorageVersions list for a server, as of the newest one that names it.
    fn stored_facts(&self, id: &str) -> Value {
        let naming = self.storage.current.values();
        let naming = naming.filter(|at| at.value.iter().any(|versions| versions.server == id));
        let Some(newest) = naming.max_by_key(|at| at.revision) else {
            return Value::Null;
        };
        fact(newest, json!({ "resources": self.stored_by(id).len() }))
    }
}

/// A fact with its revision and the age of its event.
fn fact<T>(at: &Versioned<T>, mut value: Value) -> Value {
    value["revision"] = at.revision.into();
    value["ageSeconds"] = age(at.heard).into();
    value
}

fn age(heard: Instant) -> f64 {
    heard.elapsed().as_secs_f64()
}
