//! The verdict of the last check. Written by [`super::run`], read by the readiness of both ports.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

/// Whether the local apiserver accepts the users that this proxy names, as the last check found.
#[derive(Debug, Default)]
pub struct HeaderTrust {
    verdict: ArcSwapOption<Verdict>,
    recheck: Notify,
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    /// Of the apiserver process that was checked.
    epoch: u64,
    /// Why it does not accept them; empty if it does.
    problems: String,
    /// What the ConfigMap says else than the configuration; may be empty.
    warnings: String,
}

impl HeaderTrust {
    /// Whether the process of this epoch is known to accept the users that this proxy names.
    pub fn is_trusted(&self, epoch: u64) -> bool {
        let verdict = self.verdict.load();
        verdict
            .as_deref()
            .is_some_and(|verdict| verdict.epoch == epoch && verdict.problems.is_empty())
    }

    /// Why not; `None` if it does.
    pub fn problems(&self, epoch: u64) -> Option<String> {
        match self.verdict.load().as_deref() {
            Some(verdict) if verdict.epoch == epoch => {
                Some(verdict.problems.clone()).filter(|problems| !problems.is_empty())
            }
            _ => Some("the apiserver was not asked yet whether it believes this proxy".to_owned()),
        }
    }

    /// Certificates have changed: check again. The last verdict stays until then.
    pub fn recheck(&self) {
        self.recheck.notify_one();
    }

    pub(super) fn set(&self, epoch: u64, problems: String, warnings: String) {
        let verdict = Verdict {
            epoch,
            problems,
            warnings,
        };
        let before = self.verdict.load();
        let before = before.as_deref();
        if before == Some(&verdict) {
            return;
        }
        if before
            .is_none_or(|before| (before.epoch, &before.problems) != (epoch, &verdict.problems))
        {
            log_problems(&verdict.problems);
        }
        if !verdict.warnings.is_empty()
            && before.is_none_or(|before| before.warnings != verdict.warnings)
        {
            let differs = &verdict.warnings;
            tracing::warn!(differs, "apiservers may recognise users by other headers");
        }
        self.verdict.store(Some(Arc::new(verdict)));
    }

    /// Resolves when [`HeaderTrust::recheck`] was called. One waiter.
    pub(super) async fn recheck_requested(&self) {
        self.recheck.notified().await;
    }
}

fn log_problems(problems: &str) {
    match problems {
        "" => tracing::info!("the apiserver believes what this proxy says about users"),
        problems => tracing::error!(
            doubts = problems,
            "the apiserver may not believe this proxy"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_of_a_process_that_was_not_asked() {
        let trust = HeaderTrust::default();
        assert!(!trust.is_trusted(0) && trust.problems(0).is_some());
        trust.set(0, String::new(), "more names".to_owned());
        assert!(trust.is_trusted(0) && trust.problems(0).is_none());
        assert!(!trust.is_trusted(1) && trust.problems(1).is_some());
        trust.set(1, "another name".to_owned(), String::new());
        assert!(!trust.is_trusted(1));
        assert_eq!(trust.problems(1).as_deref(), Some("another name"));
    }
}
