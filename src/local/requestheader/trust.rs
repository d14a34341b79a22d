//! The result of the last check. Written by [`super::run`], read by the readiness of both ports.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

/// Whether the local apiserver accepts the users that this proxy names, as the last check found.
#[derive(Debug, Default)]
pub struct HeaderTrust {
    last: ArcSwapOption<Checked>,
    recheck: Notify,
}

#[derive(Debug, PartialEq, Eq)]
struct Checked {
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
        let checked = self.last.load();
        checked
            .as_deref()
            .is_some_and(|checked| checked.epoch == epoch && checked.problems.is_empty())
    }

    /// Why not; `None` if it does.
    pub fn problems(&self, epoch: u64) -> Option<String> {
        match self.last.load().as_deref() {
            Some(checked) if checked.epoch == epoch => {
                Some(checked.problems.clone()).filter(|problems| !problems.is_empty())
            }
            _ => Some("the apiserver was not asked yet whether it believes this proxy".to_owned()),
        }
    }

    /// Certificates have changed: check again. The last result stays until then.
    pub fn recheck(&self) {
        self.recheck.notify_one();
    }

    pub(super) fn set(&self, epoch: u64, problems: String, warnings: String) {
        let checked = Checked {
            epoch,
            problems,
            warnings,
        };
        let before = self.last.load();
        let before = before.as_deref();
        if before == Some(&checked) {
            return;
        }
        if before
            .is_none_or(|before| (before.epoch, &before.problems) != (epoch, &checked.problems))
        {
            log_problems(&checked.problems);
        }
        if !checked.warnings.is_empty()
            && before.is_none_or(|before| before.warnings != checked.warnings)
        {
            let differs = &checked.warnings;
            tracing::warn!(differs, "apiservers may recognise users by other headers");
        }
        self.last.store(Some(Arc::new(checked)));
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
