//! Resources that some servers serve and others do not. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::text::{Table, plain};
use super::text;
use crate::admin::document::{PeerStatus, ResourceStatus, StatusDocument};
use crate::kube::gvr::api_version;

/// Servers that are compared: only those whose resources are known.
struct ComparedServers<'a> {
    /// ID of this server.
    own: Option<&'a str>,
    /// IDs of peers that requests can be sent to.
    peers: BTreeSet<&'a str>,
}

impl<'a> ComparedServers<'a> {
    fn of(status: &'a StatusDocument) -> Self {
        let server = &status.server;
        let own_id = || server.id.as_deref().unwrap_or("this");
        let compared = |peer: &&PeerStatus| peer.target && peer.known == Some(true);
        let peers = status.peers.iter().filter(compared);
        Self {
            own: server.discovery_known.then(own_id),
            peers: ids(peers.map(|peer| &peer.id)),
        }
    }

    /// IDs of servers that serve a resource, and of those that do not.
    fn split(&self, resource: &'a ResourceStatus) -> (Vec<&'a str>, Vec<&'a str>) {
        let holders = ids(&resource.peers);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        match self.own {
            Some(own) if resource.local => with.push(own),
            Some(own) => without.push(own),
            None => {}
        }
        with.extend(&holders);
        without.extend(self.peers.difference(&holders));
        (with, without)
    }
}

/// One line for each group version and each set of servers that serve something of it.
pub(super) fn section(status: &StatusDocument, width: Option<usize>) -> Option<String> {
    let servers = ComparedServers::of(status);
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for resource in &status.resources {
        let (with, without) = servers.split(resource);
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
    let compared = servers.own.is_some() && !servers.peers.is_empty();
    compared.then(|| "All servers that can be asked serve the same.\n".to_owned())
}

/// IDs that the proxy wrote: an empty one stands for a value of another type.
fn ids<'a>(ids: impl IntoIterator<Item = &'a String>) -> BTreeSet<&'a str> {
    let ids = ids.into_iter().map(String::as_str);
    ids.filter(|id| !id.is_empty()).collect()
}

fn names(ids: &[&str]) -> String {
    let names: Vec<_> = ids.iter().map(|id| plain(id)).collect();
    names.join(", ")
}
