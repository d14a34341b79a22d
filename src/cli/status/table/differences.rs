//! Resources that some servers serve and others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::text::{Table, plain};
use super::text;
use crate::admin::document::{PeerStatus, StatusDocument};
use crate::kube::gvr::api_version;

/// One line for each group version and each set of servers that serve something of it. Only servers whose resources are
/// known are compared.
pub(super) fn section(status: &StatusDocument, width: Option<usize>) -> Option<String> {
    let server = &status.server;
    let own_id = server.id.as_deref().unwrap_or("this");
    let own = Some(own_id).filter(|_| server.discovery_known);
    let compared = |peer: &&PeerStatus| peer.target && peer.known == Some(true);
    let peers = status.peers.iter().filter(compared);
    let mut servers = ids(peers.map(|peer| &peer.id));
    servers.extend(own);
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for resource in &status.resources {
        let mut with = ids(&resource.peers);
        with.extend(own.filter(|_| resource.local));
        let without: BTreeSet<_> = servers.difference(&with).copied().collect();
        if with.is_empty() || !without.is_empty() {
            let version = text(&resource.version, "?");
            let group_version = api_version(&text(&resource.group, ""), &version);
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
    // Without another server there is nothing to compare.
    let compared = own.is_some() && servers.len() > 1;
    compared.then(|| "All servers that can be asked serve the same.\n".to_owned())
}

/// IDs that the proxy wrote: an empty one stands for a value of another type.
fn ids<'a>(ids: impl IntoIterator<Item = &'a String>) -> BTreeSet<&'a str> {
    let ids = ids.into_iter().map(String::as_str);
    ids.filter(|id| !id.is_empty()).collect()
}

fn names(ids: &BTreeSet<&str>) -> String {
    let names: Vec<_> = ids.iter().map(|id| plain(id)).collect();
    names.join(", ")
}
