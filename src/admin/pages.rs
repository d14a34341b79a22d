//! The operator's port: `/livez`, `/readyz`, `/metrics`, `/statusz`. Plain HTTP, loopback only.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Response, StatusCode};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::lease::LeaseOwner;
use super::metrics::Gauges;
use crate::discovery::gathered::Source;
use crate::relay::health::Health;
use crate::relay::shared::{Phase, Shared};
use crate::request::info::query_values;
use crate::routing::table::{Gvr, Holders, Server, Snapshot};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers on the admin port.
pub struct Pages {
    shared: Arc<Shared>,
}

/// One named condition of readiness.
struct Check {
    name: &'static str,
    /// What is missing, if anything.
    missing: Option<String>,
}

impl Pages {
    /// Reads from what the serving threads share.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn answer(&self, path: &str, query: Option<&str>) -> (StatusCode, &'static str, String) {
        match path {
            "/livez" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => self.readyz(query_values(query, "verbose").next().is_some()),
            "/metrics" => match self.shared.metrics.render(self.gauges()) {
                Ok(text) => (StatusCode::OK, PROMETHEUS, text),
                Err(error) => (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    TEXT,
                    format!("{error}\n"),
                ),
            },
            "/statusz" => {
                let status = self.status(self.facts().await);
                (StatusCode::OK, JSON, format!("{status:#}\n"))
            }
            "/" => (
                StatusCode::OK,
                TEXT,
                "/livez\n/readyz?verbose\n/metrics\n/statusz\n".to_owned(),
            ),
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "404 page not found\n".to_owned(),
            ),
        }
    }

    /// In kube-apiserver's own form; what is missing is always named, the rest when asked for.
    fn readyz(&self, verbose: bool) -> (StatusCode, &'static str, String) {
        let checks = self.checks();
        let ready = checks.iter().all(|check| check.missing.is_none());
        if ready && !verbose {
            return (StatusCode::OK, TEXT, "ok\n".to_owned());
        }
        let mut text: String = checks
            .iter()
            .map(|check| match &check.missing {
                None => format!("[+]{} ok\n", check.name),
                Some(missing) => format!("[-]{} failed: {missing}\n", check.name),
            })
            .collect();
        text.push_str(if ready {
            "readyz check passed\n"
        } else {
            "readyz check failed\n"
        });
        (
            if ready {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            },
            TEXT,
            text,
        )
    }

    fn checks(&self) -> [Check; 6] {
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

    fn gauges(&self) -> Gauges {
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

    fn status(&self, facts: Value) -> Value {
        let shared = &self.shared;
        let snapshot = shared.published.snapshot.load();
        let gauges = self.gauges();
        let missing: Vec<_> = self
            .checks()
            .into_iter()
            .filter_map(|check| check.missing)
            .collect();
        json!({
            "server": {
                "id": shared.own.id.borrow().as_deref(),
                "endpoint": shared.own.endpoint,
                "version": env!("CARGO_PKG_VERSION"),
                "compatibilityVersion": snapshot.local_version.map(|version| version.to_string()),
                "ready": missing.is_empty(),
                "missing": missing,
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
        })
    }
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
    json!({
        "group": gvr.group,
        "version": gvr.version,
        "resource": gvr.resource,
        "subresource": gvr.subresource,
        "local": holders.local,
        "peers": peers,
    })
}

#[async_trait]
impl ServeHttp for Pages {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let (status, content_type, body) = match request.method {
            Method::GET | Method::HEAD => {
                self.answer(request.uri.path(), request.uri.query()).await
            }
            _ => (
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "only GET and HEAD\n".to_owned(),
            ),
        };
        let length = body.len();
        let body = if request.method == Method::HEAD {
            Vec::new()
        } else {
            body.into_bytes()
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        headers.insert(CONTENT_LENGTH, length.into());
        headers.insert(CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
        response
    }
}
