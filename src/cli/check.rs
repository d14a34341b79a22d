//! `check`: every problem of a configuration file and, with `--live`, of what the file names; with `--pre` of a node that gets
//! the proxy.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::doctor::finding::{self, Finding, Level};
use super::doctor::{examine, of_file, pre};
use super::{CONFIG_FILE, block_on, terminal};
use crate::config::{self, Problem};

/// What is printed.
#[derive(Clone, Copy, ValueEnum)]
pub enum FindingsFormat {
    /// Each finding with what to do.
    Text,
    /// Warnings and problems, one short line each.
    Short,
    /// One JSON document.
    Json,
}

#[derive(Args)]
pub struct CheckArguments {
    /// Configuration file (YAML).
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE)]
    config: PathBuf,
    /// Also check what the file names: etcd, the kube-apiserver, peers, certificates, clocks. One line each with
    /// what to do; exit 1 if there is any problem. Changes nothing.
    #[arg(long)]
    live: bool,
    /// Check a kubeadm node before the proxy is installed: what `install kubeadm` makes of kube-apiserver's manifest,
    /// what it names, kubelet, the container runtime, and what uses the ports. Changes nothing, and reads no
    /// configuration file.
    #[arg(long, conflicts_with_all = ["live", "config"])]
    pre: bool,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = FindingsFormat::Text)]
    output: FindingsFormat,
}

/// Returns whether there is no problem.
pub fn run(arguments: &CheckArguments) -> Result<bool, String> {
    let path = &arguments.config;
    let findings = match (arguments.pre, arguments.live) {
        (true, _) => block_on(async { Ok(pre::examine(path).await) })?,
        (_, true) => block_on(async { Ok(examine(path).await) })?,
        _ => of_file(path, config::check(path).err()),
    };
    terminal::say(&match arguments.output {
        FindingsFormat::Text => finding::text(&findings),
        FindingsFormat::Short => finding::short(&findings),
        FindingsFormat::Json => finding::json(&findings),
    })?;
    let is_problem = |it: &Finding| it.level == Level::Problem;
    Ok(!findings.iter().any(is_problem))
}

/// `None`: the file at `path` has problems, which were printed.
pub fn problems_printed<T>(path: &Path, result: Result<T, Vec<Problem>>) -> Option<T> {
    let found = result.map_err(|problems| of_file(path, Some(problems)));
    found
        .map_err(|found| found.iter().for_each(terminal::complain))
        .ok()
}
