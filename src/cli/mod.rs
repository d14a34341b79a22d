//! Commands for operators of a running cluster.
//!
//! Each command has a pure part, which makes text or decides, and a thin part that reads the admin port or etcd, with a time
//! limit of 5 s. Other programs write to etcd too, so values from there are printed through `text::plain` only.

pub mod arguments;
pub mod doctor;
pub mod forget;
pub mod status;
pub mod terminal;

mod fetch;
mod text;

use std::time::Duration;

/// Time limit for a response.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Good,
    /// The command failed, or what it shows is a failure.
    Bad,
    /// Wrong usage.
    Usage,
}

impl Ending {
    /// Of a command that has `ended` well or not, or that says why it failed.
    fn of(ended: Result<bool, String>) -> Self {
        match ended {
            Ok(true) => Self::Good,
            Ok(false) => Self::Bad,
            Err(why) => {
                terminal::complain(why);
                Self::Bad
            }
        }
    }
}

/// Runs what a command asks of servers.
fn block_on<T>(asking: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let answer = runtime.block_on(asking);
    // Does not wait for a DNS lookup that still runs.
    runtime.shutdown_background();
    answer
}
