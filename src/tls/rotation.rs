//! Certificate files that change while the program runs: they are read again, and used if they are good.

use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::time::{MissedTickBehavior, interval};

use super::store::TlsError;

const EVERY: Duration = Duration::from_secs(1);

/// Files that are used together.
pub struct Rotation<Apply> {
    /// What they are for, in the log.
    pub what: &'static str,
    /// The files.
    pub files: Vec<PathBuf>,
    /// Reads them again and uses them; on an error what was used before stays.
    pub apply: Apply,
    /// 1 while they are not good.
    pub broken: IntGauge,
}

impl<Apply: FnMut() -> Result<(), TlsError>> Rotation<Apply> {
    /// Looks again and again. What is in the files now is in use already.
    pub async fn run(mut self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = self.contents();
        loop {
            ticks.tick().await;
            let now = self.contents();
            if now == seen {
                continue;
            }
            seen = now;
            match (self.apply)() {
                Ok(()) => {
                    tracing::info!(what = self.what, "certificate files are read again");
                    self.broken.set(0);
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(
                        what = self.what,
                        error,
                        "new certificate files cannot be used"
                    );
                    self.broken.set(1);
                }
            }
        }
    }

    /// Stands for what is in the files. A file that is not there at this moment is one that changed.
    fn contents(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for file in &self.files {
            let content = std::fs::read(file).ok();
            hasher.write_usize(content.as_ref().map_or(0, |content| content.len() + 1));
            hasher.write(&content.unwrap_or_default());
        }
        hasher.finish()
    }
}
