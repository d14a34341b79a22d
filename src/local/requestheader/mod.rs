//! Checks whether the local apiserver accepts the users that this proxy names in request headers, before `/readyz` is 200.
//!
//! The check runs when a process of the apiserver is initialized, or refuses `/readyz` to this proxy, and when certificate
//! files have changed. Until it succeeds it is repeated with backoff. [`run`] writes [`trust::HeaderTrust`];
//! [`check`](check::check) can be used by itself.

pub mod check;
pub mod findings;
pub mod trust;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use self::findings::TrustProblem;
use super::state::LocalState;
use crate::config::Config;
use crate::log_throttle::chain;
use crate::retry::Backoff;
use crate::tls::credentials::Current;

/// After a failed check.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(250),
    longest: Duration::from_secs(30),
    jitter: 0.5,
};

/// Runs until dropped, with the current credentials.
pub async fn run(config: Config, credentials: Current, state: Arc<LocalState>) {
    let mut changes = state.changes();
    // The epoch of the last successful check, if nothing changed since.
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
                next = Instant::now() + BACKOFF.random_pause(failures);
            }
            continue;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = state.trust().recheck_requested() => {
                (failures, good, next) = (0, None, Instant::now());
            }
            () = sleep_until(next), if due => {}
        }
    }
}

async fn is_good(config: &Config, credentials: &Current, state: &LocalState, epoch: u64) -> bool {
    let problems = match check::check(config, credentials.clone()).await {
        Ok(findings) => said(&findings),
        // A failed request does not revoke the trust of an earlier check.
        Err(_) if state.trust().is_trusted(epoch) => return false,
        Err(error) => format!("the apiserver cannot be asked: {}", chain(&error)),
    };
    let good = problems.is_empty();
    // A verdict on the process before a restart does not count.
    if state.epoch() == epoch {
        state.trust().set(epoch, problems);
    }
    good
}

fn said(findings: &[TrustProblem]) -> String {
    let said: Vec<_> = findings.iter().map(TrustProblem::to_string).collect();
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let longest: Vec<_> = (1..=9)
            .map(|failures| BACKOFF.pause(failures, 1.0))
            .collect();
        let millis = [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        assert_eq!(longest, millis.map(Duration::from_millis));
        assert_eq!(BACKOFF.pause(1, 0.0), Duration::from_millis(125));
        assert_eq!(BACKOFF.pause(u32::MAX, 0.0), Duration::from_secs(15));
    }
}
