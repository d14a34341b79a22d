//! What a long-running request stands on: the certificate of its client, and those of its connection upstream.
//!
//! Short requests are judged anew each time. One that goes on for hours is looked at again whenever certificate files
//! have changed, and when the client's certificate expires. If it would not be let in any more, or its connection could
//! not be made any more, it ends: at a random moment of `shutdown.drain`, so that not all clients come back at once. What
//! only got a new certificate or CA beside the old one stays.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::forward::Side;
use super::shared::Shared;
use crate::request::who::{Caller, Connection};
use crate::tls::credentials::Trust;
use crate::trouble::Pace;

/// Between two looks at the clock at most: it may be set.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// What a request stands on.
pub struct Standing<'a> {
    /// Shared state.
    pub shared: &'a Shared,
    /// The client's connection.
    pub connection: &'a Connection,
    /// Who asked, as it was judged at the beginning.
    pub caller: &'a Caller,
    /// What the connection upstream was made with.
    pub trust: &'a Trust,
    /// Whether the proxy client certificate was presented.
    pub presented: bool,
    /// To whom.
    pub side: Side,
}

impl Standing<'_> {
    /// Resolves when it stands on nothing any more, and its turn to end has come.
    pub async fn lost(&self) {
        let mut rotated = self.shared.rotated.subscribe();
        if self.holds() {
            self.until_a_change(&mut rotated).await;
        }
        loop {
            self.shared.a_turn().await;
            // The look is of this moment; a file that was put back meanwhile ends nothing.
            rotated.mark_unchanged();
            if !self.holds() {
                static PACE: Pace = Pace::new();
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
                // An error says that the process is ending.
                changed = rotated.changed() => match changed {
                    Ok(()) => return,
                    Err(_) => return std::future::pending().await,
                },
                () = tokio::time::sleep(left.min(LONGEST_REST)) => if left <= LONGEST_REST {
                    return;
                },
            }
        }
    }

    /// Until the client's certificate has expired; very long, if it does not matter.
    fn left(&self) -> Duration {
        let matters = matches!(self.caller, Caller::Peer | Caller::User(_));
        let end = self.connection.valid_until().filter(|_| matters);
        let Some(end) = end else {
            return Duration::MAX;
        };
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end.saturating_add(1));
        let left = end.duration_since(SystemTime::now());
        // Not over and over, whatever else keeps it.
        left.unwrap_or(LONGEST_REST).max(Duration::from_secs(1))
    }

    fn holds(&self) -> bool {
        self.is_let_in() && self.is_connected()
    }

    /// Whether the certificate that let it in still would; tokens are the apiserver's to judge.
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
        let now = match self.side {
            Side::Local => &credentials.local,
            Side::Peer | Side::Native => &credentials.peers,
        };
        now.covers(self.trust, self.presented)
    }
}
