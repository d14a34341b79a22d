//! `forget`: deletes the record of a server that will not come back, so that requests for resources that only it served
//! get 404 at once, and not only after `rerouting.absentServerGrace`.
//!
//! `etcd` reads and deletes, `server_keys` decides, `remaining` names what stays. Only the record is deleted, in a
//! transaction that fails if anything has changed since the record was shown: live keys and claims expire by themselves,
//! and kube-apiserver's own keys are left alone.

mod etcd;
mod remaining;
mod server_keys;

use std::time::SystemTime;

use self::etcd::EtcdAccess;
use self::server_keys::{Liveness, describe, unknown};
use super::terminal::say;
use super::text::plain;
use super::{Ending, block_on, terminal};
use crate::config::Config;

/// Checks a server ID of the command line: it becomes part of etcd's keys.
pub fn server_id(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('/') || text.contains(char::is_control) {
        true => Err("is not a server ID: one is not empty and has no slash in it".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// `sure`: without asking.
pub fn run(id: &str, config: &Config, sure: bool) -> Ending {
    if !sure && !terminal::can_ask() {
        terminal::complain("there is no terminal to ask at: --yes forgets without asking");
        return Ending::Usage;
    }
    Ending::of(block_on(forget(id, config, sure)).map(|()| true))
}

/// Why the server was not forgotten.
type Reason = String;

async fn forget(id: &str, config: &Config, sure: bool) -> Result<(), Reason> {
    let shown = plain(id);
    let etcd = EtcdAccess::new(config);
    let etcd = etcd.map_err(|error| format!("etcd's certificate files: {error}"))?;
    let known = etcd.known(id).await?;
    let stays = remaining::text(id, &known.remaining, SystemTime::now());
    let record = match known.keys.liveness() {
        Liveness::RecordOnly(record) => record,
        Liveness::Live(why) => {
            return Err(format!(
                "{shown} is not forgotten: it lives, or did less than peer.leaseTTL ago: {why}"
            ));
        }
        Liveness::Unknown => {
            say(&stays)?;
            return Err(unknown(id, &known.ids));
        }
    };
    say(&describe(id, record, known.left, &known.others))?;
    say(&stays)?;
    if !sure && !terminal::ask(&format!("Forget {shown}?"))? {
        return Err(format!("{shown} is not forgotten: nothing was changed"));
    }
    let dropped = etcd.drop(id, record.mod_revision).await;
    let unsure =
        |error| format!("{error}\n{shown} may be forgotten or not: the same command tells");
    let Some(changed) = dropped.map_err(unsure)? else {
        return say(&format!("{shown} is forgotten.\n"));
    };
    let why = match changed.liveness() {
        Liveness::Live(why) => format!("it came back meanwhile: {why}"),
        _ => "its record was written anew meanwhile".to_owned(),
    };
    Err(format!("{shown} is not forgotten: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_id_is_one_part_of_a_key() {
        for good in ["cp-3", "apiserver-tqsyvnc7rs47fayzipsuqpfg4m", "CP 3", "é"] {
            assert_eq!(server_id(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "/",
            "a/b",
            "../live/a",
            "a\n",
            "\u{1b}[2J",
            "a\0",
            "\u{9b}",
        ] {
            assert!(server_id(bad).is_err(), "{bad:?}");
        }
    }
}
