//! The routing table (KEP-4020). Rows are numbered as in `ARCHITECTURE.md`; the first matching row decides.

use self::ServerChoice::{Local, Nowhere};
use super::table::{Holders, Snapshot};
use super::versions::Wanted;
use crate::config::Unsynced;
use crate::config::settings::Settings;
use crate::kube::gvr::{GvrRef, may_be_built_in};
use crate::kube::version::KubernetesVersion;
use crate::metrics::labels;

/// The parts of a request that routing needs.
#[derive(Debug, Clone, Copy)]
pub struct RoutingInput<'a> {
    /// The resource, for a resource request.
    pub resource: Option<GvrRef<'a>>,
    /// A peer has already rerouted it.
    pub rerouted: bool,
    /// A watch that resumes after this etcd revision (KEP-1904), for a server that still has the later changes.
    pub resume: Option<i64>,
    /// Orders the servers that list a built-in resource.
    pub wanted: Option<Wanted>,
}

/// The local apiserver's current state.
#[derive(Debug, Clone, Copy)]
pub struct LocalServer {
    /// Counts its processes.
    pub epoch: u64,
    /// It is initialized and takes requests.
    pub initialized: bool,
    /// The etcd revision since which it has watch history; `i64::MAX` while unknown.
    pub history_start: i64,
}

labels! {
    /// The row of the table that decided.
    #[derive(PartialOrd, Ord)]
    pub enum Row {
        /// 1: not a resource request.
        NotAResource = "not_a_resource",
        /// 2: rerouted once already.
        Rerouted = "already_rerouted",
        /// 3: rerouting is switched off.
        Disabled = "disabled",
        /// 4: this process has not read all of etcd's state yet.
        Unsynced = "unsynced",
        /// 5: the resource belongs to a CRD or an aggregated API, and no known server lists it as its own.
        Custom = "custom",
        /// 6: a watch that a peer's longer history can serve.
        Resume = "resume",
        /// 7: the local apiserver is initialized and lists it, and no target that lists it fits the version better.
        Local = "local",
        /// 8: peers list it.
        Peers = "peers",
        /// 9: the local apiserver lists it, but is not initialized.
        LocalUninitialized = "local_uninitialized",
        /// 10: only servers that cannot be reached list it.
        Unreachable = "unreachable",
        /// 11: no server lists it, but some served sets are unknown.
        Unknown = "unknown",
        /// 12: no server lists it.
        Nobody = "nobody",
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'s> {
    pub row: Row,
    /// The next one if no server there can answer: the result of the later rows. The local apiserver may come between peers that
    /// fit better and peers that fit worse.
    pub order: [ServerChoice<'s>; 3],
    /// After all of these.
    pub last: ServerChoice<'s>,
    /// What becomes of the first destination's "no such resource".
    pub no_such_resource: NoSuchResource,
}

/// What becomes of an apiserver's "no such resource". A false one makes controllers delete things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSuchResource {
    /// It is passed on.
    Pass,
    /// It is passed on if it is proved that no server is missing in the snapshot, and no server lists the resource.
    IfProved,
    /// It is passed on if every other target answers the same.
    IfUnanimous,
    /// It is in doubt: the next candidate is asked, and without one the answer is 503.
    Doubt,
}

impl<'s> Decision<'s> {
    /// "No such resource" is in doubt.
    fn new(row: Row, order: [ServerChoice<'s>; 3]) -> Self {
        Self {
            row,
            order,
            last: Nowhere,
            no_such_resource: NoSuchResource::Doubt,
        }
    }

    fn if_not_found(self, no_such_resource: NoSuchResource) -> Self {
        Self {
            no_such_resource,
            ..self
        }
    }
}

/// Where to send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerChoice<'s> {
    /// The local apiserver.
    Local,
    /// One of these.
    Peers(Peers<'s>),
    /// None: 503 with `Retry-After`.
    Nowhere,
}

/// Servers of the snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peers<'s> {
    pub indices: &'s [usize],
    /// Those that fit this best come first.
    pub wanted: Option<Wanted>,
    /// Only those that are ready.
    pub ready: bool,
    /// Only those whose watch history reaches back to this etcd revision.
    pub since: Option<i64>,
}

impl<'s> Peers<'s> {
    /// Any of these servers.
    pub fn any(indices: &'s [usize]) -> Self {
        Self {
            indices,
            ..Self::default()
        }
    }

    /// Those that list a resource.
    fn listing(holders: &'s Holders, wanted: Option<Wanted>) -> Self {
        Self {
            wanted,
            ..Self::any(&holders.targets)
        }
    }

    fn with_history(self, since: i64) -> ServerChoice<'s> {
        let since = Some(since);
        ServerChoice::Peers(Self { since, ..self })
    }
}

/// The local apiserver, or nobody.
fn local_if(is_meant: bool) -> ServerChoice<'static> {
    if is_meant { Local } else { Nowhere }
}

/// Applies the table. `stale`: whether the snapshot is too old to prove absence; called only where it matters.
pub fn decide<'s>(
    question: RoutingInput<'_>,
    settings: &Settings,
    local: LocalServer,
    snapshot: &'s Snapshot,
    stale: impl FnOnce() -> bool,
) -> Decision<'s> {
    let to = |row, first| Decision::new(row, [first, Nowhere, Nowhere]);
    let Some(gvr) = question.resource else {
        return to(Row::NotAResource, Local).if_not_found(NoSuchResource::Pass);
    };
    if question.rerouted {
        return to(Row::Rerouted, local_if(local.initialized));
    }
    if !settings.rerouting {
        return to(Row::Disabled, Local).if_not_found(NoSuchResource::Pass);
    }
    if !snapshot.synced {
        let serves_local = settings.unsynced == Unsynced::ServeLocal;
        return to(Row::Unsynced, local_if(serves_local));
    }
    if snapshot.is_custom(gvr) {
        return custom(gvr, local, snapshot);
    }
    match snapshot.holders(gvr) {
        Some((_, holders)) => {
            let peers = Peers::listing(holders, question.wanted);
            let since = question.resume;
            resumed(since, local, snapshot, holders, peers)
                .unwrap_or_else(|| listed(local, snapshot, (gvr, holders), peers, since))
        }
        None if !snapshot.local_known || snapshot.peer_unknown || stale() => {
            to(Row::Unknown, Local)
        }
        None => to(Row::Nobody, Local).if_not_found(NoSuchResource::IfProved),
    }
}

/// Row 5. An apiserver learns of a CRD, or of a version of one, later than others. A CRD may have the name of what a server
/// serves of which nothing is known.
fn custom<'s>(gvr: GvrRef<'_>, local: LocalServer, snapshot: &'s Snapshot) -> Decision<'s> {
    let is_doubted = snapshot.peer_unknown && may_be_built_in(gvr.group);
    let unless_doubted = |passed| match is_doubted {
        true => NoSuchResource::Doubt,
        false => passed,
    };
    let targets = ServerChoice::Peers(Peers::any(&snapshot.targets));
    let only_local = Decision::new(Row::Custom, [Local, Nowhere, Nowhere]);
    match (local.initialized, snapshot.targets.is_empty()) {
        (true, true) => only_local.if_not_found(unless_doubted(NoSuchResource::Pass)),
        (true, false) => Decision::new(Row::Custom, [Local, targets, Nowhere])
            .if_not_found(unless_doubted(NoSuchResource::IfUnanimous)),
        (false, true) => only_local,
        (false, false) => Decision::new(Row::Custom, [targets, Local, Nowhere]),
    }
}

/// Row 6: only peers have the history of a watch; or, if no target has it, a server that drains.
fn resumed<'s>(
    since: Option<i64>,
    local: LocalServer,
    snapshot: &Snapshot,
    holders: &'s Holders,
    peers: Peers<'s>,
) -> Option<Decision<'s>> {
    let since = since?;
    if holders.local && local.initialized && since >= local.history_start {
        return None;
    }
    let reaches = |index: &usize| snapshot.servers[*index].reaches(since);
    let draining = Peers {
        indices: &holders.draining,
        ..peers
    };
    let mut first = [peers, draining].into_iter();
    let first = first.find(|peers| peers.indices.iter().any(reaches))?;
    let all = ServerChoice::Peers(peers);
    let [next, then] = match (holders.local, local.initialized) {
        (true, true) => [Local, all],
        (true, false) => [all, Local],
        (false, _) => [all, Nowhere],
    };
    let order = [first.with_history(since), next, then];
    Some(Decision::new(Row::Resume, order))
}

/// Rows 7 to 11, for what some server lists.
fn listed<'s>(
    local: LocalServer,
    snapshot: &Snapshot,
    (gvr, holders): (GvrRef<'_>, &Holders),
    peers: Peers<'s>,
    since: Option<i64>,
) -> Decision<'s> {
    let all = ServerChoice::Peers(peers);
    let since = since.filter(|since| *since >= local.history_start);
    let (row, order) = match (peers.indices, holders.local) {
        (_, true) if local.initialized => match better(snapshot, peers, since) {
            None => (Row::Local, [Local, all, Nowhere]),
            Some(better) => (Row::Peers, [ServerChoice::Peers(better), Local, all]),
        },
        ([], true) => (Row::LocalUninitialized, [Local, Nowhere, Nowhere]),
        (_, true) => (Row::Peers, [all, Local, Nowhere]),
        // The local served set is unknown, so the local apiserver may list the resource too. What it answers under the name of
        // a CRD may be another resource.
        ([], false)
            if local.initialized && !snapshot.local_known && !snapshot.may_be_anothers(gvr) =>
        {
            (Row::Unknown, [Local, Nowhere, Nowhere])
        }
        ([], false) => (Row::Unreachable, [Nowhere; 3]),
        (_, false) => (Row::Peers, [all, Nowhere, Nowhere]),
    };
    Decision::new(row, order)
}

/// Where a request goes that a server of the version `than` does not understand: to the nearest newer ones.
pub fn among_newer<'s>(
    question: RoutingInput<'_>,
    settings: &Settings,
    local: LocalServer,
    snapshot: &'s Snapshot,
    than: Option<KubernetesVersion>,
) -> Option<Decision<'s>> {
    let gvr = question.resource?;
    let asks_others = !question.rerouted && settings.rerouting && snapshot.synced;
    if !asks_others || snapshot.is_custom(gvr) {
        return None;
    }
    let (_, holders) = snapshot.holders(gvr)?;
    let all = Peers::listing(holders, Some(Wanted::Oldest));
    let is_newer = |version| version > than;
    let newer = Peers {
        indices: snapshot.those(all.indices, |server| is_newer(server.version)),
        ..all
    };
    let is_local = holders.local && local.initialized && is_newer(snapshot.local_version);
    let order = [local_if(is_local), ServerChoice::Peers(newer), Nowhere];
    Some(Decision::new(Row::Peers, order))
}

/// Those of `peers` that come before the local apiserver. For a watch from the revision `since`, which that one has the
/// history of: only those that have it too.
fn better<'s>(snapshot: &Snapshot, peers: Peers<'s>, since: Option<i64>) -> Option<Peers<'s>> {
    let wanted = peers.wanted?;
    let ready = wanted.needs_ready();
    let serves = |index: &usize| {
        let server = &snapshot.servers[*index];
        since.is_none_or(|since| server.reaches(since)) && (server.ready || !ready)
    };
    let better = Peers {
        indices: snapshot.before_local(peers.indices, wanted),
        ready,
        since,
        ..peers
    };
    better.indices.iter().any(serves).then_some(better)
}

/// Where a watch from a revision goes after a server has answered that it has no history from there: first the targets
/// whose history is known to reach back, then the other targets that list the resource, then the local apiserver, and last
/// those that drain. The caches of custom resources begin at their first use, on each server at another time: any of them
/// may have one.
pub fn after_expiry<'s>(
    question: RoutingInput<'_>,
    settings: &Settings,
    local: LocalServer,
    snapshot: &'s Snapshot,
) -> Option<Decision<'s>> {
    let (gvr, since) = question.resource.zip(question.resume)?;
    // The proxy that a rerouted watch came through asks the others.
    if question.rerouted || !settings.rerouting || !snapshot.synced {
        return None;
    }
    let (peers, indices, is_local) = match snapshot.is_custom(gvr) {
        true => (Peers::any(&snapshot.targets), &snapshot.draining, true),
        false => {
            let (_, holders) = snapshot.holders(gvr)?;
            let peers = Peers::listing(holders, question.wanted);
            (peers, &holders.draining, holders.local)
        }
    };
    let order = [
        peers.with_history(since),
        ServerChoice::Peers(peers),
        local_if(is_local && local.initialized),
    ];
    Some(Decision {
        last: ServerChoice::Peers(Peers { indices, ..peers }),
        ..Decision::new(Row::Resume, order)
    })
}

#[cfg(test)]
mod tests;
