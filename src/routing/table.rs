//! The snapshot that every request reads: who serves what, as of one moment.
//!
//! Written by [`crate::cluster::catalog`] as a whole and published atomically; never changed afterwards. A request
//! takes it once and reads it without locks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::{Equivalent, HashMap, HashSet};

use super::version::{Fit, Version};
use crate::request::info::ResourceRequest;

/// A resource as discovery lists it: group, version, resource and subresource (`""` for none and for the core group).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// API group, empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
}

/// A borrowed [`Gvr`], to look one up without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GvrRef<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
}

impl<'a> From<&'a ResourceRequest<'_>> for GvrRef<'a> {
    fn from(request: &'a ResourceRequest<'_>) -> Self {
        Self {
            group: &request.group,
            version: &request.version,
            resource: &request.resource,
            subresource: &request.subresource,
        }
    }
}

impl Equivalent<Gvr> for GvrRef<'_> {
    fn equivalent(&self, key: &Gvr) -> bool {
        *self == key.borrow()
    }
}

impl Gvr {
    /// The same, borrowed.
    pub fn borrow(&self) -> GvrRef<'_> {
        GvrRef {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
        }
    }
}

impl GvrRef<'_> {
    /// The same, owned.
    pub fn owned(self) -> Gvr {
        Gvr {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            resource: self.resource.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// Name of a version with its group, as objects and documents have it: `apps/v1`, and `v1` for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// Two names that belong together, looked up borrowed: (group, resource) of a CRD, (group, version) of an APIService.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair(pub String, pub String);

#[derive(Hash)]
struct PairRef<'a>(&'a str, &'a str);

impl Equivalent<Pair> for PairRef<'_> {
    fn equivalent(&self, key: &Pair) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

/// A set of resources served, grouped as discovery groups them.
pub type ServedSet = std::collections::BTreeSet<Gvr>;

/// Resources that every apiserver serves, because they are defined by objects in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Custom {
    /// (group, plural) of CustomResourceDefinitions.
    pub definitions: HashSet<Pair>,
    /// (group, version) of APIServices that have a `spec.service`.
    pub aggregated: HashSet<Pair>,
}

impl Custom {
    /// Whether `gvr` belongs to a CRD or an aggregated API.
    pub fn contains(&self, gvr: GvrRef<'_>) -> bool {
        self.definitions.contains(&PairRef(gvr.group, gvr.resource))
            || self.aggregated.contains(&PairRef(gvr.group, gvr.version))
    }
}

/// A server that is known, alive or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// KEP-1965 server ID.
    pub id: Arc<str>,
    /// Where its proxy can be reached.
    pub endpoint: SocketAddr,
    /// No proxy stands before it: a kube-apiserver with the native feature.
    pub native: bool,
    /// Its live key is there; a native one's `peerserverleases` entry.
    pub live: bool,
    /// Its live key says that its apiserver is initialized; a native one's entry is there only then.
    pub initialized: bool,
    /// Live, initialized, and not at our own address: requests may be sent there.
    pub target: bool,
    /// Version of its apiserver's binary, where known.
    pub binary_version: Option<String>,
    /// The version that its apiserver emulates, where known.
    pub version: Option<Version>,
    /// The etcd revision since which its apiserver has watch history (KEP-1904), where known: never too low.
    pub history_start: Option<i64>,
    /// What is said of it below is so now; otherwise it is what was known last.
    pub known: bool,
    /// What its apiserver serves; `None` if that was never known.
    pub served: Option<Arc<ServedSet>>,
}

#[cfg(test)]
impl Server {
    /// A peer that requests can be sent to, and of which nothing more is known.
    pub(crate) fn peer(id: &str) -> Self {
        Self {
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
            served: None,
        }
    }
}

impl Server {
    /// Whether its watch history reaches back to an etcd revision.
    pub fn reaches(&self, revision: i64) -> bool {
        self.history_start.is_some_and(|start| start <= revision)
    }
}

/// Who lists one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The local apiserver.
    pub local: bool,
    /// Peers that requests may be sent to: indices into [`Snapshot::servers`], by version, those without one first.
    pub targets: Vec<usize>,
    /// A known server that is no target.
    pub absent: bool,
}

/// What is known, at one revision of etcd.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Everything was listed at least once since this process started.
    pub synced: bool,
    /// All other known servers, ordered by ID.
    pub servers: Vec<Server>,
    /// Indices of [`Server::target`]s.
    pub targets: Vec<usize>,
    /// What the local apiserver serves itself is known.
    pub local_known: bool,
    /// The version that the local apiserver emulates, where known.
    pub local_version: Option<Version>,
    /// A live server's served set is not known, or somebody lives who tells of none.
    pub peer_unknown: bool,
    /// Resources of CRDs and aggregated APIs.
    pub custom: Arc<Custom>,
    holders: HashMap<Gvr, Holders>,
}

impl Snapshot {
    /// Puts a snapshot together; everything derived is derived here.
    pub fn new(
        synced: bool,
        servers: Vec<Server>,
        local: Option<&ServedSet>,
        custom: Arc<Custom>,
    ) -> Self {
        let mut holders: HashMap<Gvr, Holders> = HashMap::new();
        for gvr in local
            .into_iter()
            .flatten()
            .filter(|gvr| !custom.contains(gvr.borrow()))
        {
            holders.entry(gvr.clone()).or_default().local = true;
        }
        for class in classes(&servers) {
            for gvr in class.served.iter() {
                let known = match holders.get_mut(&gvr.borrow()) {
                    Some(holders) => holders,
                    // Records leave custom resources out, a native server's discovery does not.
                    None if class.native && custom.contains(gvr.borrow()) => continue,
                    None => holders.entry(gvr.clone()).or_default(),
                };
                known.targets.extend(&class.targets);
                known.absent |= class.absent;
            }
        }
        Self {
            synced,
            targets: indices(&servers, |server| server.target),
            peer_unknown: servers.iter().any(|server| server.live && !server.known),
            local_known: local.is_some(),
            local_version: None,
            servers,
            custom,
            holders,
        }
    }

    /// Who lists `gvr`, and the name under which they do.
    pub fn holders(&self, gvr: GvrRef<'_>) -> Option<(&Gvr, &Holders)> {
        self.holders.get_key_value(&gvr)
    }

    /// Those of `targets` ([`Holders::targets`]) that fit `wanted` better than the local apiserver does.
    pub fn better_than_local<'s>(&self, targets: &'s [usize], wanted: Version) -> &'s [usize] {
        let before = |version: Version| {
            targets.partition_point(|index| self.servers[*index].version < Some(version))
        };
        let end = match Fit::of(self.local_version, wanted) {
            Fit::AtLeast(local) => before(local),
            Fit::Rest => targets.len(),
        };
        targets.get(before(wanted)..end).unwrap_or_default()
    }

    /// Every resource somebody lists, in order: for people.
    pub fn resources(&self) -> BTreeMap<&Gvr, &Holders> {
        self.holders.iter().collect()
    }
}

/// Servers with the very same served set: most of a cluster's have, and each set is gone through once.
struct Class<'a> {
    served: &'a Arc<ServedSet>,
    native: bool,
    version: Option<Version>,
    targets: Vec<usize>,
    absent: bool,
}

/// In the order of their versions.
fn classes(servers: &[Server]) -> Vec<Class<'_>> {
    let mut classes: Vec<Class<'_>> = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        let Some(served) = &server.served else {
            continue;
        };
        let same = |class: &&mut Class<'_>| {
            class.native == server.native
                && class.version == server.version
                && Arc::ptr_eq(class.served, served)
        };
        let (targets, absent) = match server.target {
            true => (vec![index], false),
            false => (Vec::new(), true),
        };
        match classes.iter_mut().find(same) {
            Some(class) => {
                class.targets.extend(targets);
                class.absent |= absent;
            }
            None => classes.push(Class {
                served,
                native: server.native,
                version: server.version,
                targets,
                absent,
            }),
        }
    }
    classes.sort_by_key(|class| class.version);
    classes
}

fn indices(servers: &[Server], wanted: impl Fn(&Server) -> bool) -> Vec<usize> {
    servers
        .iter()
        .enumerate()
        .filter(|(_, server)| wanted(server))
        .map(|(index, _)| index)
        .collect()
}
