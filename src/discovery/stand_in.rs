//! What a peer's documents lack of everything that is known, for as long as they stand in for the local apiserver's. Pure.
//!
//! A group that vanished from discovery while an apiserver restarts would let namespaces be finished with objects left
//! behind. It stays listed, as stale.

use std::sync::Arc;

use super::gathered::Gathered;
use super::others::{Others, Peer, union};
use super::select::by_name;
use crate::routing::table::{ServedSet, Server, Snapshot};

/// What `peer` does not list, and another server, reachable or not, or the local apiserver does, did or may.
pub fn lacking(peer: &Server, snapshot: &Snapshot, gathered: &Gathered) -> Others {
    let listed = peer.served.as_ref();
    let servers = snapshot.servers.iter();
    let mut sets: Vec<&Arc<ServedSet>> = Vec::new();
    for set in servers
        .filter_map(|server| server.served.as_ref())
        .chain(&gathered.served)
    {
        let is_known = |known: &Arc<ServedSet>| Arc::ptr_eq(known, set);
        if !sets.iter().copied().chain(listed).any(is_known) {
            sets.push(set);
        }
    }
    let names = sets.into_iter().flat_map(|set| set.iter());
    let names = names.filter(|gvr| !listed.is_some_and(|listed| listed.contains(*gvr)));
    let names: ServedSet = names.cloned().collect();
    let document = by_name(&names);
    let by_name = Peer {
        id: "",
        compatibility: None,
        document: &document,
        target: false,
    };
    union(&[by_name], &snapshot.custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::{Custom, GvrRef, Pair};

    fn set(groups: &[&str]) -> Arc<ServedSet> {
        let gvr = |group: &&str| {
            let [version, resource, subresource] = ["v1", "things", ""];
            GvrRef {
                group,
                version,
                resource,
                subresource,
            }
            .owned()
        };
        Arc::new(groups.iter().map(gvr).collect())
    }

    fn server(id: &str, served: Option<Arc<ServedSet>>) -> Server {
        Server {
            id: id.into(),
            endpoint: ([10, 0, 0, 1], 6443).into(),
            native: false,
            live: true,
            initialized: true,
            target: true,
            binary_version: None,
            version: None,
            history_start: None,
            known: true,
            served,
        }
    }

    fn groups(others: &Others) -> Vec<&str> {
        let groups = others.document.groups.iter();
        groups.map(|group| &*group.name).collect()
    }

    #[test]
    fn what_anybody_is_known_to_list_stays_as_stale() {
        let servers = vec![
            server("both", Some(set(&["apps"]))),
            server("more", Some(set(&["apps", "more"]))),
            server("unknown", None),
        ];
        let custom = Custom {
            definitions: [Pair("custom".into(), "things".into())].into(),
            ..Custom::default()
        };
        let snapshot = Snapshot::new(true, servers, None, Arc::new(custom));
        let gathered = Gathered {
            served: Some(set(&["apps", "custom", "local"])),
            ..Gathered::default()
        };
        let of_both = lacking(&snapshot.servers[0], &snapshot, &gathered);
        assert_eq!(groups(&of_both), ["local", "more"]);
        let mut versions = of_both
            .document
            .groups
            .iter()
            .flat_map(|group| &group.versions);
        assert!(versions.all(|version| version.stale && version.resources.len() == 1));
        assert_eq!(
            groups(&lacking(&snapshot.servers[1], &snapshot, &gathered)),
            ["local"]
        );
        let of_unknown = lacking(&snapshot.servers[2], &snapshot, &gathered);
        assert_eq!(groups(&of_unknown), ["apps", "local", "more"]);
    }

    #[test]
    fn where_all_list_the_same_nothing_is_lacking() {
        let same = set(&["apps"]);
        let servers = vec![
            server("a", Some(same.clone())),
            server("b", Some(set(&["apps"]))),
        ];
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let gathered = Gathered {
            served: Some(same),
            ..Gathered::default()
        };
        for server in &snapshot.servers {
            assert!(
                lacking(server, &snapshot, &gathered)
                    .document
                    .groups
                    .is_empty()
            );
        }
    }
}
