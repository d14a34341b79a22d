//! Revalidates long-running requests: the certificate of the client and the credentials of the upstream connection.
//!
//! Each short request is checked when it arrives. A request that runs for hours is checked again when certificate files
//! change and when the client's certificate expires. If it would be refused now, or its upstream connection could not
//! be made now, it ends: at a random time within `shutdown.drain`, so that clients do not all reconnect at once. A
//! request continues when a certificate or CA was only added or renewed.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::sleep;

use super::final_bookmark::FinalBookmark;
use crate::log_throttle::LogRateLimit;
use crate::relay::shared::Shared;
use crate::request::caller::{Caller, ClientConnection};
use crate::routing::table::ServerKind;
use crate::tls::credentials::Trust;

/// Longest time between two checks, because the clock may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What a long-running request depends on.
pub struct Revalidation<'a> {
    pub shared: &'a Shared,
    pub connection: &'a ClientConnection,
    /// The caller when the request began.
    pub caller: &'a Caller,
    /// The credentials of the upstream connection.
    pub trust: &'a Trust,
    /// Whether the proxy client certificate was presented.
    pub presented: bool,
    pub server_kind: ServerKind,
}

impl Revalidation<'_> {
    /// Resolves when the proxy stops, or when the request may no longer be valid.
    pub async fn until_first_change(&self) {
        let mut revalidations = self.shared.callers.revalidations.subscribe();
        if !self.shared.shutdown.is_leaving() && self.is_valid() {
            self.until_a_change(&mut revalidations).await;
        }
    }

    /// Resolves when the request is no longer valid and its turn to end has come. Starts with that turn: it is for what
    /// comes after [`Self::until_first_change`].
    pub async fn ended(&self) {
        let mut revalidations = self.shared.callers.revalidations.subscribe();
        loop {
            self.shared.shutdown.random_drain_delay().await;
            // Changes before this check are covered by it. A file that was restored meanwhile ends nothing.
            revalidations.mark_unchanged();
            if !self.is_valid() {
                static LOG_RATE: LogRateLimit = LogRateLimit::new();
                if let Some(left_out) = LOG_RATE.admit() {
                    tracing::info!(
                        client = ?self.connection.address,
                        left_out,
                        "a long-running request ends, its certificates no longer count"
                    );
                }
                return;
            }
            self.until_a_change(&mut revalidations).await;
        }
    }

    async fn until_a_change(&self, revalidations: &mut watch::Receiver<()>) {
        // Boxed: requests with tokens need no timer.
        let mut recheck = self.until_recheck().map(|time| Box::pin(sleep(time)));
        let mut changed = pin!(revalidations.changed());
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
    fn until_recheck(&self) -> Option<Duration> {
        let (Caller::Peer | Caller::User(_)) = self.caller else {
            return None;
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        Some(time_to_recheck(self.connection.valid_until(now), now))
    }

    fn is_valid(&self) -> bool {
        self.is_let_in() && self.is_connected()
    }

    /// Whether the client's certificate would still be accepted. Only apiservers can judge tokens.
    fn is_let_in(&self) -> bool {
        match self.caller {
            Caller::Peer | Caller::User(_) => {
                let now = SystemTime::now();
                let judge = self.shared.callers.judge.load();
                judge.caller(self.connection, false, now) == *self.caller
            }
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => true,
        }
    }

    fn is_connected(&self) -> bool {
        let credentials = self.shared.credentials.load();
        let now = match self.server_kind {
            ServerKind::Local => &credentials.local,
            ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => &credentials.peers,
        };
        now.covers(self.trust, self.presented)
    }
}

/// Resolves when a long-running request is to end.
pub async fn ends(final_bookmark: &FinalBookmark<'_>, revalidation: &Revalidation<'_>) {
    revalidation.until_first_change().await;
    let turn = async {
        tokio::select! {
            () = final_bookmark.turn() => {}
            () = revalidation.ended() => final_bookmark.whole_frame().await,
        }
    };
    // Boxed, because thousands of watches wait here.
    Box::pin(turn).await;
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
