//! Who has the history that a watch needs (KEP-1904): since which etcd revision the local apiserver has it, and which
//! watches resume after a revision that not every apiserver may still have.
//!
//! An apiserver's watch history begins when it starts. A client that comes back with an older `resourceVersion` gets a 410
//! and lists everything again, although another apiserver still has the changes. Without a `resourceVersion`, and with `0`,
//! any state will do. Invalid values are left for kube-apiserver to refuse.
//!
//! Each of its watch caches begins at the revision of its first list, before the apiserver is ready or shortly after. etcd's
//! revision some time after the first `/readyz` 200 is never below any of these. If the apiserver ran before this proxy, the
//! revision is too high: some watches are sent to a peer without need, but none fails.

use std::sync::Arc;
use std::time::Duration;

use super::frames;
use super::storage;
use crate::cluster::connector::Connector;
use crate::cluster::etcd;
use crate::config::EtcdConfig;
use crate::local::state::LocalState;
use crate::log_throttle::{LogThrottle, warn_new};
use crate::request::info::{RequestInfo, Verb, query_values};
use crate::retry::jittered;

/// Wait after the apiserver is ready, for watch caches that are slow.
const MARGIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(1);

/// Finds the revision for each process of the apiserver. Runs until dropped. `key`: any key that may be read.
pub async fn run(mut connector: Connector, key: String, state: Arc<LocalState>) {
    let mut changes = state.changes();
    let throttle = LogThrottle::default();
    loop {
        let epoch = state.epoch();
        let unknown = state.history_start() == i64::MAX && !state.is_history_void();
        if state.is_initialized() && unknown {
            tokio::time::sleep(MARGIN).await;
            let current = async { etcd::newest(&mut connector.connect().await?, &key).await };
            match current.await {
                Ok(revision) => {
                    throttle.recovered(&());
                    tracing::info!(revision, "watch history begins");
                    state.begins_at(revision, epoch);
                }
                Err(error) => {
                    let text = "etcd's revision is not known, retrying";
                    warn_new!(throttle, (), &error, "{text}");
                    tokio::time::sleep(jittered(PAUSE)).await;
                }
            }
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

/// The etcd revision after which a watch resumes; `None` for all other requests, and for resources in another etcd.
pub fn resumed_after(
    etcd: &EtcdConfig,
    info: &RequestInfo<'_>,
    query: Option<&str>,
) -> Option<i64> {
    let resource = info.gvr()?;
    // It asks for the existing objects first, as of any later state.
    let begins_anew = || query_values(query, "sendInitialEvents").next().is_some();
    if info.verb != Verb::Watch || storage::is_elsewhere(etcd, resource) || begins_anew() {
        return None;
    }
    frames::revision(&query_values(query, "resourceVersion").next()?)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::info::read;

    fn of(elsewhere: &[&str], target: &str) -> Option<i64> {
        let etcd = EtcdConfig {
            endpoints: Vec::new(),
            ca_file: None,
            client: None,
            prefix: "/registry".to_owned(),
            other_resources: elsewhere.iter().map(ToString::to_string).collect(),
        };
        let (path, query) = target.split_once('?').unwrap();
        let info = read(&Method::GET, path, Some(query));
        resumed_after(&etcd, &info, Some(query))
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
