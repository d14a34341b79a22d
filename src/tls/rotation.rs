//! Reads certificate files again when they change, and puts them into use if they are valid.
//!
//! Each group of files that are used together is a [`Rotation`]. New files take effect only once they are valid as a group;
//! until then the files before stay in use. Files are replaced one after the other, so a failure is reported only if the
//! next check finds the same contents.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval};

use super::error::TlsError;
use super::expiry::{ExpiryStage, Reminder};
use super::files::{FileSnapshot, Key, TlsFile};
use super::metrics::CertificateMetrics;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

type Make<T> = Box<dyn Fn(&FileSnapshot<'_>) -> Result<T, TlsError> + Send>;

pub struct Rotation<T> {
    group: &'static str,
    files: Vec<TlsFile>,
    make: Make<T>,
    /// Of the files in use.
    fingerprint: u64,
    /// When the first certificate of each file in use expires, in Unix seconds, by configuration key.
    expirations: Vec<(Key, i64)>,
}

#[derive(Debug, PartialEq, Eq)]
enum CheckOutcome<T, E> {
    /// The files are those in use.
    Unchanged,
    /// New and valid files.
    New(T),
    /// These contents failed for the first time: perhaps not all files are replaced yet.
    FirstFailure,
    /// They failed again.
    Failed(E),
    /// They keep failing; that was reported.
    StillFailing,
}

/// Fingerprints of contents that failed in earlier checks.
#[derive(Debug, Default)]
struct FailureHistory {
    failed_once: Option<u64>,
    reported: Option<u64>,
}

impl<T> Rotation<T> {
    /// Reads the files for the first time. `group` is their name in logs and metrics; `make` makes of them what is put into
    /// use.
    pub fn begin(
        group: &'static str,
        files: Vec<TlsFile>,
        make: impl Fn(&FileSnapshot<'_>) -> Result<T, TlsError> + Send + 'static,
    ) -> Result<(T, Self), TlsError> {
        let reading = FileSnapshot::read(&files);
        let made = make(&reading)?;
        let fingerprint = reading.fingerprint();
        let expirations = reading.expirations().collect();
        let rotation = Self {
            group,
            files,
            make: Box::new(make),
            fingerprint,
            expirations,
        };
        Ok((made, rotation))
    }

    /// Checks the files until dropped; `apply` gets new ones.
    pub async fn run(mut self, metrics: Arc<CertificateMetrics>, mut apply: impl FnMut(T)) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut history, mut reminder) = (FailureHistory::default(), Reminder::default());
        metrics.in_use(self.group, false, &self.expirations);
        loop {
            self.remind(&mut reminder);
            ticks.tick().await;
            let was_broken = history.reported.is_some();
            match self.check(&mut history) {
                CheckOutcome::Unchanged if was_broken => {
                    tracing::info!(files = self.group, "certificate files are as before");
                    metrics.broken(self.group, false);
                }
                CheckOutcome::Unchanged
                | CheckOutcome::FirstFailure
                | CheckOutcome::StillFailing => {}
                CheckOutcome::New(new) => {
                    apply(new);
                    tracing::info!(files = self.group, "new certificate files are in use");
                    metrics.in_use(self.group, true, &self.expirations);
                }
                CheckOutcome::Failed(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(
                        files = self.group,
                        error,
                        "new certificate files cannot be used, those before stay in use"
                    );
                    metrics.broken(self.group, true);
                }
            }
        }
    }

    fn check(&mut self, history: &mut FailureHistory) -> CheckOutcome<T, TlsError> {
        let reading = FileSnapshot::read(&self.files);
        let now = reading.fingerprint();
        if now == self.fingerprint {
            *history = FailureHistory::default();
            return CheckOutcome::Unchanged;
        }
        if history.reported == Some(now) {
            return CheckOutcome::StillFailing;
        }
        match (self.make)(&reading) {
            Ok(new) => {
                self.expirations = reading.expirations().collect();
                self.fingerprint = now;
                *history = FailureHistory::default();
                CheckOutcome::New(new)
            }
            Err(_) if history.failed_once != Some(now) => {
                history.failed_once = Some(now);
                CheckOutcome::FirstFailure
            }
            Err(error) => {
                history.reported = Some(now);
                CheckOutcome::Failed(error)
            }
        }
    }

    /// Logs certificates that expire soon.
    fn remind(&self, reminder: &mut Reminder) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        for (key, end) in &self.expirations {
            let left = end.saturating_sub(now);
            match reminder.advance(key, left) {
                None => {}
                Some(ExpiryStage::Expired) => {
                    tracing::error!(file = &**key, "a certificate has expired")
                }
                Some(_) => {
                    let hours = left / 3600;
                    tracing::warn!(file = &**key, hours, "a certificate will expire soon");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
