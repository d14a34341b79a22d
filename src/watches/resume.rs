//! Recognises watches that resume after a revision that not every apiserver may still have. Pure.
//!
//! An apiserver's watch history begins when it starts. A client that comes back with an older `resourceVersion` gets a 410
//! and lists everything again, although another apiserver still has the changes. Without a `resourceVersion`, and with `0`,
//! any state will do. Invalid values are left for kube-apiserver to refuse.

use std::collections::HashSet;

use super::frames::revision;
use crate::config::Config;
use crate::request::info::{RequestInfo, ResourceRequest, Target, Verb, query_values};

/// Recognises such watches.
#[derive(Debug)]
pub struct Resume {
    /// Resources (`events`, `events.events.k8s.io`) that are stored in another etcd.
    elsewhere: HashSet<String>,
}

impl Resume {
    pub fn new(config: &Config) -> Self {
        Self {
            elsewhere: config.etcd.other_resources.iter().cloned().collect(),
        }
    }

    /// The etcd revision after which a watch resumes; `None` for all other requests.
    pub fn of(&self, info: &RequestInfo<'_>, query: Option<&str>) -> Option<i64> {
        let Target::Resource(resource) = &info.target else {
            return None;
        };
        if info.verb != Verb::Watch || self.is_elsewhere(resource) {
            return None;
        }
        // `sendInitialEvents` asks for the existing objects first, as of any later state.
        if query_values(query, "sendInitialEvents").next().is_some() {
            return None;
        }
        revision(&query_values(query, "resourceVersion").next()?)
    }

    fn is_elsewhere(&self, resource: &ResourceRequest<'_>) -> bool {
        if self.elsewhere.is_empty() {
            return false;
        }
        let ResourceRequest {
            group, resource, ..
        } = resource;
        match group.is_empty() {
            true => self.elsewhere.contains(&**resource),
            false => self.elsewhere.contains(&format!("{resource}.{group}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::info::read;

    fn of(elsewhere: &[&str], target: &str) -> Option<i64> {
        let resume = Resume {
            elsewhere: elsewhere.iter().map(ToString::to_string).collect(),
        };
        let (path, query) = target.split_once('?').unwrap();
        resume.of(&read(&Method::GET, path, Some(query)), Some(query))
    }

    #[test]
    fn a_watch_that_goes_on_says_where() {
        for target in [
            "/api/v1/pods?watch=1&resourceVersion=670",
            "/api/v1/watch/pods?resourceVersion=670",
            "/apis/apps/v1/namespaces/x/deployments?watch=true&resourceVersion=0670&resourceVersion=1",
        ] {
            assert_eq!(of(&[], target), Some(670), "{target}");
        }
    }

    #[test]
    fn everything_else_is_for_the_apiserver() {
        for target in [
            "/api/v1/pods?watch=1",
            "/api/v1/pods?watch=1&resourceVersion=",
            "/api/v1/pods?watch=1&resourceVersion=0",
            "/api/v1/pods?watch=1&resourceVersion=000",
            "/api/v1/pods?watch=1&resourceVersion=-5",
            "/api/v1/pods?watch=1&resourceVersion=%2B5",
            "/api/v1/pods?watch=1&resourceVersion=x",
            "/api/v1/pods?watch=1&resourceVersion=99999999999999999999",
            "/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents=true",
            "/api/v1/pods?resourceVersion=5",
            "/api/v1/pods/x?resourceVersion=5",
            "/version?watch=1&resourceVersion=5",
        ] {
            assert_eq!(of(&[], target), None, "{target}");
        }
    }

    #[test]
    fn revisions_of_another_etcd_are_never_compared() {
        let both = ["events", "events.events.k8s.io"];
        for target in [
            "/api/v1/events?watch=1&resourceVersion=5",
            "/apis/events.k8s.io/v1/events?watch=1&resourceVersion=5",
        ] {
            assert_eq!(of(&both, target), None, "{target}");
            assert_eq!(of(&both[..0], target), Some(5), "{target}");
        }
        assert_eq!(of(&both, "/api/v1/pods?watch=1&resourceVersion=5"), Some(5));
    }
}
