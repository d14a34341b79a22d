//! Whether the apiserver beside us takes this proxy's word about users: checked before `/readyz` says yes.
//!
//! Checked when a process of the apiserver is initialized, or does not let us know whether it is, and when certificate
//! files have changed; until it is good, again and again after pauses that double. [`Belief`] is written by [`run`] and read by the readiness of both ports;
//! [`check`](check::check) is for anybody who wants to know.

pub mod check;
pub mod findings;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use self::findings::Finding;
use super::state::LocalState;
use crate::config::Config;
use crate::tls::credentials::Current;
use crate::trouble::chain;

/// The first pause after a check that was not good; doubles with each, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is known of it.
#[derive(Debug, Default)]
pub struct Belief {
    verdict: ArcSwapOption<Verdict>,
    reconsider: Notify,
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    /// Of the apiserver process that it is about.
    epoch: u64,
    /// What is in the way; empty: nothing.
    doubts: String,
}

impl Belief {
    /// Whether the process of this epoch is known to believe us.
    pub fn is_given(&self, epoch: u64) -> bool {
        let verdict = self.verdict.load();
        verdict
            .as_deref()
            .is_some_and(|verdict| verdict.epoch == epoch && verdict.doubts.is_empty())
    }

    /// Why it is not known to; `None` if it is.
    pub fn doubts(&self, epoch: u64) -> Option<String> {
        match self.verdict.load().as_deref() {
            Some(verdict) if verdict.epoch == epoch => {
                Some(verdict.doubts.clone()).filter(|doubts| !doubts.is_empty())
            }
            _ => Some("the apiserver was not asked yet whether it believes this proxy".to_owned()),
        }
    }

    /// What it is judged by has changed. What was known counts until it is known better.
    pub fn reconsider(&self) {
        self.reconsider.notify_one();
    }

    fn judge(&self, epoch: u64, doubts: String) {
        let verdict = Verdict { epoch, doubts };
        if self.verdict.load().as_deref() == Some(&verdict) {
            return;
        }
        match verdict.doubts.as_str() {
            "" => tracing::info!("the apiserver believes what this proxy says about users"),
            doubts => tracing::error!(doubts, "the apiserver may not believe this proxy"),
        }
        self.verdict.store(Some(Arc::new(verdict)));
    }
}

/// Checks for as long as it is polled, with the credentials of the moment.
pub async fn run(config: Config, credentials: Current, state: Arc<LocalState>) {
    let mut changes = state.changes();
    // Of the last check that was good, as long as nothing changed since.
    let mut good = None;
    let (mut failures, mut asked_in, mut next) = (0, state.epoch(), Instant::now());
    loop {
        changes.mark_unchanged();
        let epoch = state.epoch();
        if epoch != asked_in {
            (failures, asked_in, next) = (0, epoch, Instant::now());
        }
        let due = state.can_be_asked() && good != Some(epoch);
        if due && next <= Instant::now() {
            if is_good(&config, &credentials, &state, epoch).await {
                good = Some(epoch);
            } else {
                failures += 1;
                next = Instant::now() + pause(failures, rand::thread_rng().r#gen());
            }
            continue;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = state.belief().reconsider.notified() => {
                (failures, good, next) = (0, None, Instant::now());
            }
            () = sleep_until(next), if due => {}
        }
    }
}

async fn is_good(config: &Config, credentials: &Current, state: &LocalState, epoch: u64) -> bool {
    let doubts = match check::check(config, credentials.clone()).await {
        Ok(findings) => said(&findings),
        // Says nothing about an apiserver that was found to believe us.
        Err(_) if state.belief().is_given(epoch) => return false,
        Err(error) => format!("the apiserver cannot be asked: {}", chain(&error)),
    };
    let good = doubts.is_empty();
    // Whatever was said before a restart says nothing of what is there now.
    if state.epoch() == epoch {
        state.belief().judge(epoch, doubts);
    }
    good
}

fn said(findings: &[Finding]) -> String {
    let said: Vec<_> = findings.iter().map(Finding::to_string).collect();
    said.join("; ")
}

/// Between half of the full pause and all of it, so that all proxies of a cluster do not ask at once.
fn pause(failures: u32, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let full = (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE);
    full.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_of_a_process_that_was_not_asked() {
        let belief = Belief::default();
        assert!(!belief.is_given(0) && belief.doubts(0).is_some());
        belief.judge(0, String::new());
        assert!(belief.is_given(0) && belief.doubts(0).is_none());
        assert!(!belief.is_given(1) && belief.doubts(1).is_some());
        belief.judge(1, "another name".to_owned());
        assert!(!belief.is_given(1));
        assert_eq!(belief.doubts(1).as_deref(), Some("another name"));
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let longest: Vec<_> = (1..=9).map(|failures| pause(failures, 1.0)).collect();
        let millis = [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        assert_eq!(longest, millis.map(Duration::from_millis));
        assert_eq!(pause(1, 0.0), Duration::from_millis(125));
        assert_eq!(pause(u32::MAX, 0.0), Duration::from_secs(15));
    }
}
