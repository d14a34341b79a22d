//! The last reroutes and refusals, for the status page. Without users, queries and names of objects.
//!
//! Requests write it, except those that the local apiserver answers. They never wait: an atomic limits writes to a few
//! per second, and a request that finds the ring locked skips it. Skipped events are counted. Equal events share one
//! entry, so that a failing health check does not push out all others.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use http::Method;
use serde_json::{Value, json};

use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::{Gvr, GvrRef};
use crate::request::info::{RequestInfo, Target};
use crate::tls::metrics::rfc3339;

/// Most entries of each kind.
const KEPT: usize = 64;
/// A token bucket: milliseconds per event, and most events at once.
const PAUSE: u64 = 250;
const BURST: u64 = 8;
/// Longest name, in characters. Clients choose the names in refused requests.
const LONGEST: usize = 100;

#[derive(Debug, Default)]
pub struct RecentEvents {
    /// Answered by another server.
    pub rerouted: EventRing,
    /// Answered by the proxy itself.
    pub refused: EventRing,
}

/// Events of one kind, the latest last.
#[derive(Debug)]
pub struct EventRing {
    begin: Instant,
    /// When the bucket is full again, in milliseconds since `begin`.
    full: AtomicU64,
    left_out: AtomicU64,
    entries: Mutex<VecDeque<Entry>>,
}

#[derive(Debug)]
struct Entry {
    event: RequestEvent,
    last: SystemTime,
    times: u64,
}

/// A reroute or a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestEvent {
    method: &'static str,
    what: RequestSubject,
    /// The server that answered, or that was tried last.
    server: Option<SocketAddr>,
    code: u16,
    /// Row of the routing table, or name of the refusal.
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestSubject {
    Resource(Gvr),
    Path(&'static str),
}

impl RequestEvent {
    /// `request`: `None` if it could not be read.
    pub fn new(
        request: Option<(&Method, &RequestInfo<'_>)>,
        server: Option<SocketAddr>,
        code: u16,
        reason: &'static str,
    ) -> Self {
        let what = match request.map(|(_, info)| &info.target) {
            Some(Target::Resource(resource)) => RequestSubject::Resource(short(resource.into())),
            Some(Target::Discovery(document)) => RequestSubject::Path(match document {
                DiscoveryDocument::Versions
                | DiscoveryDocument::Groups
                | DiscoveryDocument::Group(_)
                | DiscoveryDocument::Resources(_) => "discovery",
                DiscoveryDocument::OpenApiV2
                | DiscoveryDocument::OpenApiV3
                | DiscoveryDocument::OpenApiV3Version(_) => "OpenAPI",
            }),
            Some(Target::Other) => RequestSubject::Path("other path"),
            None => RequestSubject::Path("unreadable"),
        };
        Self {
            method: request.map_or("", |(method, _)| known(method)),
            what,
            server,
            code,
            reason,
        }
    }

    fn json(&self, name: impl Fn(SocketAddr) -> Option<String>) -> Value {
        let (gvr, path) = match &self.what {
            RequestSubject::Resource(gvr) => (Some(gvr), None),
            RequestSubject::Path(path) => (None, Some(path)),
        };
        json!({
            "method": self.method,
            "path": path,
            "group": gvr.map(|gvr| &gvr.group),
            "version": gvr.map(|gvr| &gvr.version),
            "resource": gvr.map(|gvr| &gvr.resource),
            "subresource": gvr.map(|gvr| &gvr.subresource),
            "server": self.server.and_then(name),
            "address": self.server,
            "code": self.code,
            "reason": self.reason,
        })
    }
}

impl Default for EventRing {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            full: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            entries: Mutex::default(),
        }
    }
}

impl EventRing {
    /// Adds an event unless there were too many. `event` is called only then.
    pub fn add(&self, event: impl FnOnce() -> RequestEvent) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        if !self.is_allowed(now) || !self.keep(event) {
            self.left_out.fetch_add(1, Relaxed);
        }
    }

    /// Takes a token at the time `now`, if one is left.
    fn is_allowed(&self, now: u64) -> bool {
        let take = |full: u64| {
            let full = full.max(now);
            (full - now <= PAUSE * (BURST - 1)).then(|| full + PAUSE)
        };
        self.full.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    fn keep(&self, event: impl FnOnce() -> RequestEvent) -> bool {
        // Locked by the status page or another thread.
        let Ok(mut entries) = self.entries.try_lock() else {
            return false;
        };
        let event = event();
        let same = entries.iter().position(|entry| entry.event == event);
        let before = same.and_then(|same| entries.remove(same));
        if entries.len() >= KEPT {
            entries.pop_front();
        }
        entries.push_back(Entry {
            event,
            last: SystemTime::now(),
            times: before.map_or(0, |entry| entry.times) + 1,
        });
        true
    }

    /// For the status page, the latest first. `name`: the server ID of an address.
    pub fn status(&self, name: impl Fn(SocketAddr) -> Option<String>) -> Value {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = entries.iter().rev().map(|entry| {
            let mut value = entry.event.json(&name);
            value["last"] = rfc3339(unix(entry.last)).into();
            value["times"] = entry.times.into();
            value
        });
        json!({
            "events": entries.collect::<Vec<_>>(),
            "leftOut": self.left_out.load(Relaxed),
        })
    }
}

/// Unix time in seconds.
pub fn unix(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// Names standard methods. Clients choose any others.
pub(super) fn known(method: &Method) -> &'static str {
    const STANDARD: [&str; 8] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT",
    ];
    let known = STANDARD.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

fn short(gvr: GvrRef<'_>) -> Gvr {
    let cut = |name: &str| name.chars().take(LONGEST).collect();
    Gvr {
        group: cut(gvr.group),
        version: cut(gvr.version),
        resource: cut(gvr.resource),
        subresource: cut(gvr.subresource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::info;

    fn event(path: &str) -> RequestEvent {
        let method = Method::GET;
        let info = info::read(&method, path, None);
        RequestEvent::new(Some((&method, &info)), None, 503, "unreachable")
    }

    fn events(ring: &EventRing) -> Vec<Value> {
        let status = ring.status(|_| None);
        status["events"].as_array().unwrap().clone()
    }

    #[test]
    fn neither_objects_nor_namespaces_nor_queries_are_kept() {
        let ring = EventRing::default();
        ring.add(|| event("/apis/apps/v1/namespaces/secret/deployments/hidden/status"));
        let [kept] = &events(&ring)[..] else {
            panic!("one event");
        };
        assert_eq!(kept["group"], "apps");
        assert_eq!(kept["resource"], "deployments");
        assert_eq!(kept["subresource"], "status");
        let text = kept.to_string();
        assert!(
            !text.contains("secret") && !text.contains("hidden"),
            "{text}"
        );
    }

    #[test]
    fn equal_events_are_one_and_the_last_comes_first() {
        let ring = EventRing::default();
        for path in ["/api/v1/pods", "/openapi/v2", "/api/v1/pods"] {
            ring.add(|| event(path));
        }
        let kept = events(&ring);
        assert_eq!(kept.len(), 2);
        assert_eq!(
            (&kept[0]["resource"], &kept[0]["times"]),
            (&"pods".into(), &2.into())
        );
        assert_eq!(
            (&kept[1]["path"], &kept[1]["times"]),
            (&"OpenAPI".into(), &1.into())
        );
    }

    #[test]
    fn few_are_kept_of_many_and_the_rest_is_counted() {
        let ring = EventRing::default();
        let allowed = (0..100).filter(|_| ring.is_allowed(1000)).count();
        assert_eq!(allowed as u64, BURST);
        assert!(!ring.is_allowed(1000 + PAUSE - 1));
        assert!(ring.is_allowed(1000 + PAUSE));
        assert!(!ring.is_allowed(1000 + PAUSE));
    }

    #[test]
    fn whoever_finds_the_ring_in_use_goes_on_without() {
        let ring = EventRing::default();
        let reader = ring.entries.lock().unwrap();
        ring.add(|| panic!("it is not even made"));
        drop(reader);
        assert_eq!(ring.status(|_| None), json!({"events": [], "leftOut": 1}));
    }

    #[test]
    fn the_ring_and_its_names_are_bounded() {
        let ring = EventRing::default();
        for number in 0..2 * KEPT {
            let name = "é".repeat(number + LONGEST);
            let gvr = GvrRef {
                group: &number.to_string(),
                version: "v1",
                resource: &name,
                subresource: "",
            };
            assert!(ring.keep(|| RequestEvent {
                what: RequestSubject::Resource(short(gvr)),
                ..event("/")
            }));
        }
        let kept = events(&ring);
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0]["group"], (2 * KEPT - 1).to_string());
        assert_eq!(kept[0]["resource"], "é".repeat(LONGEST));
    }
}
