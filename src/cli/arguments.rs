//! The command line, as clap reads it. A test makes the manual page and the completions of shells from it, which the Debian
//! package has.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use super::CONFIG_FILE;
use super::check::CheckArguments;
use super::forget::ForgetArguments;
use super::install::{InstallArguments, UninstallArguments};
use super::status::StatusArguments;

/// What `version` and `--version` say after the program's name.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("KUBE_INTEROP_PROXY_COMMIT"),
    ")"
);

/// Sidecar reverse proxy that keeps kube-apiserver's answers right while the servers of a cluster differ.
#[derive(Parser)]
#[command(name = "kube-interop-proxy", version = VERSION, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the proxy until SIGTERM or SIGINT.
    Run {
        /// Configuration file (YAML).
        #[arg(long, value_name = "FILE", default_value = CONFIG_FILE)]
        config: PathBuf,
        /// Form of the log lines on stderr. What is logged is chosen with logging.filter in the configuration, or with
        /// RUST_LOG; access lines have the target `access`.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
    /// Print every problem of a configuration file; exit 1 if there is any.
    Check(CheckArguments),
    /// Show the state of a running proxy and of its peers; exit 0 if it is ready, else 1.
    Status(StatusArguments),
    /// Drop what is known of a server that will not come back: what only it served is then a 404, not a 503.
    Forget(ForgetArguments),
    /// Put the proxy in front of this node's kube-apiserver: shows the changes, asks, waits until both are ready and
    /// other servers see the proxy, and restores everything if they are not.
    Install(InstallArguments),
    /// Remove the proxy from this node, and keep everything else that was changed since.
    Uninstall(UninstallArguments),
    /// Print the version, and the commit that the program was built from.
    Version,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests;
