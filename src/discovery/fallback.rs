//! What is added to a document while it is unknown what the local apiserver lacks: to a peer's document that replaces
//! the local one, or, without a peer, to the local one. Pure.
//!
//! If a group disappeared from discovery while an apiserver restarts, the namespace controller would finish namespaces
//! with objects left behind. So the group stays listed, as stale.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::peer_union::{by_name, union};
use crate::discovery::peer_discovery::PeerDiscovery;
use crate::kube::discovery::model::Document;
use crate::kube::gvr::ServedSet;
use crate::routing::table::{Server, Snapshot};

/// Resources that `peer` does not list and another server, reachable or not, or the local apiserver lists or listed. If
/// the peer has no proxy, its list of groups may lack what it serves: that is included.
pub fn lacking(peer: &Server, snapshot: &Snapshot, peer_discovery: &PeerDiscovery) -> Document {
    let listed = peer.served.as_ref().filter(|_| peer.kind.has_proxy());
    names(listed, before(snapshot, peer_discovery), snapshot)
}

/// Resources that any other server lists, reachable or not: the local apiserver may lack them, which is unknown until
/// its discovery is read. If it is not `initialized`, also what it listed before.
pub fn unread(initialized: bool, snapshot: &Snapshot, peer_discovery: &PeerDiscovery) -> Document {
    // A proxy that has just started knows it of the record only.
    let is_known = initialized && peer_discovery.served.is_some();
    let before = before(snapshot, peer_discovery).filter(|_| !is_known);
    let names = names(None, before, snapshot);
    union(&[(&peer_discovery.others, true), (&names, false)])
}

/// What the local apiserver listed when it was last read, by this process or the one before.
fn before<'a>(
    snapshot: &'a Snapshot,
    peer_discovery: &'a PeerDiscovery,
) -> Option<&'a Arc<ServedSet>> {
    let read = peer_discovery.served.as_ref();
    read.or(snapshot.own_record.as_ref())
}

/// What all other servers list and what is in `besides`, without what is in `listed`.
fn names(
    listed: Option<&Arc<ServedSet>>,
    besides: Option<&Arc<ServedSet>>,
    snapshot: &Snapshot,
) -> Document {
    let servers = snapshot.servers.iter();
    let sets = servers.filter_map(|server| server.served.as_ref());
    let names = sets.chain(besides).flat_map(|set| set.iter());
    let names = names.filter(|gvr| !listed.is_some_and(|listed| listed.contains(*gvr)));
    by_name(names.collect::<BTreeSet<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::{ServerKind, things};

    fn set(groups: &[&str]) -> Arc<ServedSet> {
        let group_versions: Vec<_> = groups.iter().map(|group| (*group, "v1")).collect();
        Arc::new(things(&group_versions))
    }

    fn server(id: &str, served: Option<Arc<ServedSet>>) -> Server {
        Server {
            served,
            ..Server::peer(id)
        }
    }

    fn groups(others: &Document) -> Vec<&str> {
        let groups = others.groups.iter();
        groups.map(|group| group.name()).collect()
    }

    #[test]
    fn what_anybody_is_known_to_list_stays_as_stale() {
        let servers = vec![
            server("both", Some(set(&["apps"]))),
            server("more", Some(set(&["apps", "more"]))),
            server("unknown", None),
        ];
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let peer_discovery = PeerDiscovery {
            served: Some(set(&["apps", "local"])),
            ..PeerDiscovery::default()
        };
        let of_both = lacking(&snapshot.servers[0], &snapshot, &peer_discovery);
        assert_eq!(groups(&of_both), ["local", "more"]);
        let mut versions = of_both.groups.iter().flat_map(|group| &group.versions);
        assert!(versions.all(|version| version.is_stale() && version.resources.len() == 1));
        assert_eq!(
            groups(&lacking(&snapshot.servers[1], &snapshot, &peer_discovery)),
            ["local"]
        );
        // The lists of an apiserver without a proxy may lack what it serves.
        let bare = Server {
            kind: ServerKind::Native,
            ..snapshot.servers[1].clone()
        };
        let of_bare = lacking(&bare, &snapshot, &peer_discovery);
        assert_eq!(groups(&of_bare), ["apps", "local", "more"]);
        let of_unknown = lacking(&snapshot.servers[2], &snapshot, &peer_discovery);
        assert_eq!(groups(&of_unknown), ["apps", "local", "more"]);
    }

    #[test]
    fn without_a_peer_what_others_list_and_not_what_a_process_before_did_is_added() {
        let servers = vec![
            server("a", Some(set(&["apps"]))),
            server("b", Some(set(&["b"]))),
        ];
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let peer_discovery = PeerDiscovery {
            served: Some(set(&["apps", "local"])),
            ..PeerDiscovery::default()
        };
        assert_eq!(
            groups(&unread(true, &snapshot, &peer_discovery)),
            ["apps", "b"]
        );
        let starting = unread(false, &snapshot, &peer_discovery);
        assert_eq!(groups(&starting), ["apps", "b", "local"]);
        let nobody = Snapshot::new(true, Vec::new(), None, Arc::default());
        assert!(groups(&unread(true, &nobody, &peer_discovery)).is_empty());
    }

    #[test]
    fn a_proxy_that_has_just_started_knows_the_local_server_by_its_record() {
        let servers = vec![server("b", Some(set(&["apps"])))];
        let mut snapshot = Snapshot::new(true, servers, None, Arc::default());
        snapshot.own_record = Some(set(&["apps", "only"]));
        let unknown = PeerDiscovery::default();
        let of_peer = lacking(&snapshot.servers[0], &snapshot, &unknown);
        assert_eq!(groups(&of_peer), ["only"]);
        for initialized in [false, true] {
            let alone = unread(initialized, &snapshot, &unknown);
            assert_eq!(groups(&alone), ["apps", "only"]);
        }
        let read = PeerDiscovery {
            served: Some(set(&["apps"])),
            ..PeerDiscovery::default()
        };
        assert!(groups(&lacking(&snapshot.servers[0], &snapshot, &read)).is_empty());
        assert_eq!(groups(&unread(true, &snapshot, &read)), ["apps"]);
    }

    #[test]
    fn where_all_list_the_same_nothing_is_lacking() {
        let same = set(&["apps"]);
        let servers = vec![
            server("a", Some(same.clone())),
            server("b", Some(set(&["apps"]))),
        ];
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let peer_discovery = PeerDiscovery {
            served: Some(same),
            ..PeerDiscovery::default()
        };
        for server in &snapshot.servers {
            assert!(groups(&lacking(server, &snapshot, &peer_discovery)).is_empty());
        }
    }
}
