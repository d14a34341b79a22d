//! Groups servers of one version that list the same into classes. Documents of one server are good for its class. Pure.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::newest::Rank;
use crate::kube::gvr::{GroupVersion, Gvr, ServedSet};
use crate::routing::table::Server;

/// Servers of one version that list the same, with resources that the local apiserver lacks.
#[derive(Debug, Clone)]
pub(super) struct ServerClass {
    served: Arc<ServedSet>,
    /// Binary version.
    pub(super) version: Option<String>,
    pub(super) rank: Rank,
    /// They have no proxy.
    pub(super) native: bool,
    /// By ID.
    pub(super) members: Vec<Server>,
    /// What the local apiserver lacks of what they serve.
    pub(super) lacking: ServedSet,
}

impl ServerClass {
    /// Whether both have the same contents, whatever their members.
    pub(super) fn same_contents(&self, other: &Self) -> bool {
        self.native == other.native
            && self.rank == other.rank
            && self.version == other.version
            && self.served == other.served
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

    /// The ID of the first member, which represents the class.
    pub(super) fn id(&self) -> &str {
        self.members.first().map_or("", |member| &member.id)
    }

    /// Group versions with lacking resources.
    pub(super) fn group_versions(&self) -> BTreeSet<GroupVersion> {
        self.lacking.iter().map(Gvr::group_version).collect()
    }
}

/// Classes of servers that list resources that `local` lacks. Reachable classes come first, then the newest.
pub(super) fn classes(servers: &[Server], local: &ServedSet) -> Vec<ServerClass> {
    let mut classes: Vec<ServerClass> = Vec::new();
    for server in servers {
        let Some(served) = &server.served else {
            continue;
        };
        let mut class = ServerClass {
            served: served.clone(),
            version: server.binary_version.clone(),
            rank: Rank::of(server),
            native: !server.kind.has_proxy(),
            members: vec![server.clone()],
            lacking: ServedSet::new(),
        };
        if let Some(known) = classes.iter_mut().find(|it| it.same_contents(&class)) {
            known.members.append(&mut class.members);
            continue;
        }
        class.lacking = served.difference(local).cloned().collect();
        classes.push(class);
    }
    classes.retain(|class| !class.lacking.is_empty());
    classes.sort_by(|one, other| {
        let age = other.rank.cmp(&one.rank).then(one.id().cmp(other.id()));
        let reachable = other.is_reachable().cmp(&one.is_reachable());
        reachable.then(age)
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
        let order: Vec<_> = classes.iter().map(ServerClass::id).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }
}
