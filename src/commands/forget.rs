//! `forget`: drops what is known of a server that will not come back, so that what only it served is nobody's at once and
//! not only when `rerouting.absentServerGrace` is over.
//!
//! `store` asks etcd, `known` decides, `remains` names what is left alone. Dropped is the record alone, in one
//! transaction that holds only if nothing has changed since it was shown: live keys and claims go away by themselves, and
//! what kube-apiserver wrote is its own.

mod known;
mod remains;
mod store;

use std::time::SystemTime;

use self::known::{Known, Standing};
use self::store::{Dropped, Look, Store};
use super::text::plain;
use super::{Ending, terminal};
use crate::config::Config;

/// Checks a server ID of the command line: a part of etcd's keys.
pub fn server_id(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('/') || text.contains(char::is_control) {
        true => Err("is not a server ID: one is not empty and has no slash in it".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Forgets `id`. `sure`: without asking.
pub fn run(id: &str, config: &Config, sure: bool) -> Ending {
    if !sure && !terminal::can_ask() {
        terminal::complain("there is no terminal to ask at: --yes forgets without asking");
        return Ending::Usage;
    }
    match forget(id, config, sure) {
        Ok(()) => Ending::Good,
        Err(why) => {
            terminal::complain(why);
            Ending::Bad
        }
    }
}

/// Why nothing was forgotten.
type Why = String;

fn forget(id: &str, config: &Config, sure: bool) -> Result<(), Why> {
    let shown = plain(id);
    let store = Store::new(config).map_err(|error| error.to_string())?;
    let Look {
        known,
        others,
        remains,
    } = store.look(id).map_err(|error| error.to_string())?;
    let stays = remains::text(id, &remains, SystemTime::now());
    let record = match known.standing() {
        Standing::Gone(record) => record,
        Standing::Lives(why) => {
            return Err(format!(
                "{shown} is not forgotten: it lives, or did less than peer.leaseTTL ago: {why}"
            ));
        }
        Standing::Unknown => {
            say(&stays)?;
            let ids = store.ids().map_err(|error| error.to_string())?;
            return Err(known::unknown(id, &ids));
        }
    };
    say(&record.describe(id, &others))?;
    say(&stays)?;
    if !sure && !terminal::ask(&format!("Forget {shown}?")).map_err(|error| error.to_string())? {
        return Err(format!("{shown} is not forgotten: nothing was changed"));
    }
    match store.drop(id, record).map_err(|error| {
        format!("{error}\n{shown} may be forgotten or not: the same command tells")
    })? {
        Dropped::Gone => say(&format!("{shown} is forgotten.\n")),
        Dropped::Changed(known) => Err(changed(&shown, &known)),
    }
}

fn changed(shown: &str, known: &Known) -> Why {
    let why = match known.standing() {
        Standing::Lives(why) => format!("it came back meanwhile: {why}"),
        _ => "its record was written anew meanwhile".to_owned(),
    };
    format!("{shown} is not forgotten: {why}")
}

fn say(text: &str) -> Result<(), Why> {
    terminal::say(text).map_err(|error| format!("cannot write: {error}"))
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
