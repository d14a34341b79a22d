//! The last reroutes and refusals, for the status page. No users, no queries, no names of objects.
//!
//! Written on the request path, but never by a request that the apiserver beside us answers, and never waited for: an
//! atomic decides who may write, a few a second, and whoever finds the ring in use goes on without. What was left out is
//! counted. Equal events are one entry, so that a health check that fails every second does not push out all else.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use http::Method;
use serde_json::{Value, json};

use super::certificates::rfc3339;
use crate::request::info::{Discovery, RequestInfo, Target};
use crate::routing::table::{Gvr, GvrRef};

/// Different events that are kept, of either kind.
const KEPT: usize = 64;
/// Milliseconds that an event takes away from what may be written, and how many may come at once.
const PAUSE: u64 = 250;
const BURST: u64 = 8;
/// Characters of a name that are kept: those of refused requests are what a client says.
const LONGEST: usize = 100;

/// Both kinds.
#[derive(Debug, Default)]
pub struct Recent {
    /// Answered by another server.
    pub rerouted: Ring,
    /// Answered by the proxy itself.
    pub refused: Ring,
}

/// Events of one kind, the last one last.
#[derive(Debug)]
pub struct Ring {
    begin: Instant,
    /// When the bucket of allowances is full again, in milliseconds since `begin`.
    full: AtomicU64,
    left_out: AtomicU64,
    entries: Mutex<VecDeque<Entry>>,
}

#[derive(Debug)]
struct Entry {
    event: Event,
    last: SystemTime,
    times: u64,
}

/// What happened to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    method: &'static str,
    what: What,
    /// Who answered, or was asked last.
    server: Option<SocketAddr>,
    code: u16,
    /// Row of the routing table, or name of the refusal.
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Resource(Gvr),
    Path(&'static str),
}

impl Event {
    /// Of a request; none is known that could not be read.
    pub fn new(
        request: Option<(&Method, &RequestInfo<'_>)>,
        server: Option<SocketAddr>,
        code: u16,
        reason: &'static str,
    ) -> Self {
        let what = match request.map(|(_, info)| &info.target) {
            Some(Target::Resource(resource)) => What::Resource(short(resource.into())),
            Some(Target::Discovery(document)) => What::Path(match document {
                Discovery::Versions
                | Discovery::Groups
                | Discovery::Group(_)
                | Discovery::GroupVersion(_) => "discovery",
                Discovery::OpenApiV2
                | Discovery::OpenApiV3
                | Discovery::OpenApiV3GroupVersion(_)
                | Discovery::OpenApiV3Document(_) => "OpenAPI",
            }),
            Some(Target::Other) => What::Path("other path"),
            None => What::Path("unreadable"),
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
            What::Resource(gvr) => (Some(gvr), None),
            What::Path(path) => (None, Some(path)),
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

impl Default for Ring {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            full: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            entries: Mutex::default(),
        }
    }
}

impl Ring {
    /// Keeps an event, if there were not too many lately; it is made only then.
    pub fn add(&self, event: impl FnOnce() -> Event) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        if !self.is_allowed(now) || !self.keep(event) {
            self.left_out.fetch_add(1, Relaxed);
        }
    }

    /// Takes an allowance of `now`, if one is left.
    fn is_allowed(&self, now: u64) -> bool {
        let take = |full: u64| {
            let full = full.max(now);
            (full - now <= PAUSE * (BURST - 1)).then(|| full + PAUSE)
        };
        self.full.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    fn keep(&self, event: impl FnOnce() -> Event) -> bool {
        // In use: by the status page, or by another thread.
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

    /// For the status page, the last one first; `name`: server ID of an address.
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

/// Seconds since 1970, for what is written as a time.
pub(super) fn unix(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// A method that is one of HTTP's own; others are what a client says.
fn known(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT",
    ];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
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

    fn event(path: &str) -> Event {
        let method = Method::GET;
        let info = info::read(&method, path, None);
        Event::new(Some((&method, &info)), None, 503, "unreachable")
    }

    fn events(ring: &Ring) -> Vec<Value> {
        let status = ring.status(|_| None);
        status["events"].as_array().unwrap().clone()
    }

    #[test]
    fn neither_objects_nor_namespaces_nor_queries_are_kept() {
        let ring = Ring::default();
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
        let ring = Ring::default();
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
        let ring = Ring::default();
        let allowed = (0..100).filter(|_| ring.is_allowed(1000)).count();
        assert_eq!(allowed as u64, BURST);
        assert!(!ring.is_allowed(1000 + PAUSE - 1));
        assert!(ring.is_allowed(1000 + PAUSE));
        assert!(!ring.is_allowed(1000 + PAUSE));
    }

    #[test]
    fn whoever_finds_the_ring_in_use_goes_on_without() {
        let ring = Ring::default();
        let reader = ring.entries.lock().unwrap();
        ring.add(|| panic!("it is not even made"));
        drop(reader);
        assert_eq!(ring.status(|_| None), json!({"events": [], "leftOut": 1}));
    }

    #[test]
    fn the_ring_and_its_names_are_bounded() {
        let ring = Ring::default();
        for number in 0..2 * KEPT {
            let name = "é".repeat(number + LONGEST);
            let gvr = GvrRef {
                group: &number.to_string(),
                version: "v1",
                resource: &name,
                subresource: "",
            };
            assert!(ring.keep(|| Event {
                what: What::Resource(short(gvr)),
                ..event("/")
            }));
        }
        let kept = events(&ring);
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0]["group"], (2 * KEPT - 1).to_string());
        assert_eq!(kept[0]["resource"], "é".repeat(LONGEST));
    }
}
