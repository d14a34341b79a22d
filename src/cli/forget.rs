//! `forget`: deletes the record of a server that will not come back, so that requests for resources that only it served
//! get 404 at once, and not only after `rerouting.absentServerGrace`.
//!
//! Only the record is deleted, in a transaction that fails if anything has changed since the record was shown: live keys
//! and claims expire by themselves, and kube-apiserver's own keys are left alone.

mod etcd;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::etcd::KnownServers;
use super::check::problems_printed;
use super::etcd::{EtcdAccess, only_in};
use super::terminal::say;
use super::text::{fields, plain, plain_list};
use super::{CONFIG_FILE, USAGE, block_on, exit_code, terminal};
use crate::cluster::json;
use crate::cluster::record::Record;
use crate::config::{self, Config};

/// Most servers, or group versions, that are named.
const MAX_NAMED: usize = 50;

const BECOMES: &str = "is answered 503 now, and 404 once this is forgotten; garbage collectors and namespace controllers \
                       act on a 404.";

#[derive(Args)]
pub struct ForgetArguments {
    /// Its server ID, as `status` shows it.
    #[arg(value_name = "SERVERID", value_parser = server_id)]
    server_id: String,
    /// Configuration file (YAML) of any proxy of the cluster; what it says of etcd is used.
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE)]
    config: PathBuf,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// Checks a server ID of the command line: it becomes part of etcd's keys.
fn server_id(text: &str) -> Result<String, &'static str> {
    let is_id = !text.is_empty() && !text.contains('/') && !text.contains(char::is_control);
    let id = is_id.then(|| text.to_owned());
    id.ok_or("is not a server ID: one is not empty and has no slash in it")
}

pub fn run(arguments: &ForgetArguments) -> ExitCode {
    let path = &arguments.config;
    let loaded = problems_printed(path, config::load(path));
    let Some(loaded) = loaded.filter(|_| terminal::may_ask(arguments.yes, "forgets")) else {
        return ExitCode::from(USAGE);
    };
    let forgetting = forget(&arguments.server_id, &loaded.config, arguments.yes);
    exit_code(block_on(forgetting).map(|()| true))
}

/// The error says why the server was not forgotten. `sure`: without asking.
async fn forget(id: &str, config: &Config, sure: bool) -> Result<(), String> {
    let shown = plain(id);
    let etcd = EtcdAccess::new(config)?;
    let known = KnownServers::read(&etcd, id).await?;
    if let Some(why) = known.alive {
        return Err(format!(
            "{shown} is not forgotten: it is alive, or was less than peer.leaseTTL ago: {why}"
        ));
    }
    let Some(record) = &known.record else {
        return Err(unknown(id, &known.ids));
    };
    say(&describe(id, &record.value, &known.others))?;
    if !sure && !terminal::ask(&format!("Forget {shown}?"))? {
        return Err(format!("{shown} is not forgotten: nothing was changed"));
    }
    let dropped = etcd::drop(&etcd, id, record.mod_revision).await;
    let unsure =
        |error| format!("{error}\n{shown} may be forgotten or not: the same command tells");
    let Some(changed) = dropped.map_err(unsure)? else {
        return say(&format!("{shown} is forgotten.\n"));
    };
    let why = match changed.alive {
        Some(why) => format!("it came back meanwhile: {why}"),
        None => "its record was written anew meanwhile".to_owned(),
    };
    Err(format!("{shown} is not forgotten: {why}"))
}

/// Describes a record to the operator who decides. `others`: those of other servers.
fn describe(id: &str, record: &[u8], others: &[Record]) -> String {
    let (lines, consequence) = match json::read::<Record>(record) {
        Ok(record) => {
            let groups = record.resources.len();
            let count: usize = record.resources.values().map(Vec::len).sum();
            let lists = format!("{count} resources in {groups} group versions");
            let lines = vec![
                ("  Endpoint", record.endpoint.to_string()),
                ("  Version", version(&record)),
                ("  Lists", lists),
            ];
            (lines, consequence(&record, others))
        }
        Err(error) => {
            let error = format!("cannot be read: {}", plain(&error.to_string()));
            let consequence = format!("What no other proxy lists {BECOMES}\n");
            (vec![("  Record", error)], consequence)
        }
    };
    let (id, known) = (plain(id), fields(14, &lines));
    format!("{id} is absent. Known of it:\n{known}{consequence}")
}

/// What clients will see.
fn consequence(record: &Record, others: &[Record]) -> String {
    let only = only_in(record, others.iter());
    if only.is_empty() {
        return "Other proxies list all of it, too.\n".to_owned();
    }
    let groups = some(only.iter().map(|(name, _)| name.clone()));
    let count: usize = only.iter().map(|(_, count)| count).sum();
    format!("No other proxy lists {count} of them ({groups}). What nobody lists {BECOMES}\n")
}

fn version(record: &Record) -> String {
    let binary = record.binary_version.as_deref().unwrap_or("unknown");
    match record.compatibility_version.as_deref() {
        Some(emulated) => format!("{} ({})", plain(binary), plain(emulated)),
        None => plain(binary),
    }
}

/// For an ID without keys. `ids`: servers that have one, and whether they live.
fn unknown(id: &str, ids: &BTreeMap<String, bool>) -> String {
    let names = some(ids.iter().map(|(id, lives)| {
        let state = if *lives { "alive" } else { "absent" };
        format!("{id} ({state})")
    }));
    let others = match ids.is_empty() {
        true => "nor is any other server (is etcd.prefix what the apiserver's --etcd-prefix says?)",
        false => &format!("known are: {names}"),
    };
    format!("{} is not known; {others}", plain(id))
}

/// Names, and whether there are more.
fn some(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    plain_list(names.take(MAX_NAMED).chain(more))
}

#[cfg(test)]
mod tests;
