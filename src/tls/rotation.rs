//! Certificate files that change while the program runs: they are read again, and used if they are good.
//!
//! The same for every group of files that are used together ([`Rotation`]). A new reading is made into what is used of it
//! before anything changes: while it cannot be, what was there before stays. Files are replaced one after the other, so
//! what does not fit together is looked at twice before anybody is told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval};

use super::expiry::{Reminder, Step};
use super::reading::{File, Reading};
use super::store::TlsError;
use crate::admin::metrics::Metrics;

const EVERY: Duration = Duration::from_secs(1);

type Make<T> = Box<dyn Fn(&Reading<'_>) -> Result<T, TlsError> + Send>;

/// Files that are used together.
pub struct Rotation<T> {
    group: &'static str,
    files: Vec<File>,
    make: Make<T>,
    /// What is in use.
    seen: u64,
    /// When the first certificate of each file in use expires.
    expirations: Vec<(&'static str, i64)>,
}

/// What a look at the files showed.
#[derive(Debug, PartialEq, Eq)]
enum Look<T, E> {
    /// What is in use.
    Same,
    /// Something new, and good.
    New(T),
    /// Something that cannot be used, for the first time: perhaps it is half of something.
    Doubtful,
    /// It still cannot be used.
    Broken(E),
    /// That was said already.
    StillBroken,
}

/// What became of earlier looks.
#[derive(Debug, Default)]
struct Memory {
    doubted: Option<u64>,
    broken: Option<u64>,
}

impl<T> Rotation<T> {
    /// Reads the files for the first time. `group` is their name for the operator; `make`: what is used of them.
    pub fn begin(
        group: &'static str,
        files: Vec<File>,
        make: impl Fn(&Reading<'_>) -> Result<T, TlsError> + Send + 'static,
    ) -> Result<(T, Self), TlsError> {
        let reading = Reading::of(&files);
        let made = make(&reading)?;
        let seen = reading.fingerprint();
        let expirations = reading.expirations().collect();
        let rotation = Self {
            group,
            files,
            make: Box::new(make),
            seen,
            expirations,
        };
        Ok((made, rotation))
    }

    /// Looks again and again; `apply` takes what is new.
    pub async fn run(mut self, metrics: Arc<Metrics>, mut apply: impl FnMut(T)) {
        let metrics = &metrics.certificates;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut memory, mut reminder) = (Memory::default(), Reminder::default());
        metrics.in_use(self.group, false, &self.expirations);
        loop {
            self.remind(&mut reminder);
            ticks.tick().await;
            let was_broken = memory.broken.is_some();
            match self.look(&mut memory) {
                Look::Same if was_broken => {
                    tracing::info!(files = self.group, "certificate files are as before");
                    metrics.broken(self.group, false);
                }
                Look::Same | Look::Doubtful | Look::StillBroken => {}
                Look::New(new) => {
                    apply(new);
                    tracing::info!(files = self.group, "new certificate files are in use");
                    metrics.in_use(self.group, true, &self.expirations);
                }
                Look::Broken(error) => {
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

    fn look(&mut self, memory: &mut Memory) -> Look<T, TlsError> {
        let reading = Reading::of(&self.files);
        let now = reading.fingerprint();
        if now == self.seen {
            *memory = Memory::default();
            return Look::Same;
        }
        if memory.broken == Some(now) {
            return Look::StillBroken;
        }
        match (self.make)(&reading) {
            Ok(new) => {
                self.expirations = reading.expirations().collect();
                self.seen = now;
                *memory = Memory::default();
                Look::New(new)
            }
            Err(_) if memory.doubted != Some(now) => {
                memory.doubted = Some(now);
                Look::Doubtful
            }
            Err(error) => {
                memory.broken = Some(now);
                Look::Broken(error)
            }
        }
    }

    /// Says what expires soon.
    fn remind(&self, reminder: &mut Reminder) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        for (key, end) in &self.expirations {
            let left = end.saturating_sub(now);
            match reminder.step(key, left) {
                None => {}
                Some(Step::Expired) => tracing::error!(file = key, "a certificate has expired"),
                Some(_) => {
                    let hours = left / 3600;
                    tracing::warn!(file = key, hours, "a certificate will expire soon");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
