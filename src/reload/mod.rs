//! Reads the configuration file again while the proxy runs, when its contents change.
//!
//! [`Contents`] decides what becomes of what was read. The only writer of [`SharedSettings`].
//!
//! The file is used only if two readings, a second apart, are the same: then it is taken that nobody is writing it. So an
//! editor and a ConfigMap's symbolic links need no special care. A file that is wrong, or is gone, changes nothing.
//! Certificates are not looked at: they have their own rotation. Keys that are not read again ([`is_reloaded`]) take effect
//! at the next start; that is said, and does not keep the others from taking effect: whoever switches something off in an
//! emergency need not take back other changes first.

pub mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use metrics::ReloadMetrics;

use crate::config::contents::{Check, Contents};
use crate::config::settings::{SharedSettings, changes, is_reloaded, waiting};
use crate::config::{self, EffectiveValues, LoadedConfig, Problem, joined};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Problems that are named in the log and on the status page.
const NAMED_PROBLEMS: usize = 10;
const FILTER: &str = "logging.filter";

/// Replaces the filter of log lines.
pub type LogFilter = Box<dyn Fn(&str) + Send>;

/// What the program was started with.
pub struct ReloadInputs {
    pub path: PathBuf,
    pub loaded: LoadedConfig,
    /// `None`: `RUST_LOG` decides, not the file.
    pub log_filter: Option<LogFilter>,
}

/// Spawns the task that reads the file. A pipe, as from a shell, is never read again.
pub fn start(
    mut inputs: ReloadInputs,
    settings: Arc<SharedSettings>,
    metrics: Arc<ReloadMetrics>,
    control: &mut JoinSet<()>,
) {
    if !inputs.path.is_file() {
        tracing::info!("the configuration is not a file, and is not read again");
        return;
    }
    let reloader = Reloader {
        contents: Contents::new(Ok(std::mem::take(&mut inputs.loaded.text))),
        values: inputs.loaded.values.clone(),
        inputs,
        settings,
        metrics,
    };
    control.spawn(reloader.run());
}

struct Reloader {
    inputs: ReloadInputs,
    contents: Contents<Result<String, Vec<Problem>>>,
    /// Of the file in use.
    values: EffectiveValues,
    settings: Arc<SharedSettings>,
    metrics: Arc<ReloadMetrics>,
}

impl Reloader {
    /// Runs until dropped.
    async fn run(mut self) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.metrics.in_use(&self.values, Vec::new());
        loop {
            ticks.tick().await;
            self.check();
        }
    }

    fn check(&mut self) {
        let path = &self.inputs.path;
        let found = config::read_again(path);
        let parse = |found: &Result<String, _>| config::parse_at(path, found.clone()?);
        match self.contents.check(found, parse) {
            Check::NothingNew => {}
            Check::New(loaded) => self.apply(loaded),
            Check::Failed(problems) => self.complain(&problems),
            Check::Restored => {
                self.metrics.restored();
                tracing::info!("the previous configuration file is back");
            }
        }
    }

    fn apply(&mut self, loaded: LoadedConfig) {
        let LoadedConfig { config, values, .. } = loaded;
        self.settings.store(&config);
        if let Some(set) = &self.inputs.log_filter {
            set(&config.logging.filter);
        }
        let changed = changes(&self.values, &values);
        let changed = changed.iter().filter(|(key, _)| is_reloaded(key));
        let changed = changed.map(|(key, change)| match (*key, &self.inputs.log_filter) {
            (FILTER, None) => format!("{change} (RUST_LOG is set and counts instead)"),
            _ => change.clone(),
        });
        let changed = joined(changed, "; ");
        let waiting = waiting(&self.inputs.loaded.values, &values);
        match waiting.join("; ").as_str() {
            "" => tracing::info!(changed, "the configuration file was read again"),
            needs_restart => tracing::warn!(
                changed,
                needs_restart,
                "the configuration file was read again, some keys take effect at the next start"
            ),
        }
        self.metrics.applied();
        self.metrics.in_use(&values, waiting);
        self.values = values;
    }

    fn complain(&self, problems: &[Problem]) {
        let named = problems.iter().take(NAMED_PROBLEMS);
        let mut named: Vec<String> = named.map(ToString::to_string).collect();
        if problems.len() > NAMED_PROBLEMS {
            named.push(format!("and {} more", problems.len() - NAMED_PROBLEMS));
        }
        let problems = named.join("; ");
        tracing::error!(
            problems,
            "the configuration file cannot be used, the previous one stays in use"
        );
        self.metrics.failed(named);
    }
}
