//! Checks whether the local apiserver accepts the users that this proxy names in request headers, before `/readyz` is 200.
//!
//! The check runs when a process of the apiserver is initialized, or refuses `/readyz` to this proxy, and when certificate
//! files have changed. Until it succeeds without warnings it is repeated with backoff, and from time to time while etcd
//! does not tell which names apiservers publish. [`run`] writes the result into [`LocalState`]; [`check`](check::check) can
//! be used by itself; [`names`] gives requests the names that the configuration lacks.

pub mod check;
pub mod findings;
pub mod names;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::check::CheckError;
use self::findings::TrustReport;
use self::names::{NameCollector, NamesInEtcd};
use super::state::LocalState;
use crate::config::Config;
use crate::log_throttle::chain;
use crate::retry::{Backoff, jittered, sleep_until};
use crate::tls::credentials::Current;

/// After a failed check.
const BACKOFF: Backoff = Backoff::between(Duration::from_millis(250), Duration::from_secs(30));

/// Between two readings of the names while etcd does not tell them.
const REREAD: Duration = Duration::from_secs(60);

/// Runs until dropped, with the current credentials.
pub async fn run(config: Config, credentials: Current, etcd: NamesInEtcd, state: Arc<LocalState>) {
    let names = &config.serving.request_headers;
    let mut names = NameCollector::new(names, etcd, state.clone());
    let mut changes = state.changes();
    // `None`: nothing is left to do, if nothing changes.
    let (mut failures, mut asked_in, mut next) = (0, state.epoch(), Some(Instant::now()));
    loop {
        changes.mark_unchanged();
        let epoch = state.epoch();
        if epoch != asked_in {
            (failures, asked_in, next) = (0, epoch, Some(Instant::now()));
        }
        let due = next.filter(|_| state.can_be_asked());
        if due.is_some_and(|due| due <= Instant::now()) {
            let report = tokio::select! {
                report = check::check(&config, credentials.clone()) => report,
                never = names.follow_etcd() => match never {},
            };
            if let Some(read) = report.as_ref().ok().and_then(|it| it.names.as_ref()) {
                names.add(read);
            }
            next = if !is_good(&state, epoch, report) {
                failures += 1;
                Some(Instant::now() + BACKOFF.random_pause(failures))
            } else if names.etcd_tells() {
                None
            } else {
                Some(Instant::now() + jittered(REREAD))
            };
            continue;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = state.trust_outdated.notified() => (failures, next) = (0, Some(Instant::now())),
            () = sleep_until(due) => {}
            never = names.follow_etcd() => match never {},
        }
    }
}

/// Whether there is nothing to say against the process of `epoch`, and no warning.
fn is_good(state: &LocalState, epoch: u64, report: Result<TrustReport, CheckError>) -> bool {
    let (problems, warnings) = match report {
        Ok(report) => (report.problems.join("; "), report.warnings.join("; ")),
        // A failed request does not revoke the trust of an earlier check.
        Err(_) if state.trusts_proxy() => return false,
        Err(error) => {
            let problem = format!("the apiserver cannot be asked: {}", chain(&error));
            (problem, String::new())
        }
    };
    let good = problems.is_empty() && warnings.is_empty();
    // A result for the process before a restart does not count.
    if state.epoch() == epoch {
        state.set_trust(epoch, problems, warnings);
    }
    good
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
