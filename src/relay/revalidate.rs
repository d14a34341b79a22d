//! Revalidates long-running requests: the certificate of the client and the credentials of the upstream connection.
//!
//! Each short request is checked when it arrives. A request that runs for hours is checked again when certificate files
//! change and when the client's certificate expires. If it would be refused now, or its upstream connection could not
//! be made now, it ends: at a random time within `shutdown.drain`, so that clients do not all reconnect at once. A
//! request continues when a certificate or CA was only added or renewed.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::shared::Shared;
use crate::log_throttle::LogRateLimit;
use crate::relay::route::ServerKind;
use crate::request::caller::{Caller, ClientConnection};
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
    /// Resolves when the request is no longer valid and its turn to end has come.
    pub async fn ended(&self) {
        let mut rotated = self.shared.rotated.subscribe();
        if self.is_valid() {
            self.until_a_change(&mut rotated).await;
        }
        // Boxed, because thousands of watches wait for it.
        Box::pin(self.end(rotated)).await;
    }

    /// Something has changed.
    async fn end(&self, mut rotated: watch::Receiver<()>) {
        loop {
            self.shared.random_drain_delay().await;
            // Changes before this check are covered by it. A file that was restored meanwhile ends nothing.
            rotated.mark_unchanged();
            if !self.is_valid() {
                static PACE: LogRateLimit = LogRateLimit::new();
                if let Some(left_out) = PACE.admit() {
                    tracing::info!(
                        client = ?self.connection.address,
                        left_out,
                        "a long-running request ends, its certificates count no more"
                    );
                }
                return;
            }
            self.until_a_change(&mut rotated).await;
        }
    }

    async fn until_a_change(&self, rotated: &mut watch::Receiver<()>) {
        loop {
            let left = self.left();
            tokio::select! {
                // The process is ending.
                changed = rotated.changed() => match changed {
                    Ok(()) => return,
                    Err(_) => return std::future::pending().await,
                },
                () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => if left <= LONGEST_SLEEP {
                    return;
                },
            }
        }
    }

    /// The time until the client's certificate expires; very long if that does not matter.
    fn left(&self) -> Duration {
        let matters = matches!(self.caller, Caller::Peer | Caller::User(_));
        let now = SystemTime::now();
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = seconds.unwrap_or_default().as_secs();
        let end = self.connection.valid_until(seconds).filter(|_| matters);
        let Some(end) = end else {
            return Duration::MAX;
        };
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end.saturating_add(1));
        let left = end.duration_since(now);
        // Limits the rate of checks.
        left.unwrap_or(LONGEST_SLEEP).max(Duration::from_secs(1))
    }

    fn is_valid(&self) -> bool {
        self.is_let_in() && self.is_connected()
    }

    /// Whether the client's certificate would still be accepted. Only apiservers can judge tokens.
    fn is_let_in(&self) -> bool {
        match self.caller {
            Caller::Peer | Caller::User(_) => {
                let now = SystemTime::now();
                let judge = self.shared.judge.load();
                judge.caller(self.connection, false, now) == *self.caller
            }
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => true,
        }
    }

    fn is_connected(&self) -> bool {
        let credentials = self.shared.credentials.load();
        let now = match self.server_kind {
            ServerKind::Local => &credentials.local,
            ServerKind::Peer | ServerKind::Native => &credentials.peers,
        };
        now.covers(self.trust, self.presented)
    }
}
