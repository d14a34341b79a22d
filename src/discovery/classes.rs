//! Groups servers of one version that list the same into classes. Documents of one server are good for its class. Pure.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::newest::Rank;
use crate::kube::gvr::{GroupVersion, Gvr, ServedSet};
use crate::routing::table::Server;

/// Servers of one version that list the same, with resources that the local apiserver lacks.
#[derive(Debug, Clone)]
pub(super) struct ServerClass {
    /// By ID, at least one.
    pub(super) members: Vec<Server>,
    /// What the local apiserver lacks of what they serve.
    pub(super) lacking: ServedSet,
}

/// What the members of a class have in common: their version, whether they have a proxy, and what they list.
pub(super) fn contents(server: &Server) -> (Rank, Option<&str>, bool, Option<&Arc<ServedSet>>) {
    let version = server.binary_version.as_deref();
    let (has_proxy, served) = (server.kind.has_proxy(), server.served.as_ref());
    (Rank::of(server), version, has_proxy, served)
}

impl ServerClass {
    /// Represents the class.
    pub(super) fn first(&self) -> &Server {
        &self.members[0]
    }

    /// Whether they have a server in common.
    pub(super) fn shares_a_server(&self, other: &Self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| other.members.iter().any(|it| it.id == member.id))
    }

    /// Whether a member can be reached.
    pub(super) fn is_reachable(&self) -> bool {
        self.members.iter().any(|member| member.target)
    }

    /// Addresses of the members that can be reached.
    pub(super) fn targets(&self) -> Vec<SocketAddr> {
        let targets = self.members.iter().filter(|member| member.target);
        targets.map(|member| member.endpoint).collect()
    }

    /// Group versions with lacking resources.
    pub(super) fn group_versions(&self) -> BTreeSet<GroupVersion> {
        self.lacking.iter().map(Gvr::group_version).collect()
    }
}

/// Classes of servers that list resources that `local` lacks. Reachable classes come first, then the newest.
pub(super) fn classes(servers: &[Server], local: &ServedSet) -> Vec<ServerClass> {
    let mut classes: Vec<ServerClass> = Vec::new();
    let listing = servers.iter();
    let listing = listing.filter_map(|server| Some((server, server.served.as_ref()?)));
    for (server, served) in listing {
        let mut known = classes.iter_mut();
        match known.find(|class| contents(class.first()) == contents(server)) {
            Some(class) => class.members.push(server.clone()),
            None => classes.push(ServerClass {
                members: vec![server.clone()],
                lacking: served.difference(local).cloned().collect(),
            }),
        }
    }
    classes.retain(|class| !class.lacking.is_empty());
    classes.sort_by_cached_key(|class| {
        let first = class.first();
        let age = Reverse((class.is_reachable(), Rank::of(first)));
        (age, first.id.clone())
    });
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::{ServerKind, things};

    fn server(id: &str, version: &str, target: bool, served: &[(&str, &str)]) -> Server {
        Server::listing(id, Some(version), target, served)
    }

    fn ids(class: &ServerClass) -> Vec<&str> {
        class.members.iter().map(|member| &*member.id).collect()
    }

    const OLD: &[(&str, &str)] = &[("", "v1"), ("batch", "v1beta1")];
    const NEW: &[(&str, &str)] = &[("", "v1"), ("batch", "v1")];

    #[test]
    fn servers_that_list_the_same_as_the_local_one_are_in_no_class() {
        let servers = [
            server("a", "v1.36.0", true, NEW),
            server("b", "v1.35.0", true, NEW),
        ];
        assert!(classes(&servers, &things(NEW)).is_empty());
    }

    #[test]
    fn equal_servers_of_one_version_are_one_class() {
        let servers = [
            server("a", "v1.36.0", true, NEW),
            server("b", "v1.36.0", false, NEW),
            server("c", "v1.36.1", true, NEW),
            Server {
                kind: ServerKind::Bare,
                ..server("d", "v1.36.0", true, NEW)
            },
        ];
        let classes = classes(&servers, &things(OLD));
        let found: Vec<_> = classes.iter().map(ids).collect();
        assert_eq!(found, [vec!["c"], vec!["a", "b"], vec!["d"]]);
        for class in &classes {
            assert_eq!(class.lacking, things(&[("batch", "v1")]));
        }
        assert_eq!(classes[1].targets().len(), 1);
    }

    #[test]
    fn those_that_can_be_asked_come_first_then_the_newest() {
        let servers = [
            server("a", "v1.36.0", false, &[("x", "v3")]),
            server("b", "v1.34.0", true, &[("x", "v1")]),
            server("c", "v1.35.0", true, &[("x", "v2")]),
        ];
        let classes = classes(&servers, &things(OLD));
        let order: Vec<_> = classes.iter().map(|class| &*class.first().id).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }
}
