//! Whose documents are needed: servers of one version that list the same are one class, and any of them speaks for all.
//! Pure.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::newest::Rank;
use crate::local::documents::GroupVersion;
use crate::routing::table::{Custom, Gvr, ServedSet, Server};

/// One server of a class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    /// Server ID.
    pub(super) id: Arc<str>,
    /// Where it is asked.
    pub(super) endpoint: SocketAddr,
    /// It can be asked.
    pub(super) target: bool,
}

/// Servers that list the same, in the same version, some of which the local apiserver lacks.
#[derive(Debug, Clone)]
pub(super) struct Class {
    served: Arc<ServedSet>,
    /// Version of their binaries.
    pub(super) version: Option<String>,
    /// How new they are.
    pub(super) rank: Rank,
    /// No proxy stands before them.
    pub(super) native: bool,
    /// By ID.
    pub(super) members: Vec<Member>,
    /// What the local apiserver lacks of what they serve.
    pub(super) lacking: ServedSet,
}

impl Class {
    /// Whether both speak of the same contents, whoever is in them now.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.native == other.native
            && self.rank == other.rank
            && self.version == other.version
            && self.served == other.served
    }

    /// Whether a server is in both.
    pub(super) fn shares_a_server(&self, other: &Self) -> bool {
        let in_other = |id| other.members.iter().any(|member| member.id == id);
        self.members
            .iter()
            .any(|member| in_other(member.id.clone()))
    }

    /// Those of its servers that can be asked.
    pub(super) fn targets(&self) -> Vec<SocketAddr> {
        let targets = self.members.iter().filter(|member| member.target);
        targets.map(|member| member.endpoint).collect()
    }

    /// The server that stands for all of them.
    pub(super) fn id(&self) -> &str {
        self.members.first().map_or("", |member| &member.id)
    }

    /// Group versions of which something is lacking.
    pub(super) fn group_versions(&self) -> BTreeSet<GroupVersion> {
        group_versions(&self.lacking)
    }
}

/// The group versions of resources.
pub(super) fn group_versions(resources: &ServedSet) -> BTreeSet<GroupVersion> {
    let mut all: BTreeSet<GroupVersion> = BTreeSet::new();
    // They are in order: few are looked at more than once.
    for gvr in resources {
        let known = |last: &GroupVersion| last.group == gvr.group && last.version == gvr.version;
        if !all.last().is_some_and(known) {
            all.insert(GroupVersion {
                group: gvr.group.clone(),
                version: gvr.version.clone(),
            });
        }
    }
    all
}

/// Classes of servers that list what `local` lacks, and that belongs to no CRD or aggregated API: those that can be asked
/// first, then by age, the newest first.
pub(super) fn classes(servers: &[Server], local: &ServedSet, custom: &Custom) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    let mut nothing_lacking: Vec<&Arc<ServedSet>> = Vec::new();
    for server in servers {
        let Some(served) = &server.served else {
            continue;
        };
        if nothing_lacking
            .iter()
            .any(|known| Arc::ptr_eq(known, served))
        {
            continue;
        }
        let member = Member {
            id: server.id.clone(),
            endpoint: server.endpoint,
            target: server.target,
        };
        let rank = Rank::of(server);
        let same = |class: &&mut Class| {
            class.native == server.native
                && class.rank == rank
                && class.version == server.binary_version
                && class.served == *served
        };
        if let Some(class) = classes.iter_mut().find(same) {
            class.members.push(member);
            continue;
        }
        let lacks = |gvr: &&Gvr| !custom.contains(gvr.borrow());
        let lacking: ServedSet = served.difference(local).filter(lacks).cloned().collect();
        if lacking.is_empty() {
            nothing_lacking.push(served);
            continue;
        }
        classes.push(Class {
            served: served.clone(),
            version: server.binary_version.clone(),
            rank,
            native: server.native,
            members: vec![member],
            lacking,
        });
    }
    let reachable = |class: &Class| class.members.iter().any(|member| member.target);
    classes.sort_by(|one, other| {
        let age = other.rank.cmp(&one.rank).then(one.id().cmp(other.id()));
        reachable(other).cmp(&reachable(one)).then(age)
    });
    classes
}

/// Which of `classes` have something that none before them has.
pub(super) fn cover<'a>(classes: impl Iterator<Item = &'a Class>) -> Vec<bool> {
    let mut covered: BTreeSet<&Gvr> = BTreeSet::new();
    classes
        .map(|class| {
            let before = covered.len();
            covered.extend(&class.lacking);
            covered.len() > before
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::GvrRef;

    fn set(group_versions: &[(&str, &str)]) -> ServedSet {
        let gvr = |(group, version): &(&str, &str)| {
            let [resource, subresource] = ["things", ""];
            GvrRef {
                group,
                version,
                resource,
                subresource,
            }
            .owned()
        };
        group_versions.iter().map(gvr).collect()
    }

    fn server(id: &str, version: &str, target: bool, served: &[(&str, &str)]) -> Server {
        Server {
            live: target,
            initialized: target,
            target,
            binary_version: Some(version.to_owned()),
            served: Some(Arc::new(set(served))),
            ..Server::peer(id)
        }
    }

    fn ids(class: &Class) -> Vec<&str> {
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
        assert!(classes(&servers, &set(NEW), &Custom::default()).is_empty());
    }

    #[test]
    fn equal_servers_of_one_version_are_one_class() {
        let servers = [
            server("a", "v1.36.0", true, NEW),
            server("b", "v1.36.0", false, NEW),
            server("c", "v1.36.1", true, NEW),
            Server {
                native: true,
                ..server("d", "v1.36.0", true, NEW)
            },
        ];
        let classes = classes(&servers, &set(OLD), &Custom::default());
        let found: Vec<_> = classes.iter().map(ids).collect();
        assert_eq!(found, [vec!["c"], vec!["a", "b"], vec!["d"]]);
        for class in &classes {
            assert_eq!(class.lacking, set(&[("batch", "v1")]));
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
        let classes = classes(&servers, &set(OLD), &Custom::default());
        let order: Vec<_> = classes.iter().map(Class::id).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }

    #[test]
    fn custom_resources_and_aggregated_apis_are_lacking_nowhere() {
        let pair = |a: &str, b: &str| crate::routing::table::Pair(a.to_owned(), b.to_owned());
        let custom = Custom {
            definitions: [pair("example.com", "things")].into_iter().collect(),
            aggregated: [pair("metrics.k8s.io", "v1")].into_iter().collect(),
        };
        let served = [("example.com", "v1"), ("metrics.k8s.io", "v1"), ("", "v1")];
        let servers = [server("a", "v1.36.0", true, &served)];
        assert!(classes(&servers, &set(OLD), &custom).is_empty());
    }

    #[test]
    fn only_those_with_something_of_their_own_are_needed_to_have_all() {
        let servers = [
            server("a", "v1.36.0", true, &[("x", "v1"), ("y", "v1")]),
            server("b", "v1.35.0", true, &[("x", "v1")]),
            server("c", "v1.34.0", true, &[("x", "v1"), ("z", "v1")]),
        ];
        let classes = classes(&servers, &set(OLD), &Custom::default());
        assert_eq!(cover(classes.iter()), [true, false, true]);
    }
}
