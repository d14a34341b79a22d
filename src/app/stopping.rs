//! When the drain of a proxy that stops is over.
//!
//! Clients that know no other address (kubelet, controller manager, scheduler of this node) are let in until the end.
//! So a proxy whose apiserver is shutting down, too, goes on until its process is gone: before, nothing would start again
//! at this address anyway. [`is_over`] decides, and is pure.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::config::ShutdownConfig;
use crate::local::process;
use crate::local::state::LocalState;
use crate::relay::shared::Shared;
use crate::server::ServingThreads;

/// Between two looks at what is open.
const INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait after `shutdown.drain` for an apiserver that is shutting down.
const APISERVER_TIMEOUT: Duration = Duration::from_secs(75);
/// The time between an apiserver's last connection and the end of its process. Peers serve meanwhile.
const APISERVER_EXIT: Duration = Duration::from_secs(1);

/// The local apiserver, as the end of the drain depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Apiserver {
    /// It goes on: the proxy is stopped alone.
    Serves,
    /// It got a signal to stop, too, and its process is there.
    ShutsDown,
    /// It takes no connections and has none, for so long.
    Gone(Duration),
}

/// What is looked at during the drain.
struct DrainState {
    /// Since the drain began.
    elapsed: Duration,
    apiserver: Apiserver,
    /// Client connections.
    connections: i64,
    /// Long-running requests that began before the drain.
    early_requests: i64,
}

/// Whether no more connections are to be accepted. `last`: how long before the end of the drain that is at the latest.
fn is_over(drain: Duration, last: Duration, state: DrainState) -> bool {
    let is_late = state.elapsed >= drain.saturating_sub(last);
    match state.apiserver {
        Apiserver::Serves => is_late || state.connections == 0,
        Apiserver::ShutsDown => state.elapsed >= drain + APISERVER_TIMEOUT,
        Apiserver::Gone(time) => time >= APISERVER_EXIT && (is_late || state.early_requests == 0),
    }
}

/// Ends the connections of clients and the serving threads, after `shutdown.delay`.
pub(super) async fn drain(shared: &Shared, server: ServingThreads) {
    let ShutdownConfig { drain, .. } = shared.config.shutdown;
    let begin = shared.shutdown.drain_begin();
    let last = shared.shutdown.ending();
    let (address, mut gone_since) = (shared.config.api_server.address, None);
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        let metrics = &shared.metrics;
        let state = DrainState {
            elapsed: begin.elapsed(),
            apiserver: look(&shared.local, address, &mut gone_since).await,
            connections: server.connections(),
            early_requests: metrics.long_running.get() - metrics.late_long_running.get(),
        };
        if is_over(drain, last, state) {
            break;
        }
    }
    server.stop(shared.shutdown.end()).await;
}

/// `gone_since`: as the last look found it.
async fn look(
    local: &LocalState,
    address: SocketAddr,
    gone_since: &mut Option<Instant>,
) -> Apiserver {
    let state = match (local.is_initialized(), local.is_shutting_down()) {
        (true, false) => Apiserver::Serves,
        (true, true) => Apiserver::ShutsDown,
        (false, _) => {
            // Its process may be there although it takes no connections.
            let looking = tokio::task::spawn_blocking(move || process::lingers(address));
            if !looking.await.unwrap_or(false) {
                return Apiserver::Gone(gone_since.get_or_insert_with(Instant::now).elapsed());
            }
            Apiserver::ShutsDown
        }
    };
    *gone_since = None;
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(60);
    const LAST: Duration = Duration::from_secs(2);

    fn after(seconds: u64, apiserver: Apiserver, connections: i64, early_requests: i64) -> bool {
        let state = DrainState {
            elapsed: Duration::from_secs(seconds),
            apiserver,
            connections,
            early_requests,
        };
        is_over(DRAIN, LAST, state)
    }

    fn gone(seconds: u64) -> Apiserver {
        Apiserver::Gone(Duration::from_secs(seconds))
    }

    #[test]
    fn stopped_alone_it_ends_when_nothing_is_open_or_with_the_drain() {
        assert!(after(0, Apiserver::Serves, 0, 0));
        assert!(!after(0, Apiserver::Serves, 1, 0));
        assert!(!after(57, Apiserver::Serves, 1, 0));
        assert!(after(58, Apiserver::Serves, 1, 1));
    }

    #[test]
    fn it_goes_on_while_its_apiserver_shuts_down() {
        assert!(!after(0, Apiserver::ShutsDown, 0, 0));
        assert!(!after(134, Apiserver::ShutsDown, 0, 0));
        assert!(after(135, Apiserver::ShutsDown, 5, 5));
    }

    #[test]
    fn once_its_apiserver_is_gone_it_ends_after_what_was_open_before_the_drain() {
        assert!(!after(3, gone(0), 0, 0));
        assert!(after(3, gone(1), 0, 0));
        // Who came during the drain does not keep it.
        assert!(after(3, gone(1), 7, 0));
        assert!(!after(3, gone(1), 7, 1));
        assert!(after(58, gone(1), 7, 1));
        assert!(!after(70, gone(0), 0, 0));
    }

    #[tokio::test]
    async fn an_apiserver_that_comes_back_while_the_proxy_drains_serves_again() {
        let local = LocalState::default();
        // Nobody has connections there.
        let (address, mut gone_since) = (([127, 0, 0, 1], 0).into(), None);
        let mut look = async || look(&local, address, &mut gone_since).await;
        assert!(matches!(look().await, Apiserver::Gone(_)));
        local.answered(true, 0);
        assert_eq!(look().await, Apiserver::Serves);
        local.shuts_down(true, 0);
        assert_eq!(look().await, Apiserver::ShutsDown);
        local.refused();
        assert!(matches!(look().await, Apiserver::Gone(_)));
        local.answered(true, local.epoch());
        assert_eq!(look().await, Apiserver::Serves);
        assert_eq!(gone_since, None);
    }
}
