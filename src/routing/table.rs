//! The snapshot that every request reads: which servers serve which resources at one revision of etcd.
//!
//! Written by [`crate::cluster::catalog`] as a whole and published atomically; never changed afterwards. A request
//! takes it once and reads it without locks.

use crate::kube::gvr::{
    Custom, GroupVersion, Gvr, GvrRef, Pair, ResourceKind, Scope, Scopes, ServedSet,
    may_be_built_in,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hashbrown::HashMap;

use crate::kube::version::KubernetesVersion;
use crate::request::info::PathForm;
use crate::routing::versions::VersionWindow;

/// What is known of a server because of where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// The local apiserver.
    Local,
    /// Beside a proxy.
    Proxied,
    /// Without a proxy, with the native mixed version proxy of Kubernetes.
    Native,
    /// Without either: only its key below `masterleases/` says that it lives. Its ID is its address.
    Bare,
}

impl ServerKind {
    /// Whether a proxy of ours answers there.
    pub fn has_proxy(self) -> bool {
        self == Self::Proxied
    }
}

/// A known server, alive or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// KEP-1965 server ID.
    pub id: Arc<str>,
    /// Where its proxy can be reached.
    pub endpoint: SocketAddr,
    pub kind: ServerKind,
    /// Its live key exists (for a native server, its `peerserverleases` entry; a bare server has answered).
    pub live: bool,
    /// Its apiserver is initialized, according to its live key (a native server has an entry only then, and a bare one
    /// says so itself).
    pub initialized: bool,
    /// Live, initialized, and not at our own address: requests may be sent there.
    pub target: bool,
    /// A target whose apiserver is ready, according to its live key. Others are asked last.
    pub ready: bool,
    /// Version of its apiserver's binary, where known.
    pub binary_version: Option<String>,
    /// The version that its apiserver emulates, where known.
    pub version: Option<KubernetesVersion>,
    /// The etcd revision since which its apiserver has watch history (KEP-1904), where known: never too low.
    pub history_start: Option<i64>,
    /// Its history is that of another etcd: no watch is resumed there.
    pub history_void: bool,
    /// Not live any more, and its proxy is stopping: it serves watches that no target has the history of, and nothing else.
    pub draining: bool,
    /// The fields below are current; otherwise they are the last known values.
    pub known: bool,
    /// What its apiserver serves itself; `None` if that was never known.
    pub served: Option<Arc<ServedSet>>,
}

#[cfg(test)]
impl Server {
    /// A target of which nothing else is known.
    pub(crate) fn peer(id: &str) -> Self {
        Self {
            id: id.into(),
            endpoint: ([10, 0, 0, 1], 6443).into(),
            kind: ServerKind::Proxied,
            live: true,
            initialized: true,
            target: true,
            ready: true,
            binary_version: None,
            version: None,
            history_start: None,
            history_void: false,
            draining: false,
            known: true,
            served: None,
        }
    }

    /// A server that lists `things` in these (group, version) pairs. It is live only if it is a target.
    pub(crate) fn listing(
        id: &str,
        binary: Option<&str>,
        target: bool,
        group_versions: &[(&str, &str)],
    ) -> Self {
        Self {
            live: target,
            initialized: target,
            target,
            binary_version: binary.map(str::to_owned),
            served: Some(Arc::new(things(group_versions))),
            ..Self::peer(id)
        }
    }
}

/// The resource `things` in each of these (group, version) pairs.
#[cfg(test)]
pub(crate) fn things(group_versions: &[(&str, &str)]) -> ServedSet {
    let gvr = |(group, version): &(&str, &str)| Gvr {
        group: (*group).to_owned(),
        version: (*version).to_owned(),
        resource: "things".to_owned(),
        subresource: String::new(),
    };
    group_versions.iter().map(gvr).collect()
}

impl Server {
    /// Whether its watch history reaches back to an etcd revision.
    pub fn reaches(&self, revision: i64) -> bool {
        self.history_start.is_some_and(|start| start <= revision)
    }
}

/// The servers that list one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The local apiserver.
    pub local: bool,
    /// Peers that requests may be sent to: indices into [`Snapshot::servers`], by version, those without one first. At the end
    /// those whose version is that of the process before.
    pub targets: Vec<usize>,
    /// Indices of [`Server::draining`]s.
    pub draining: Vec<usize>,
    /// A known server that is not a target lists it.
    pub absent: bool,
    /// By the local apiserver's discovery, if that lists it.
    pub scope: Option<Scope>,
}

impl Holders {
    /// Whether a path of this form cannot be one of the resource.
    pub fn excludes(&self, form: PathForm) -> bool {
        form.longer
            || match self.scope {
                Some(Scope::Cluster) => form.in_namespace,
                Some(Scope::Namespaced) => form.named && !form.in_namespace,
                None => false,
            }
    }
}

/// When the reads of a server's discovery began that have all found the same.
#[derive(Debug, Clone, Copy)]
pub struct DiscoveryReads {
    /// `None`: all reads of this process.
    pub first: Option<Instant>,
    pub last: Instant,
}

/// The known state of the cluster.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// This process has read all of etcd's state at least once.
    pub synced: bool,
    /// All other known servers, ordered by ID.
    pub servers: Vec<Server>,
    /// Indices of [`Server::target`]s.
    pub targets: Vec<usize>,
    /// Indices of [`Server::draining`]s.
    pub draining: Vec<usize>,
    /// The local apiserver's served set is known.
    pub local_known: bool,
    /// What the local apiserver's own record in etcd lists, as this process or the one before wrote it.
    pub own_record: Option<Arc<ServedSet>>,
    /// What of the local served set may be a CRD's: the apiserver could not say yet.
    local_doubted: Arc<ServedSet>,
    /// The version that the local apiserver emulates, where known.
    pub local_version: Option<KubernetesVersion>,
    /// Set while the versions of live servers differ.
    pub window: Option<VersionWindow>,
    /// When that began, as this proxy has seen it.
    pub window_began: Option<SystemTime>,
    /// The local apiserver's run (its epoch) whose discovery was read last, and when the last read began.
    pub local_read: Option<(u64, Instant)>,
    /// The reads of servers without a proxy, by their addresses.
    pub reads: HashMap<SocketAddr, DiscoveryReads>,
    /// Some live server's served set is unknown.
    pub peer_unknown: bool,
    /// CRDs and aggregated APIs ([`Snapshot::is_custom`]).
    pub custom: Arc<Custom>,
    /// Requests share the names.
    holders: HashMap<Arc<Gvr>, Holders>,
}

impl Snapshot {
    /// Whether the apiserver of a peer says that it is ready.
    pub fn has_ready_target(&self) -> bool {
        self.servers.iter().any(|server| server.ready)
    }

    /// Derives the other fields from these.
    pub fn new(
        synced: bool,
        servers: Vec<Server>,
        local: Option<&ServedSet>,
        custom: Arc<Custom>,
    ) -> Self {
        let mut holders: HashMap<Arc<Gvr>, Holders> = HashMap::new();
        for gvr in local.into_iter().flatten() {
            holders.entry(Arc::new(gvr.clone())).or_default().local = true;
        }
        let mut by_version: Vec<(usize, &Server)> = servers.iter().enumerate().collect();
        by_version.sort_by_key(|(_, server)| (!server.known, server.version));
        for (index, server) in by_version {
            for gvr in server.served.iter().flat_map(|served| served.iter()) {
                let known = match holders.get_mut(&gvr.borrow()) {
                    Some(holders) => holders,
                    None => holders.entry(Arc::new(gvr.clone())).or_default(),
                };
                known.targets.extend(server.target.then_some(index));
                known.draining.extend(server.draining.then_some(index));
                known.absent |= !server.target;
            }
        }
        let those = |is: fn(&Server) -> bool| {
            let indices = (0..servers.len()).filter(|index| is(&servers[*index]));
            indices.collect()
        };
        Self {
            synced,
            targets: those(|server| server.target),
            draining: those(|server| server.draining),
            peer_unknown: servers.iter().any(|server| server.live && !server.known),
            local_known: local.is_some(),
            servers,
            custom,
            holders,
            ..Self::default()
        }
    }

    /// The scopes that the local apiserver's discovery says.
    pub fn set_scopes(&mut self, scopes: &Scopes) {
        for (gvr, holders) in self.holders.iter_mut().filter(|(_, it)| it.local) {
            holders.scope = scopes.get(&**gvr).copied();
        }
    }

    /// What the local apiserver lists and may be a CRD's there. Where another server serves a resource of this name itself,
    /// that one has it.
    pub fn set_doubted(&mut self, doubted: Arc<ServedSet>) {
        for gvr in &*doubted {
            if let Some(holders) = self.holders.get_mut(&gvr.borrow())
                && (holders.absent || !holders.targets.is_empty())
            {
                holders.local = false;
            }
        }
        self.local_doubted = doubted;
    }

    /// Whether `gvr` is only a CRD's or an aggregated API's: no known server serves it itself, nor did the local apiserver
    /// before it restarted.
    pub fn is_custom(&self, gvr: GvrRef<'_>) -> bool {
        let is_listed = || self.holders(gvr).is_some() || self.was_own(gvr);
        self.custom.contains(gvr) && !is_listed()
    }

    fn was_own(&self, gvr: GvrRef<'_>) -> bool {
        let record = self.own_record.as_ref().filter(|_| !self.local_known);
        record.is_some_and(|record| record.contains(&gvr.owned()))
    }

    /// Whether the local apiserver serves `gvr`, or did before it restarted, or nothing is known.
    pub fn may_be_local(&self, gvr: GvrRef<'_>) -> bool {
        self.is_custom(gvr)
            || match (self.local_known, &self.own_record) {
                (true, _) => self.holders(gvr).is_some_and(|(_, it)| it.local),
                (false, record) => record.is_none() || self.was_own(gvr),
            }
    }

    /// Whether a server whose history is not void serves `gvr`, now or when it is back: an informer may go on there from a list.
    pub fn may_go_on_in_order(&self, gvr: GvrRef<'_>) -> bool {
        let is_void = |index: &usize| self.servers[*index].history_void;
        let others = self.holders(gvr).map(|(_, holders)| holders);
        self.may_be_local(gvr)
            || others.is_some_and(|it| it.absent || !it.targets.iter().all(is_void))
    }

    /// Whether the local apiserver may have a CRD's or an aggregated API's resource under the name of one that another server
    /// serves itself: what is not its own, as far as is known, has such a name.
    pub fn may_be_anothers(&self, gvr: GvrRef<'_>) -> bool {
        self.custom.contains(gvr) && !self.was_own(gvr)
    }

    /// Whether the local apiserver's document of a group version may list a CRD's resource in place of one that only other
    /// servers serve themselves.
    pub fn may_hide_anothers(&self, of: &GroupVersion) -> bool {
        let of_group = self.custom.definitions.keys().filter(|it| it.0 == of.group);
        of_group.into_iter().any(|Pair(group, resource)| {
            let gvr = GvrRef {
                group,
                version: &of.version,
                resource,
                subresource: "",
            };
            let holders = self.holders(gvr);
            self.may_be_anothers(gvr) && holders.is_some_and(|(_, holders)| !holders.local)
        })
    }

    /// Whose resource `gvr` is at the local apiserver, or at a peer that it was sent to. `None`: it may be a CRD's or built-in,
    /// and what the local apiserver serves itself is not known.
    pub fn kind_at(&self, local: bool, gvr: GvrRef<'_>) -> Option<ResourceKind> {
        if self.custom.is_aggregated(gvr.group, gvr.version) {
            return Some(ResourceKind::Aggregated);
        }
        let holders = self.holders(gvr).map(|(_, holders)| holders);
        let is_own = holders.is_some_and(|holders| !local || holders.local);
        if is_own || self.custom.definition(gvr).is_none() {
            return Some(ResourceKind::BuiltIn);
        }
        let doubted = || !self.local_known || self.local_doubted.contains(&gvr.owned());
        let unknown = local && may_be_built_in(gvr.group) && doubted();
        (!unknown).then_some(ResourceKind::Custom)
    }

    /// The servers that list `gvr` as their own, and the listed name.
    pub fn holders(&self, gvr: GvrRef<'_>) -> Option<(&Arc<Gvr>, &Holders)> {
        self.holders.get_key_value(&gvr)
    }

    /// The name of a listed or custom resource, as discovery or etcd has it. That of a custom one is only what its CRD or APIService
    /// names: it is counted by it, and not asked for.
    pub fn name_of(&self, gvr: GvrRef<'_>) -> Option<Arc<Gvr>> {
        let listed = self.holders(gvr).map(|(name, _)| name.clone());
        listed.or_else(|| self.custom.name_of(gvr).map(Arc::new))
    }

    /// The targets that may serve `gvr`.
    pub fn targets_of(&self, gvr: GvrRef<'_>) -> &[usize] {
        match self.holders(gvr) {
            Some((_, holders)) => &holders.targets,
            None if self.is_custom(gvr) => &self.targets,
            None => &[],
        }
    }

    /// How many resources only the local apiserver lists, of all servers that requests may be sent to.
    pub fn only_local(&self) -> usize {
        let only_local = |holders: &&Holders| holders.local && holders.targets.is_empty();
        self.holders.values().filter(only_local).count()
    }

    /// Every listed resource, in order; for display.
    pub fn resources(&self) -> BTreeMap<&Gvr, &Holders> {
        let named = self.holders.iter();
        named.map(|(gvr, holders)| (&**gvr, holders)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::defined;

    #[test]
    fn a_path_of_another_scope_or_longer_than_a_subresource_is_none_of_the_resource() {
        let form = |in_namespace, named, longer| PathForm {
            in_namespace,
            named,
            longer,
            ..PathForm::default()
        };
        let excludes = |scope, form| {
            let holders = Holders {
                scope,
                ..Holders::default()
            };
            holders.excludes(form)
        };
        let (namespaced, cluster) = (Some(Scope::Namespaced), Some(Scope::Cluster));
        for (in_namespace, named, by_namespaced, by_cluster) in [
            (false, false, false, false),
            (false, true, true, false),
            (true, false, false, true),
            (true, true, false, true),
        ] {
            let form_of = |longer| form(in_namespace, named, longer);
            assert_eq!(excludes(namespaced, form_of(false)), by_namespaced);
            assert_eq!(excludes(cluster, form_of(false)), by_cluster);
            assert!(!excludes(None, form_of(false)));
            for scope in [namespaced, cluster, None] {
                assert!(excludes(scope, form_of(true)));
            }
        }
    }

    #[test]
    fn only_the_local_apiservers_discovery_says_scopes() {
        let local = things(&[("a", "v1"), ("b", "v1")]);
        let peer = Server::listing("b", None, true, &[("a", "v1"), ("c", "v1")]);
        let mut snapshot = Snapshot::new(true, vec![peer], Some(&local), Arc::default());
        let of = |group: &str| things(&[(group, "v1")]).pop_first().unwrap();
        let scopes = ["a", "c"].map(|group| (of(group), Scope::Cluster));
        snapshot.set_scopes(&scopes.into());
        let scope = |group: &str| snapshot.holders(of(group).borrow()).unwrap().1.scope;
        assert_eq!(scope("a"), Some(Scope::Cluster));
        assert_eq!((scope("b"), scope("c")), (None, None));
    }

    #[test]
    fn what_may_be_a_crds_here_is_left_to_a_server_that_has_it_itself() {
        let all = things(&[("a.k8s.io", "v1"), ("b.k8s.io", "v1"), ("c.k8s.io", "v1")]);
        let pair = |group: &str| Pair(group.to_owned(), "things".to_owned());
        let custom = Custom {
            definitions: ["a.k8s.io", "b.k8s.io", "c.k8s.io"]
                .map(|group| (pair(group), defined(&["v1"])))
                .into(),
            ..Custom::default()
        };
        let servers = [("a.k8s.io", true), ("b.k8s.io", false)]
            .map(|(group, target)| Server::listing(group, None, target, &[(group, "v1")]));
        let custom = Arc::new(custom);
        let unread = Snapshot::new(true, servers.to_vec(), None, custom.clone());
        let mut snapshot = Snapshot::new(true, servers.into(), Some(&all), custom);
        let hides = |snapshot: &Snapshot| {
            ["a.k8s.io", "b.k8s.io", "c.k8s.io"].map(|group| {
                snapshot.may_hide_anothers(&GroupVersion {
                    group: group.to_owned(),
                    version: "v1".to_owned(),
                })
            })
        };
        assert_eq!(hides(&unread), [true, true, false]);
        assert_eq!(hides(&snapshot), [false; 3]);
        snapshot.set_doubted(Arc::new(all.clone()));
        assert_eq!(hides(&snapshot), [true, true, false]);
        for (gvr, local, kind) in [
            ("a.k8s.io", false, None),
            ("b.k8s.io", false, None),
            ("c.k8s.io", true, Some(ResourceKind::BuiltIn)),
        ]
        .map(|(group, local, kind)| (things(&[(group, "v1")]).pop_first().unwrap(), local, kind))
        {
            let (_, holders) = snapshot.holders(gvr.borrow()).unwrap();
            assert_eq!(holders.local, local, "{gvr:?}");
            assert_eq!(snapshot.kind_at(true, gvr.borrow()), kind, "{gvr:?}");
        }
    }

    #[test]
    fn an_informer_may_go_on_where_a_history_is_or_will_be_in_order() {
        let all = things(&[("a", "v1")]);
        let gvr = all.first().unwrap().borrow();
        let server = |target, history_void| Server {
            history_void,
            ..Server::listing("b", None, target, &[("a", "v1")])
        };
        let of = |servers: &[&Server], local: Option<&ServedSet>| {
            let servers = servers.iter().copied().cloned().collect();
            Snapshot::new(true, servers, local, Arc::default())
        };
        let nothing = ServedSet::new();
        let [void, sound] = [true, false].map(|void| server(true, void));
        let absent = server(false, true);
        for (servers, local, may) in [
            (vec![], None, true),
            (vec![&void], Some(&all), true),
            (vec![&void], Some(&nothing), false),
            (vec![&void, &void], Some(&nothing), false),
            (vec![&void, &sound], Some(&nothing), true),
            // When it is back.
            (vec![&void, &absent], Some(&nothing), true),
        ] {
            let may_go_on = of(&servers, local).may_go_on_in_order(gvr);
            assert_eq!(may_go_on, may, "{servers:?} {local:?}");
        }
        // The local one starts again.
        let mut snapshot = of(&[&void], None);
        for (record, may) in [(nothing, false), (all.clone(), true)] {
            snapshot.own_record = Some(Arc::new(record));
            assert_eq!(snapshot.may_go_on_in_order(gvr), may);
        }
    }
}
