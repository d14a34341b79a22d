//! Orders servers by age: by the version that they emulate, then by their binary's version. Pure.

use std::cmp::{Ordering, Reverse};

use crate::kube::gvr::GroupVersion;
use crate::kube::version::{KubernetesVersion, numbers};
use crate::routing::table::{Server, Snapshot};

/// How new a server is. An unknown version is the oldest.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    compatibility: Option<KubernetesVersion>,
    /// Major, minor and patch.
    binary: [u32; 3],
}

impl Rank {
    /// `compatibility`: the emulated version; `None`: the binary's. `binary`: for example `v1.20.2`.
    pub fn new(compatibility: Option<KubernetesVersion>, binary: Option<&str>) -> Self {
        let binary = binary.map_or([0; 3], numbers);
        let of_binary = match binary {
            [0, 0, 0] => None,
            [major, minor, _] => Some(KubernetesVersion::new(major, minor)),
        };
        Self {
            compatibility: compatibility.or(of_binary),
            binary,
        }
    }

    pub fn of(server: &Server) -> Self {
        Self::new(server.version, server.binary_version.as_deref())
    }
}

/// Targets that list resources of a group version, as indices into [`Snapshot::servers`].
pub fn targets_of(snapshot: &Snapshot, of: &GroupVersion) -> Vec<usize> {
    // Before all of its resources.
    let first = of.gvr("");
    let lists = |server: &Server| {
        let served = server.served.as_deref();
        let next = served.and_then(|served| served.range(&first..).next());
        next.is_some_and(|gvr| gvr.group == of.group && gvr.version == of.version)
    };
    let mut targets = snapshot.targets.clone();
    targets.retain(|index| snapshot.servers.get(*index).is_some_and(lists));
    targets
}

/// Targets that are newer than `local`, as indices into [`Snapshot::servers`]: those that have told their versions
/// first, of these the newest. `None`: all targets. `told`: the local apiserver that runs now has said that it is `local`;
/// else those that are as new, and have told it, come too.
pub fn newer_targets(local: Option<&Rank>, told: bool, snapshot: &Snapshot) -> Vec<usize> {
    let rank = |index: &usize| snapshot.servers.get(*index).map(Rank::of);
    let has_told = |index: &usize| snapshot.servers.get(*index).map(Server::tells_itself);
    let comes = |index: &usize, local| match rank(index).as_ref().cmp(&Some(local)) {
        Ordering::Greater => true,
        Ordering::Equal => !told && has_told(index) == Some(true),
        Ordering::Less => false,
    };
    let mut newer = snapshot.targets.clone();
    newer.retain(|index| local.is_none_or(|local| comes(index, local)));
    // They stay in their order where they are equally new.
    newer.sort_by_cached_key(|index| Reverse((has_told(index), rank(index))));
    newer
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kube::gvr::{GvrRef, ServedSet};

    fn rank(binary: &str) -> Rank {
        Rank::new(None, Some(binary))
    }

    fn server(id: &str, binary: Option<&str>, target: bool, served: &[(&str, &str)]) -> Server {
        let gvr = |(group, version): &(&str, &str)| {
            let [resource, subresource] = ["things", "status"];
            GvrRef {
                group,
                version,
                resource,
                subresource,
            }
            .owned()
        };
        Server {
            served: Some(Arc::new(served.iter().map(gvr).collect::<ServedSet>())),
            ..Server::listing(id, binary, target, &[])
        }
    }

    fn snapshot(servers: Vec<Server>) -> Snapshot {
        Snapshot::new(true, servers, None, Arc::default())
    }

    #[test]
    fn versions_are_ordered_as_they_were_released() {
        let order = ["v1.9.11", "v1.20.2", "v1.20.11", "v1.36.0", "v1.36.1"];
        assert!(order.map(rank).is_sorted());
        assert!(Rank::default() < rank("v1.0.0"));
        assert_eq!(rank("v1.36.0-alpha.1"), rank("v1.36.0"));
        assert_eq!(rank("v1.30.1+k3s1"), rank("v1.30.1"));
        assert_eq!(rank("v1.30.1-gke.1047"), rank("v1.30.1"));
        assert_eq!(rank("nonsense"), rank("x.y.z"));
    }

    #[test]
    fn what_is_emulated_counts_before_the_binary() {
        let rank_of = |version: &str, binary| Rank::new(version.parse().ok(), Some(binary));
        let emulating = |version| rank_of(version, "v1.36.0");
        assert!(emulating("1.33") < rank("v1.34.0"));
        assert!(emulating("1.36") > rank_of("1.36", "v1.35.9"));
    }

    #[test]
    fn newer_targets_come_newest_first_and_those_that_are_not_newer_not_at_all() {
        let snapshot = snapshot(vec![
            server("a", Some("v1.33.0"), true, &[]),
            server("b", Some("v1.35.0"), true, &[]),
            server("c", Some("v1.36.0"), false, &[]),
            server("d", Some("v1.34.0"), true, &[]),
            server("e", Some("v1.35.0"), true, &[]),
            server("f", None, true, &[]),
        ]);
        let local = rank("v1.34.0");
        assert_eq!(newer_targets(Some(&local), true, &snapshot), [1, 4]);
        assert_eq!(newer_targets(None, true, &snapshot), [1, 4, 3, 0, 5]);
    }

    #[test]
    fn what_ran_there_before_comes_after_those_that_have_told_their_versions() {
        let mut replaced = server("a", Some("v1.36.0"), true, &[]);
        replaced.known = false;
        let told = server("b", Some("v1.35.0"), true, &[]);
        let snapshot = snapshot(vec![replaced, told]);
        let newer = |local, told| newer_targets(Some(&rank(local)), told, &snapshot);
        assert_eq!(newer("v1.34.0", true), [1, 0]);
        // Nor is the local one known to be what it was.
        assert_eq!(newer("v1.35.0", false), [1, 0]);
        assert_eq!(newer("v1.36.0", false), [0; 0]);
    }

    #[test]
    fn a_group_version_is_asked_of_targets_that_list_it() {
        let snapshot = snapshot(vec![
            server("a", None, true, &[("apps", "v1"), ("batch", "v1")]),
            server("b", None, false, &[("batch", "v1")]),
            server("c", None, true, &[("", "v1"), ("batch", "v1beta1")]),
        ]);
        let targets = |group: &str, version: &str| {
            let (group, version) = (group.to_owned(), version.to_owned());
            targets_of(&snapshot, &GroupVersion { group, version })
        };
        assert_eq!(targets("batch", "v1"), [0]);
        assert_eq!(targets("batch", "v1beta1"), [2]);
        assert_eq!(targets("", "v1"), [2]);
        assert!(targets("batch", "v2").is_empty() && targets("zzz", "v1").is_empty());
    }
}
