//! What documents lack of everything that is known, for as long as nobody knows what the local apiserver's lack: those of
//! a peer that stand in for them, or, where there is none, they themselves. Pure.
//!
//! A group that vanished from discovery while an apiserver restarts would let namespaces be finished with objects left
//! behind. It stays listed, as stale.

use std::sync::Arc;

use super::gathered::Gathered;
use super::model::Document;
use super::others::{Others, Peer, union};
use super::select::by_name;
use crate::routing::table::{ServedSet, Server, Snapshot};

/// What `peer` does not list, and another server, reachable or not, or the local apiserver does, did or may.
pub fn lacking(peer: &Server, snapshot: &Snapshot, gathered: &Gathered) -> Others {
    let names = names(peer.served.as_ref(), gathered.served.as_ref(), snapshot);
    union(&[named(&names)], &snapshot.custom)
}

/// What any other server lists, reachable or not: it may be what the local apiserver's document lacks, which nobody knows
/// as long as that was not read. Of one that is not `initialized`, also what it listed before.
pub fn unread(initialized: bool, snapshot: &Snapshot, gathered: &Gathered) -> Others {
    let before = gathered.served.as_ref().filter(|_| !initialized);
    let names = names(None, before, snapshot);
    let described = Peer {
        target: true,
        document: &gathered.others.document,
        ..named(&names)
    };
    union(&[described, named(&names)], &snapshot.custom)
}

/// What all other servers list, and what is in `besides`, without what is in `listed`.
fn names(
    listed: Option<&Arc<ServedSet>>,
    besides: Option<&Arc<ServedSet>>,
    snapshot: &Snapshot,
) -> Document {
    let servers = snapshot.servers.iter();
    let mut sets: Vec<&Arc<ServedSet>> = Vec::new();
    for set in servers
        .filter_map(|server| server.served.as_ref())
        .chain(besides)
    {
        let is_known = |known: &Arc<ServedSet>| Arc::ptr_eq(known, set);
        if !sets.iter().copied().chain(listed).any(is_known) {
            sets.push(set);
        }
    }
    let names = sets.into_iter().flat_map(|set| set.iter());
    let names = names.filter(|gvr| !listed.is_some_and(|listed| listed.contains(*gvr)));
    by_name(&names.cloned().collect())
}

fn named(document: &Document) -> Peer<'_> {
    Peer {
        id: "",
        compatibility: None,
        document,
        target: false,
    }
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
            served,
            ..Server::peer(id)
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
    fn without_a_peer_what_others_list_and_not_what_a_process_before_did_is_added() {
        let servers = vec![
            server("a", Some(set(&["apps"]))),
            server("b", Some(set(&["b"]))),
        ];
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let gathered = Gathered {
            served: Some(set(&["apps", "local"])),
            ..Gathered::default()
        };
        assert_eq!(groups(&unread(true, &snapshot, &gathered)), ["apps", "b"]);
        let starting = unread(false, &snapshot, &gathered);
        assert_eq!(groups(&starting), ["apps", "b", "local"]);
        let nobody = Snapshot::new(true, Vec::new(), None, Arc::default());
        assert!(groups(&unread(true, &nobody, &gathered)).is_empty());
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
