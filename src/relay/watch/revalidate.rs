//! Revalidates long-running requests: the certificate of the client and the credentials of the upstream connection.
//!
//! Each short request is checked when it arrives. A request that runs for hours is checked again when certificate files
//! change and when the client's certificate expires. If it would be refused now, or its upstream connection could not
//! be made now, it ends: at a random time within `shutdown.drain`, so that clients do not all reconnect at once. A
//! request continues when a certificate or CA was only added or renewed.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::final_bookmark::FinalBookmark;
use crate::log_throttle::log_rarely;
use crate::relay::shared::Shared;
use crate::request::caller::{Caller, ClientConnection};
use crate::routing::table::ServerKind;
use crate::tls::credentials::Trust;

/// Longest time between two checks, because the clock may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What a long-running request depends on.
pub struct Dependencies {
    /// The caller when the request began.
    pub caller: Caller,
    /// The credentials of the upstream connection.
    pub trust: Arc<Trust>,
    /// Whether the proxy client certificate was presented.
    pub presented: bool,
    pub server_kind: ServerKind,
}

impl Dependencies {
    /// Whether the proxy ends the request, and then when it is to; `false` at once if nothing speaks against it, and as soon as
    /// its server `stops`.
    pub async fn end<S: Future<Output = ()>>(
        &self,
        final_bookmark: &FinalBookmark<'_>,
        client: &ClientConnection,
        stops: impl FnOnce() -> S,
    ) -> bool {
        let shared = final_bookmark.shared;
        if !shared.shutdown.is_leaving() && self.is_valid(shared, client) {
            return false;
        }
        // Boxed: it seldom comes to this, and thousands of watches wait for it.
        Box::pin(async {
            tokio::select! {
                () = final_bookmark.drained() => true,
                invalid = self.invalidated(shared, client) => {
                    if invalid {
                        final_bookmark.whole_frame(None).await;
                    }
                    invalid
                }
                () = stops() => false,
            }
        })
        .await
    }

    /// Waits a random time, and finds out whether the request is still invalid then: a file that was restored meanwhile ends
    /// nothing. While the proxy stops, until it is.
    async fn invalidated(&self, shared: &Shared, client: &ClientConnection) -> bool {
        let mut changes = shared.callers.revalidations.subscribe();
        loop {
            shared.shutdown.random_drain_delay().await;
            // Changes before this check are covered by it.
            changes.mark_unchanged();
            if !self.is_valid(shared, client) {
                let text = "a long-running request ends: its certificates are no longer valid";
                log_rarely!(info, client = ?client.address, "{text}");
                return true;
            }
            if !shared.shutdown.is_leaving() {
                return false;
            }
            self.until_a_change(client, &mut changes, None).await;
        }
    }

    /// Waits until what the request depends on may have changed, or until `time`.
    pub async fn until_a_change(
        &self,
        client: &ClientConnection,
        changes: &mut watch::Receiver<()>,
        time: Option<Instant>,
    ) {
        let recheck = self.until_recheck(client).map(|left| Instant::now() + left);
        let recheck = recheck.into_iter().chain(time).min();
        // Boxed: requests with tokens need no timer.
        let mut recheck = recheck.map(|time| Box::pin(sleep_until(time)));
        let mut changed = pin!(changes.changed());
        // Smaller than a `select!`, and every watch waits here.
        poll_fn(|context| {
            let recheck = recheck
                .as_mut()
                .map(|recheck| recheck.as_mut().poll(context));
            let changed = changed.as_mut().poll(context).map(drop);
            recheck.filter(Poll::is_ready).unwrap_or(changed)
        })
        .await;
    }

    /// The time until the client's certificate may have expired; `None` if the request does not depend on one.
    fn until_recheck(&self, client: &ClientConnection) -> Option<Duration> {
        let (Caller::Peer | Caller::User(_)) = self.caller else {
            return None;
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        Some(time_to_recheck(client.valid_until(now), now))
    }

    /// Whether the client would still be let in.
    pub fn is_let_in(&self, shared: &Shared, client: &ClientConnection) -> bool {
        match self.caller {
            Caller::Peer | Caller::User(_) => {
                let authenticator = shared.callers.authenticator.load();
                authenticator.caller(client, false, SystemTime::now()) == self.caller
            }
            // Only apiservers know tokens.
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => true,
        }
    }

    /// Whether the client would still be let in, and the connection to the server be made.
    fn is_valid(&self, shared: &Shared, client: &ClientConnection) -> bool {
        let credentials = shared.credentials.load();
        let now = match self.server_kind {
            ServerKind::Local => &credentials.local,
            ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => &credentials.peers,
        };
        self.is_let_in(shared, client) && now.covers(&self.trust, self.presented)
    }
}

/// Resolves when the proxy is to end a long-running request: it stops, or what the request depends on no longer counts.
pub async fn until_terminated(
    final_bookmark: &FinalBookmark<'_>,
    client: &ClientConnection,
    dependencies: &Dependencies,
) {
    let mut changes = final_bookmark.shared.callers.revalidations.subscribe();
    while !dependencies.end(final_bookmark, client, pending).await {
        dependencies
            .until_a_change(client, &mut changes, None)
            .await;
    }
}

/// `end`: the last valid second of a certificate that has not expired at `now`; `None` if all have.
fn time_to_recheck(end: Option<u64>, now: u64) -> Duration {
    let left = end.map_or(0, |end| end.saturating_add(1).saturating_sub(now));
    // The least limits the rate of checks.
    Duration::from_secs(left).clamp(Duration::from_secs(1), LONGEST_SLEEP)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LONGEST_SLEEP, time_to_recheck};

    #[test]
    fn a_certificate_is_checked_when_it_has_expired_and_at_least_once_an_hour() {
        assert_eq!(time_to_recheck(Some(160), 100), Duration::from_secs(61));
        assert_eq!(time_to_recheck(Some(100), 100), Duration::from_secs(1));
        assert_eq!(time_to_recheck(Some(u64::MAX), 100), LONGEST_SLEEP);
        // The clock was set.
        assert_eq!(time_to_recheck(None, 100), Duration::from_secs(1));
    }
}
