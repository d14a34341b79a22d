//! Commands for operators of a running cluster.
//!
//! Each command has a pure part, which makes text or decides, and a thin part that reads the admin port or etcd, with a time
//! limit of 5 s. Other programs write to etcd too, so values from there are printed through `text::plain` only.

pub mod arguments;
pub mod check;
pub mod doctor;
pub mod forget;
pub mod install;
pub mod status;
pub mod terminal;

mod addresses;
mod etcd;
mod fetch;
mod text;
mod wait;

use std::process::ExitCode;
use std::time::Duration;

/// Where `install` writes the configuration.
const CONFIG_FILE: &str = "/etc/kubernetes/kube-interop-proxy/proxy.yaml";
/// Exit code of bad usage or configuration (EX_USAGE of sysexits.h).
pub const USAGE: u8 = 64;
/// Time limit for a response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of a command that has ended well or not, or that says why it failed.
pub fn exit_code(ended: Result<bool, String>) -> ExitCode {
    match ended.map_err(terminal::complain) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(()) => ExitCode::FAILURE,
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
