//! `install kubeadm` and `uninstall kubeadm`: the proxy beside the apiserver of a control plane node, and its removal.
//!
//! What is to be written is decided in [`crate::install`], from what stands on the node now. `steps` does it: `host` reads and
//! replaces files, `change` says in which order, `image` looks for the proxy's image, and `servers` asks etcd for the other servers
//! and keeps the lock. A call that was broken off is continued by the next one, because every plan is made from the files of today.

mod change;
mod host;
mod image;
mod servers;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::host::{Done, Host, write_into};
use self::servers::Servers;
use self::steps::Node;
use super::status::timeout;
use super::terminal::{ask, complain, may_ask, say};
use super::{USAGE, block_on, exit_code};
use crate::config::Config;
use crate::install::difference::difference;
use crate::install::state::{APISERVER, CONFIG, PODS, State};
use crate::install::{self, IMAGE, Options, Plan, normal};

/// How the node was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// Static pods in /etc/kubernetes/manifests.
    Kubeadm,
}

#[derive(Args)]
pub struct InstallArguments {
    #[command(flatten)]
    options: Options,
    /// Archive with the image, which is imported into the node's containerd first.
    #[arg(long, value_name = "FILE")]
    image_archive: Option<PathBuf>,
    /// Write the files into this directory, and change nothing.
    #[arg(long, value_name = "DIR", conflicts_with = "dry_run")]
    output_dir: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
pub struct UninstallArguments {
    /// Uninstall even if clients would lose what only other servers serve, or if etcd cannot be asked.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
struct How {
    /// What set up the node.
    platform: Platform,
    /// Where the node's files are.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Show what would be changed, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// How long to wait for other nodes and for this one; then everything is restored.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = timeout)]
    timeout: Duration,
}

pub fn install(arguments: &InstallArguments) -> ExitCode {
    let asks = arguments.output_dir.is_none();
    ended(&arguments.how, asks, installed(arguments))
}

pub fn uninstall(arguments: &UninstallArguments) -> ExitCode {
    ended(&arguments.how, true, uninstalled(arguments))
}

fn ended(how: &How, asks: bool, work: impl Future<Output = Done>) -> ExitCode {
    let Platform::Kubeadm = how.platform;
    if !may_ask(!asks || how.yes || how.dry_run, "changes files") {
        return ExitCode::from(USAGE);
    }
    exit_code(block_on(work).map(|()| true))
}

async fn installed(arguments: &InstallArguments) -> Done {
    let how = &arguments.how;
    let host = Host::new(&how.root);
    let mut options = arguments.options.clone();
    if let Some(archive) = &arguments.image_archive {
        if !how.dry_run && arguments.output_dir.is_none() {
            image::is_readable(archive)?;
        }
        options.image.get_or_insert_with(|| IMAGE.to_owned());
    }
    let (mut plan, mut settings) = planned_on(&host, &options, 1)?;
    let servers = Servers::new(&settings)?;
    // A first look that changes nothing needs no etcd.
    if let Ok(count @ 2..) = servers.count().await {
        (plan, settings) = planned_on(&host, &options, count)?;
    }
    for warning in &plan.warnings {
        complain(format_args!("note: {warning}"));
    }
    let (from, to) = (plan.before, plan.state);
    if let Some(directory) = &arguments.output_dir {
        let files = [CONFIG, APISERVER, PODS[0]].map(|name| (name.to_owned(), text(&to, name)));
        let files = files.into_iter().filter(|(_, text)| !text.is_empty());
        return write_into(directory, &Vec::from_iter(files));
    }
    let is_same = from == to;
    if !may_be_changed(&host, how, &from, &to)? {
        return Ok(());
    }
    if !is_same {
        confirm(how)?;
    }
    let _alone = host.alone()?;
    let config = text(&to, CONFIG);
    let node = Node {
        settings,
        servers: Some(servers),
        timeout: how.timeout,
        image: host.is_whole().then(|| plan.image.clone()),
        host,
        from,
        to,
    };
    // Another root is another machine's.
    let archive = arguments.image_archive.as_ref();
    if let Some(archive) = archive.filter(|_| node.host.is_whole()) {
        image::import(archive)?;
    }
    if is_same && !node.host.is_unfinished() {
        return node.runs().await;
    }
    // kubelet fetches that of a pod of its own before anything makes room for it.
    if !plan.image.contains('/') || node.to.pods().is_empty() {
        node.image_is_there()?;
    }
    // A path of the container may be another one on the node.
    if plan.files.iter().all(|(file, on_node)| file == on_node) {
        node.host.check(&config)?;
    }
    node.with_lock(async || node.put_in().await).await?;
    say("The proxy is ready, and other servers see it. To look: kube-interop-proxy status\n")
}

async fn uninstalled(arguments: &UninstallArguments) -> Done {
    let how = &arguments.how;
    let host = Host::new(&how.root);
    let (Plan { before: from, .. }, settings) = planned_on(&host, &Options::default(), 1)?;
    let to = State::new(None, Vec::new(), from.plain()?);
    if !may_be_changed(&host, how, &from, &to)? {
        return Ok(());
    }
    if from == to && !host.is_unfinished() {
        return host.clean_up();
    }
    let servers = Servers::new(&settings)?;
    let found = servers.only_others_serve().await;
    let reachable = found.is_ok();
    let (Ok(why) | Err(why)) = found.map(|lines| lines.join("; "));
    // Who goes on takes nothing away any more.
    let takes = from.has_proxy()? && !why.is_empty();
    if !arguments.force && (!reachable || takes) {
        return Err(format!("{why}; --force does it all the same"));
    }
    confirm(how)?;
    let _alone = host.alone()?;
    let node = Node {
        settings,
        servers: reachable.then_some(servers),
        timeout: how.timeout,
        image: None,
        host,
        from,
        to,
    };
    node.with_lock(async || node.take_out().await).await?;
    say("The proxy is removed.\n")
}

/// What `install` would make of this node, and the settings with paths of this machine. Reads only.
pub(super) fn planned() -> Result<(Plan, Config), String> {
    planned_on(&Host::new(Path::new("/")), &Options::default(), 1)
}

fn planned_on(host: &Host, options: &Options, servers: usize) -> Result<(Plan, Config), String> {
    let plan = install::plan(&host.node(servers)?, options)?;
    let settings = plan.settings_with(|file| host.path(file))?;
    Ok((plan, settings))
}

/// Shows what would be changed. `false`: that was all.
fn may_be_changed(host: &Host, how: &How, from: &State, to: &State) -> Result<bool, String> {
    say(&shown(from, to)?)?;
    if !how.dry_run {
        may_change(host)?;
    }
    Ok(!how.dry_run)
}

fn confirm(how: &How) -> Done {
    let sure = how.yes || ask("Change these files?")?;
    sure.then_some(()).ok_or("nothing was changed".to_owned())
}

/// The text of this file; that of the first own pod is the text of all own pods.
fn text(state: &State, name: &str) -> String {
    match name == PODS[0] {
        true => state.pods().iter().map(|(_, text)| text.as_str()).collect(),
        false => state.text(name).unwrap_or_default().to_owned(),
    }
}

/// The difference, as a person reads it before saying yes.
fn shown(from: &State, to: &State) -> Result<String, String> {
    let mut shown = String::new();
    for name in [CONFIG, APISERVER, PODS[0]] {
        let (before, after) = (text(from, name), text(to, name));
        if before == after {
            continue;
        }
        let written = match name {
            APISERVER => normal(&before)?,
            _ => before.clone(),
        };
        shown += &format!("{name}:\n{}", difference(&written, &after));
        if written != before {
            shown += "(it is written anew: comments in it are lost; before/ keeps them)\n";
        }
    }
    if shown.is_empty() {
        shown += "Nothing is to be changed.\n";
    }
    Ok(shown)
}

/// The node itself is changed by root, and kubelet must be there to see it.
fn may_change(host: &Host) -> Done {
    if !host.is_whole() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("only root can do this: manifests and keys are root's".to_owned());
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut names = processes.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
    let runs = names.any(|name| name.trim() == "kubelet").then_some(());
    Ok(runs.ok_or("no kubelet runs here: nobody would start what the manifests say")?)
}
