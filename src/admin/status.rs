//! Reads the state that the serving threads share: for `/statusz`, `/readyz` and the gauges. Read anew for each
//! response.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};

use super::document::{
    AddedGroupVersion, CertificatesStatus, CheckStatus, CustomStatus, DiscoveryStatus, EtcdStatus,
    PeerStatus, ResourceStatus, ServerStatus, StatusDocument, WatchesStatus, WindowStatus,
};
use super::pages::Pages;
use crate::config::DefaultVersion;
use crate::kube::discovery::model::versions;
use crate::kube::gvr::{Custom, Gvr, Pair, api_version};
use crate::relay::shared::Shared;
use crate::relay::upstream::health::Health;
use crate::routing::table::{Holders, Server, ServerKind, Snapshot};
use crate::tls::metrics::{CertificateMetrics, rfc3339};
use crate::watches::metrics::HandOverResult;

impl Pages {
    /// The proxy is ready while none of these fails.
    pub(super) fn checks(&self) -> [CheckStatus; 7] {
        let shared = &self.shared;
        let (local, snapshot) = (&shared.local, shared.published.snapshot.load());
        let unless = |ok: bool, why: &str| (!ok).then(|| why.to_owned());
        let unread = "the state in etcd was never read completely since start";
        let uninitialized = "/readyz was not 200 since the apiserver started";
        let unready = "the last /readyz of the apiserver was not 200";
        let unknown = "what the apiserver serves is not known";
        let trust_problems = local.trust_problems();
        let checks = [
            ("etcd-synced", unless(snapshot.synced, unread)),
            (
                "apiserver-initialized",
                unless(local.is_initialized(), uninitialized),
            ),
            ("apiserver-ready", unless(local.is_ready(), unready)),
            // Before it can be asked a check above fails, and nothing is known of this one.
            (
                "requestheader",
                trust_problems.filter(|_| local.can_be_asked()),
            ),
            ("discovery-read", unless(snapshot.local_known, unknown)),
            ("published", shared.announcement.missing()),
            ("serving", shared.shutdown.missing().map(str::to_owned)),
        ];
        checks.map(|(name, missing)| {
            let name = name.to_owned();
            CheckStatus { missing, name }
        })
    }

    /// What the catalog knows, server by server; null where its task has ended.
    async fn facts(&self) -> Value {
        let (reply, facts) = oneshot::channel();
        // Without its task the request is dropped, and nothing comes.
        let _ = self.shared.published.reports.send(reply).await;
        facts.await.unwrap_or_default()
    }

    /// Everything that `/statusz` shows.
    pub(super) async fn document(&self) -> StatusDocument {
        let facts = self.facts().await;
        let shared = &self.shared;
        let snapshot = shared.published.snapshot.load();
        let peers = snapshot.servers.iter();
        let resources = snapshot.resources().into_iter();
        let (etcd, watches) = (shared.published.etcd.load(), &shared.metrics.watches);
        StatusDocument {
            certificates: certificates(&self.certificates),
            config: self.reload.status(),
            custom: custom(&snapshot.custom),
            discovery: discovery(shared),
            etcd: EtcdStatus {
                age_seconds: etcd.heard.elapsed().as_secs_f64(),
                lists: etcd.lists,
                restores: etcd.restores,
                revision: etcd.revision,
                synced: snapshot.synced,
                undecodable: etcd.undecodable,
            },
            facts,
            peers: peers
                .map(|server| peer(server, &shared.servers.health))
                .collect(),
            resources: resources
                .map(|(gvr, holders)| resource(gvr, holders, &snapshot))
                .collect(),
            server: self.server(&snapshot),
            time: rfc3339(OffsetDateTime::now_utc().unix_timestamp()),
            watches: WatchesStatus {
                continued: watches.left_and(HandOverResult::Continued),
                ended: watches.left_and(HandOverResult::Ended),
                held: watches.held.get(),
                open: watches.count_open(),
            },
            window: self.window(&snapshot),
        }
    }

    fn window(&self, snapshot: &Snapshot) -> Option<WindowStatus> {
        snapshot.window?;
        let settings = self.shared.settings.load();
        let live = snapshot.servers.iter().filter(|server| server.live);
        let versions = live.filter_map(|server| server.version);
        let versions: BTreeSet<_> = versions.chain(snapshot.local_version).collect();
        let since = snapshot.window_began.map(OffsetDateTime::from);
        let policy = match settings.version_awareness {
            true => settings.default_version,
            false => DefaultVersion::Any,
        };
        let left = self.shared.metrics.class_left.iter();
        Some(WindowStatus {
            left: left.map(|it| it.get()).sum(),
            policy: format!("{policy:?}"),
            since: since.and_then(|since| rfc3339(since.unix_timestamp())),
            versions: versions.iter().map(ToString::to_string).collect(),
        })
    }

    fn server(&self, snapshot: &Snapshot) -> ServerStatus {
        let shared = &self.shared;
        let checks = self.checks();
        let missing: Vec<_> = checks
            .iter()
            .filter_map(|check| check.missing.clone())
            .collect();
        let text =
            |id: &watch::Receiver<Option<Arc<str>>>| id.borrow().as_deref().map(str::to_owned);
        ServerStatus {
            apiserver_id: text(&shared.own.apiserver_id),
            checks: checks.into(),
            compatibility_version: snapshot.local_version.map(|version| version.to_string()),
            discovery_known: snapshot.local_known,
            endpoint: shared.own.endpoint.to_string(),
            history_start: Some(shared.local.history_start()).filter(|start| *start != i64::MAX),
            id: text(&shared.own.id),
            identity_lease_kept_by: self.identity.keeper().map(str::to_owned),
            initialized: shared.local.is_initialized(),
            ready: missing.is_empty(),
            missing,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn certificates(metrics: &CertificateMetrics) -> CertificatesStatus {
    let ends = metrics.expirations();
    CertificatesStatus {
        broken: metrics.broken().collect(),
        expire: ends.map(|(key, end)| (key, rfc3339(end))).collect(),
    }
}

fn custom(custom: &Custom) -> CustomStatus {
    let mut status = CustomStatus::default();
    for Pair(group, resource) in custom.definitions.keys() {
        let resources = status.definitions.entry(group.clone()).or_default();
        resources.insert(resource.clone());
    }
    for Pair(group, version) in &custom.aggregated {
        status.aggregated.insert(api_version(group, version));
    }
    status
}

/// What peers serve and the local apiserver does not, and whose documents say so.
fn discovery(shared: &Shared) -> DiscoveryStatus {
    let peer_discovery = shared.peer_discovery.current.load();
    let added = versions(&peer_discovery.others.groups).map(|(group, version)| {
        let resources = version.resources.iter();
        AddedGroupVersion {
            group: group.to_owned(),
            resources: strings(resources.map(|resource| &*resource.name)),
            stale: version.is_stale(),
            version: version.name.clone(),
        }
    });
    let merges = shared.settings.load().merges_discovery();
    DiscoveryStatus {
        added: added.collect(),
        current: !merges || peer_discovery.is_current_for(&shared.local),
        sources: shared.peer_discovery.sources.load().to_vec(),
    }
}

fn peer(server: &Server, health: &Health) -> PeerStatus {
    PeerStatus {
        bare: server.kind == ServerKind::Bare,
        binary_version: server.binary_version.clone(),
        compatibility_version: server.version.map(|version| version.to_string()),
        draining: server.draining,
        endpoint: server.endpoint.to_string(),
        history_start: server.history_start,
        id: server.id.to_string(),
        initialized: server.initialized,
        known: server.known,
        live: server.live,
        native: server.kind == ServerKind::Native,
        ready: server.ready,
        resources: server.served.as_ref().map(|served| served.len() as u64),
        target: server.target,
        unhealthy: health.is_suspect(server.endpoint),
    }
}

fn resource(gvr: &Gvr, holders: &Holders, snapshot: &Snapshot) -> ResourceStatus {
    let peers = holders.targets.iter();
    // Together with the targets these are all that list it; most often there are none.
    let absent = snapshot.servers.iter().filter(|server| {
        let served = server.served.as_ref();
        !server.target && served.is_some_and(|served| served.contains(gvr))
    });
    ResourceStatus {
        absent: strings(absent.map(|server| &*server.id)),
        group: gvr.group.clone(),
        local: holders.local,
        peers: strings(peers.map(|index| &*snapshot.servers[*index].id)),
        resource: gvr.resource.clone(),
        subresource: gvr.subresource.clone(),
        version: gvr.version.clone(),
    }
}

fn strings<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use serde_json::{json, to_value};

    use super::*;
    use crate::kube::gvr::defined;

    #[test]
    fn what_is_custom_is_told_by_group_and_what_is_aggregated_by_version() {
        let pair = |one: &str, other: &str| Pair(one.to_owned(), other.to_owned());
        let crds = [("example.com", "widgets"), ("example.com", "gadgets")];
        let known = Custom {
            definitions: crds
                .map(|(group, plural)| (pair(group, plural), defined(&["v1"])))
                .into(),
            aggregated: [pair("metrics.k8s.io", "v1beta1")].into(),
        };
        assert_eq!(
            to_value(custom(&known)).unwrap(),
            json!({
                "definitions": {"example.com": ["gadgets", "widgets"]},
                "aggregated": ["metrics.k8s.io/v1beta1"],
            })
        );
    }

    #[test]
    fn the_status_page_names_what_is_broken_and_when_files_expire() {
        let metrics = CertificateMetrics::new(&Registry::new()).unwrap();
        metrics.in_use("serving", false, &[]);
        metrics.in_use("etcd", true, &[("etcd.caFile".into(), 0)]);
        metrics.set_broken("etcd", true);
        assert_eq!(
            to_value(certificates(&metrics)).unwrap(),
            json!({"broken": ["etcd"], "expire": {"etcd.caFile": "1970-01-01T00:00:00Z"}})
        );
    }
}
