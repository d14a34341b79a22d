//! Who serves what others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::super::text::{Table, plain};
use super::{list, text};
use crate::routing::table::api_version;

/// Servers whose lists are compared: those that requests can be sent to, and this one.
struct Servers<'a> {
    /// This one's ID, if it is known what it serves.
    own: Option<&'a str>,
    /// Peers of which it is known.
    peers: BTreeSet<&'a str>,
}

impl<'a> Servers<'a> {
    fn of(status: &'a Value) -> Self {
        let server = &status["server"];
        let compared = |peer: &&Value| peer["target"] == true && peer["known"] == true;
        let peers = list(&status["peers"]).filter(compared);
        Self {
            own: (server["discoveryKnown"] == true)
                .then(|| server["id"].as_str().unwrap_or("this")),
            peers: peers.filter_map(|peer| peer["id"].as_str()).collect(),
        }
    }

    /// Who serves a resource, and who does not.
    fn split(&self, resource: &'a Value) -> (Vec<&'a str>, Vec<&'a str>) {
        let holders: BTreeSet<_> = list(&resource["peers"]).filter_map(Value::as_str).collect();
        let (mut with, mut without) = (Vec::new(), Vec::new());
        match self.own {
            Some(own) if resource["local"] == true => with.push(own),
            Some(own) => without.push(own),
            None => {}
        }
        with.extend(&holders);
        without.extend(self.peers.difference(&holders));
        (with, without)
    }
}

/// One line for each group version and each set of servers that serve something of it.
pub(super) fn section(status: &Value, width: Option<usize>) -> Option<String> {
    let servers = Servers::of(status);
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for resource in list(&status["resources"]) {
        let (with, without) = servers.split(resource);
        if with.is_empty() || !without.is_empty() {
            let version = text(&resource["version"], "?");
            let group_version = api_version(&text(&resource["group"], ""), &version);
            *counts.entry((group_version, with, without)).or_default() += 1;
        }
    }
    let mut table = Table::new(["DIFFERENCE", "RESOURCES", "SERVED BY", "NOT BY"]);
    for ((group_version, with, without), count) in counts {
        let with = match with.is_empty() {
            true => "none that can be asked".to_owned(),
            false => names(&with),
        };
        table.row([group_version, count.to_string(), with, names(&without)]);
    }
    if !table.is_empty() {
        return Some(table.lines(width));
    }
    // Where there is nobody to compare with there is nothing to say.
    let compared = servers.own.is_some() && !servers.peers.is_empty();
    compared.then(|| "All servers that can be asked serve the same.\n".to_owned())
}

fn names(ids: &[&str]) -> String {
    let names: Vec<_> = ids.iter().map(|id| plain(id)).collect();
    names.join(", ")
}
