//! What the status page says: everything that is known, as JSON. Read for each answer, written nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::certificates::rfc3339;
use super::lease::LeaseOwner;
use super::metrics::Gauges;
use super::recent::unix;
use crate::discovery::gathered::Source;
use crate::relay::health::Health;
use crate::relay::shared::{Phase, Shared};
use crate::routing::table::{Custom, Gvr, Holders, Pair, Server, Snapshot, api_version};

/// Reads from what the serving threads share.
pub struct Status {
    shared: Arc<Shared>,
}

/// One named condition of readiness.
pub struct Check {
    /// As in `/readyz?verbose`.
    pub name: &'static str,
    /// What is missing, if anything.
    pub missing: Option<String>,
}

impl Status {
    /// Of this proxy.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// All conditions of readiness.
    pub fn checks(&self) -> [Check; 6] {
        let shared = &self.shared;
        let snapshot = shared.published.snapshot.load();
        let check = |name, ok: bool, missing: &str| Check {
            name,
            missing: (!ok).then(|| missing.to_owned()),
        };
        [
            check(
                "etcd-synced",
                snapshot.synced,
                "the state in etcd was never read completely since start",
            ),
            check(
                "apiserver-initialized",
                shared.local.is_initialized(),
                "/readyz was not 200 since the apiserver started",
            ),
            check(
                "apiserver-ready",
                shared.local.is_ready(),
                "the last /readyz of the apiserver was not 200",
            ),
            Check {
                name: "requestheader",
                missing: shared.local.doubts_about_us(),
            },
            check(
                "discovery-read",
                snapshot.local_known,
                "what the apiserver serves is not known",
            ),
            check(
                "serving",
                *shared.phase.borrow() == Phase::Serving,
                "stopping",
            ),
        ]
    }

    /// What metrics are to say of this moment.
    pub fn gauges(&self) -> Gauges {
        use std::sync::atomic::Ordering::Relaxed;
        let published = &self.shared.published;
        let snapshot = published.snapshot.load();
        let count = |wanted: fn(&Server) -> bool| {
            snapshot
                .servers
                .iter()
                .filter(|server| wanted(server))
                .count()
        };
        Gauges {
            etcd_age: published.freshness.age(),
            etcd_revision: published.told.revision.load(Relaxed),
            etcd_lists: published.told.lists.load(Relaxed),
            etcd_undecodable: published.told.undecodable.load(Relaxed),
            etcd_restores: published.told.restores.load(Relaxed),
            etcd_synced: snapshot.synced,
            targets: snapshot.targets.len(),
            live: count(|server| server.live && !server.target),
            absent: count(|server| !server.live),
            initialized: self.shared.local.is_initialized(),
            crippled: self.shared.crippled.load(Relaxed),
        }
    }

    /// Every fact that is known, from the catalog itself.
    async fn facts(&self) -> Value {
        let (reply, facts) = oneshot::channel();
        let asked = self.shared.published.reports.send(reply).await;
        match asked {
            Ok(()) => facts.await.unwrap_or_default(),
            Err(_) => Value::Null,
        }
    }

    /// Everything.
    pub async fn json(&self) -> Value {
        let facts = self.facts().await;
        let shared = &self.shared;
        let snapshot = shared.published.snapshot.load();
        let gauges = self.gauges();
        let checks = self.checks();
        let missing: Vec<_> = checks
            .iter()
            .filter_map(|check| check.missing.as_ref())
            .collect();
        let local = shared.config.api_server.address;
        let name = |address| {
            let mut servers = snapshot.servers.iter();
            let at = servers.find(|server| server.endpoint == address);
            let own =
                || (address == local).then(|| shared.own.id.borrow().as_deref().map(str::to_owned));
            at.map(|server| server.id.to_string())
                .or_else(|| own().flatten())
        };
        json!({
            "time": rfc3339(unix(SystemTime::now())),
            "server": {
                "id": shared.own.id.borrow().as_deref(),
                "endpoint": shared.own.endpoint,
                "version": env!("CARGO_PKG_VERSION"),
                "compatibilityVersion": snapshot.local_version.map(|version| version.to_string()),
                "ready": missing.is_empty(),
                "missing": missing,
                "checks": checks.iter().map(|check| json!({"name": check.name, "missing": check.missing})).collect::<Vec<_>>(),
                "initialized": gauges.initialized,
                "discoveryKnown": snapshot.local_known,
                "historyStart": Some(shared.local.history_start()).filter(|start| *start != i64::MAX),
                "identityLeaseKeptBy": shared.metrics.lease.owner().map(LeaseOwner::name),
            },
            "etcd": {
                "synced": gauges.etcd_synced,
                "revision": gauges.etcd_revision,
                "ageSeconds": gauges.etcd_age.as_secs_f64(),
                "lists": gauges.etcd_lists,
                "undecodable": gauges.etcd_undecodable,
                "restores": gauges.etcd_restores,
            },
            "certificates": shared.metrics.certificates.status(),
            "facts": facts,
            "discovery": discovery(shared),
            "peers": snapshot.servers.iter().map(|server| peer(server, &shared.health)).collect::<Vec<_>>(),
            "resources": snapshot
                .resources()
                .into_iter()
                .map(|(gvr, holders)| resource(gvr, holders, &snapshot))
                .collect::<Vec<_>>(),
            "custom": custom(&snapshot.custom),
            "recent": {
                "rerouted": shared.recent.rerouted.status(name),
                "refused": shared.recent.refused.status(name),
            },
        })
    }
}

/// Resources that every apiserver serves, because objects in etcd define them: groups with the resources of CRDs, group
/// versions that an aggregated API is asked for.
fn custom(custom: &Custom) -> Value {
    let mut definitions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Pair(group, resource) in &custom.definitions {
        definitions.entry(group).or_default().insert(resource);
    }
    let aggregated = custom.aggregated.iter();
    let aggregated: BTreeSet<_> = aggregated
        .map(|Pair(group, version)| api_version(group, version))
        .collect();
    json!({"definitions": definitions, "aggregated": aggregated})
}

/// What others list and the local apiserver does not, and whose documents say so.
fn discovery(shared: &Shared) -> Value {
    let gathered = shared.gathering.load();
    let mut added = Vec::new();
    for group in &gathered.others.document.groups {
        added.extend(group.versions.iter().map(|version| {
            json!({
                "group": &*group.name,
                "version": &*version.name,
                "stale": version.stale,
                "resources": version.resources.iter().map(|resource| &*resource.name).collect::<Vec<_>>(),
            })
        }));
    }
    let sources = shared.gathering.sources();
    json!({
        "generation": gathered.generation,
        "current": gathered.is_of(&shared.local),
        "added": added,
        "openapiBytes": gathered.openapi.bytes(),
        "sources": sources.iter().map(source).collect::<Vec<_>>(),
    })
}

fn source(source: &Source) -> Value {
    let since = |at: SystemTime| at.elapsed().unwrap_or_default().as_secs_f64();
    json!({
        "servers": source.servers.iter().map(|id| &**id).collect::<Vec<_>>(),
        "binaryVersion": source.version,
        "state": source.state(),
        "groupVersions": source.group_versions,
        "undescribed": source.by_name,
        "readSecondsAgo": source.read.map(since),
        "error": source.error,
    })
}

fn peer(server: &Server, health: &Health) -> Value {
    json!({
        "id": &*server.id,
        "endpoint": server.endpoint,
        "native": server.native,
        "live": server.live,
        "initialized": server.initialized,
        "target": server.target,
        "unhealthy": health.is_suspect(server.endpoint),
        "known": server.known,
        "binaryVersion": server.binary_version,
        "compatibilityVersion": server.version.map(|version| version.to_string()),
        "historyStart": server.history_start,
        "resources": server.served.as_ref().map(|served| served.len()),
    })
}

fn resource(gvr: &Gvr, holders: &Holders, snapshot: &Snapshot) -> Value {
    let peers: Vec<_> = holders
        .targets
        .iter()
        .map(|index| &*snapshot.servers[*index].id)
        .collect();
    // Together with those before, all that list it; most often there are none.
    let absent = snapshot.servers.iter().filter(|server| {
        let served = server.served.as_ref();
        !server.target && served.is_some_and(|served| served.contains(gvr))
    });
    json!({
        "group": gvr.group,
        "version": gvr.version,
        "resource": gvr.resource,
        "subresource": gvr.subresource,
        "local": holders.local,
        "peers": peers,
        "absent": absent.map(|server| &*server.id).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_custom_is_told_by_group_and_what_is_aggregated_by_version() {
        let pair = |one: &str, other: &str| Pair(one.to_owned(), other.to_owned());
        let crds = [("example.com", "widgets"), ("example.com", "gadgets")];
        let known = Custom {
            definitions: crds.map(|(group, plural)| pair(group, plural)).into(),
            aggregated: [pair("metrics.k8s.io", "v1beta1")].into(),
        };
        assert_eq!(
            custom(&known),
            json!({
                "definitions": {"example.com": ["gadgets", "widgets"]},
                "aggregated": ["metrics.k8s.io/v1beta1"],
            })
        );
    }
}
