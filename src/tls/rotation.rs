//! Reads certificate files again when they change, and puts them into use if they are valid.
//!
//! Each group of files that are used together is a [`Rotation`]. New files take effect only once they are valid as a group;
//! until then the files before stay in use. Files are replaced one after the other, so they are looked at once two readings
//! have found the same contents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval};

use super::error::TlsError;
use super::files::{FileSnapshot, Key, TlsFile};
use super::metrics::CertificateMetrics;
use crate::config::contents::{Check, Contents};
use crate::log_throttle::chain;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

type Make<T> = Box<dyn Fn(&FileSnapshot<'_>) -> Result<T, TlsError> + Send>;

pub struct Rotation<T> {
    group: &'static str,
    files: Vec<TlsFile>,
    make: Make<T>,
    /// Of the files' contents.
    fingerprint: Contents<u64>,
    /// When the first certificate of each file in use expires, in Unix seconds, by configuration key.
    expirations: Vec<(Key, i64)>,
    /// The last [`stage`] that was reported of each.
    reminded: BTreeMap<Key, usize>,
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
        let rotation = Self {
            group,
            fingerprint: Contents::new(reading.fingerprint()),
            expirations: reading.expirations().collect(),
            files,
            make: Box::new(make),
            reminded: BTreeMap::new(),
        };
        Ok((made, rotation))
    }

    /// Checks the files until dropped; `apply` gets new ones.
    pub async fn run(mut self, metrics: Arc<CertificateMetrics>, mut apply: impl FnMut(T)) {
        let group = self.group;
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        metrics.in_use(group, false, &self.expirations);
        loop {
            self.remind();
            ticks.tick().await;
            match self.check() {
                Check::NothingNew => {}
                Check::Restored => {
                    tracing::info!(files = group, "the previous certificate files are back");
                    metrics.set_broken(group, false);
                }
                Check::New(new) => {
                    apply(new);
                    tracing::info!(files = group, "new certificate files are in use");
                    metrics.in_use(group, true, &self.expirations);
                }
                Check::Failed(error) => {
                    let error = chain(&error);
                    tracing::error!(
                        files = group,
                        error,
                        "new certificate files cannot be used, the previous ones stay in use"
                    );
                    metrics.set_broken(group, true);
                }
            }
        }
    }

    fn check(&mut self) -> Check<T, TlsError> {
        let reading = FileSnapshot::read(&self.files);
        let make = |_: &u64| {
            let new = (self.make)(&reading)?;
            self.expirations = reading.expirations().collect();
            Ok(new)
        };
        self.fingerprint.check(reading.fingerprint(), make)
    }

    /// Logs certificates that expire soon; a renewed one starts again.
    fn remind(&mut self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        for (key, end) in &self.expirations {
            let left = end.saturating_sub(now);
            let reached = stage(left);
            if self.reminded.insert(key.clone(), reached).unwrap_or(0) >= reached {
                continue;
            }
            match left {
                ..=0 => tracing::error!(file = &**key, "a certificate has expired"),
                _ => {
                    let hours = left / 3600;
                    tracing::warn!(file = &**key, hours, "a certificate will expire soon");
                }
            }
        }
    }
}

/// How near the end of a certificate is that is valid for `left` seconds: 0 for more than 30 days, then a stage more at 30
/// days, at 7, at 1, and when it has expired. Each stage is reported once.
pub fn stage(left: i64) -> usize {
    const DAY: i64 = 24 * 60 * 60;
    let ends = [30 * DAY, 7 * DAY, DAY, 0];
    ends.iter().filter(|end| left <= **end).count()
}

#[cfg(test)]
mod tests;
