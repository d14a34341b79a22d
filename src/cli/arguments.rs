//! The command line, as clap reads it. A test makes the manual page and the completions of shells from it, which the Debian
//! package has.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use super::check::FindingsFormat;
use super::install::{InstallArguments, UninstallArguments};
use super::status::OutputFormat;
use super::{forget, status};

/// Where `install` writes the configuration.
pub const CONFIG_FILE: &str = "/etc/kubernetes/kube-interop-proxy/proxy.yaml";
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
    Check {
        /// Configuration file (YAML).
        #[arg(long, value_name = "FILE", default_value = CONFIG_FILE)]
        config: PathBuf,
        /// Look at what the file names, too: etcd, the kube-apiserver, peers, certificates, clocks. One line each with
        /// what to do; exit 1 if there is any problem. Changes nothing.
        #[arg(long)]
        live: bool,
        /// Look at a kubeadm node before the proxy is installed: what `install kubeadm` makes of kube-apiserver's manifest,
        /// what it names, kubelet, the container runtime, and what holds the ports. Changes nothing, and reads no
        /// configuration file.
        #[arg(long, conflicts_with_all = ["live", "config"])]
        pre: bool,
        /// What to print.
        #[arg(short, long, value_enum, default_value_t = FindingsFormat::Text)]
        output: FindingsFormat,
    },
    /// Show what a running proxy says of itself and of its peers; exit 0 if it is ready, else 1.
    Status {
        /// Its admin port (admin.bindAddress).
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6450", value_parser = status::address)]
        admin: String,
        /// What to show.
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
        /// Show nothing, but wait until this server and --peers others serve, everything is known of them, and nothing
        /// has to be refused: then the next node may be stopped.
        #[arg(long, requires = "peers", conflicts_with = "output")]
        wait: bool,
        /// How many other servers there must be, at least.
        #[arg(long, value_name = "N", requires = "wait")]
        peers: Option<usize>,
        /// How long to wait; exit 1 then.
        #[arg(long, value_name = "DURATION", requires = "wait", default_value = "5m", value_parser = status::timeout)]
        timeout: Duration,
    },
    /// Drop what is known of a server that will not come back: what only it served is a 404 then, not a 503.
    Forget {
        /// Its server ID, as `status` shows it.
        #[arg(value_name = "SERVERID", value_parser = forget::server_id)]
        server_id: String,
        /// Configuration file (YAML) of any proxy of the cluster; what it says of etcd is used.
        #[arg(long, value_name = "FILE", default_value = CONFIG_FILE)]
        config: PathBuf,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Put the proxy in front of the kube-apiserver of this node: shows what is changed, asks, waits until both are ready and
    /// other servers see it, and puts everything back if they are not.
    Install(InstallArguments),
    /// Remove the proxy of this node, and nothing else that was changed since.
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
