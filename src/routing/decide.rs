//! The routing table (KEP-4020). Rows are numbered as in `ARCHITECTURE.md`; the first matching row decides.

use std::sync::Arc;

use super::table::Snapshot;
use crate::config::Unsynced;
use crate::config::settings::Settings;
use crate::kube::gvr::{Gvr, GvrRef};
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
    /// The Kubernetes version that the client requests. Chooses among servers that list a built-in resource.
    pub version: Option<KubernetesVersion>,
}

/// The local apiserver's current state.
#[derive(Debug, Clone, Copy)]
pub struct LocalServer {
    /// `/readyz` has been 200 since its start.
    pub initialized: bool,
    /// The etcd revision since which it has watch history; `i64::MAX` while unknown.
    pub history_start: i64,
}

/// The routing configuration.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// `rerouting.enabled`
    pub rerouting: bool,
    /// `rerouting.unsynced`
    pub unsynced: Unsynced,
}

impl From<&Settings> for Policy {
    fn from(settings: &Settings) -> Self {
        Self {
            rerouting: settings.rerouting,
            unsynced: settings.unsynced,
        }
    }
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'s> {
    pub row: Row,
    pub to: ServerChoice<'s>,
    /// The next destination if no server there can answer: the result of the later rows.
    pub then: ServerChoice<'s>,
    /// The destination after that: the local apiserver may come between peers that fit better and peers that fit worse.
    pub finally: ServerChoice<'s>,
    /// What becomes of the destination's "no such resource".
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
    fn or(self, then: ServerChoice<'s>) -> Self {
        Self { then, ..self }
    }

    fn if_not_found(self, no_such_resource: NoSuchResource) -> Self {
        Self {
            no_such_resource,
            ..self
        }
    }
}

/// Where to send a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerChoice<'s> {
    /// The local apiserver.
    Local,
    /// Any of these servers of the snapshot, by index; and the listed resource, for metrics: none for a custom resource.
    Peers(&'s [usize], Option<&'s Arc<Gvr>>),
    /// These servers, by how well they fit the version.
    Fitting(&'s [usize], &'s Arc<Gvr>, KubernetesVersion),
    /// Those of these servers whose watch history reaches back to this etcd revision.
    Historians(&'s [usize], Option<&'s Arc<Gvr>>, i64),
    /// None: 503 with `Retry-After`.
    Nowhere,
}

/// Applies the table. `stale`: whether the snapshot is too old to prove absence; called only where it matters.
pub fn decide<'s>(
    question: RoutingInput<'_>,
    policy: Policy,
    local: LocalServer,
    snapshot: &'s Snapshot,
    stale: impl FnOnce() -> bool,
) -> Decision<'s> {
    let initialized = local.initialized;
    let guarded = |row, to| Decision {
        row,
        to,
        then: ServerChoice::Nowhere,
        finally: ServerChoice::Nowhere,
        no_such_resource: NoSuchResource::Doubt,
    };
    let open = |row, to| guarded(row, to).if_not_found(NoSuchResource::Pass);

    let Some(gvr) = question.resource else {
        return open(Row::NotAResource, ServerChoice::Local);
    };
    if question.rerouted {
        return match initialized {
            true => guarded(Row::Rerouted, ServerChoice::Local),
            false => guarded(Row::Rerouted, ServerChoice::Nowhere),
        };
    }
    if !policy.rerouting {
        return open(Row::Disabled, ServerChoice::Local);
    }
    if !snapshot.synced {
        return match policy.unsynced {
            Unsynced::Reject => guarded(Row::Unsynced, ServerChoice::Nowhere),
            Unsynced::ServeLocal => guarded(Row::Unsynced, ServerChoice::Local),
        };
    }
    if snapshot.is_custom(gvr) {
        let targets = ServerChoice::Peers(&snapshot.targets, None);
        let is_alone = snapshot.targets.is_empty();
        return match initialized {
            true if is_alone => open(Row::Custom, ServerChoice::Local),
            // An apiserver learns of a CRD, or of a version of one, later than others.
            true => guarded(Row::Custom, ServerChoice::Local)
                .or(targets)
                .if_not_found(NoSuchResource::IfUnanimous),
            false if is_alone => guarded(Row::Custom, ServerChoice::Local),
            false => guarded(Row::Custom, targets).or(ServerChoice::Local),
        };
    }
    let listed = snapshot.holders(gvr);
    if let (Some((gvr, holders)), Some(since)) = (listed, question.resume) {
        let local_reaches = holders.local && initialized && since >= local.history_start;
        let reaches = |index: &usize| snapshot.servers[*index].reaches(since);
        if !local_reaches && holders.targets.iter().any(reaches) {
            let historians = ServerChoice::Historians(&holders.targets, Some(gvr), since);
            let others = match holders.local {
                true => ServerChoice::Local,
                false => ServerChoice::Peers(&holders.targets, Some(gvr)),
            };
            return guarded(Row::Resume, historians).or(others);
        }
    }
    let peers = |targets, gvr| match question.version {
        Some(wanted) => ServerChoice::Fitting(targets, gvr, wanted),
        None => ServerChoice::Peers(targets, Some(gvr)),
    };
    match listed {
        Some((gvr, holders)) if holders.local && initialized => {
            let all = peers(&holders.targets, gvr);
            let better = |wanted| snapshot.better_than_local(&holders.targets, wanted);
            match question.version.map(better).unwrap_or_default() {
                [] => guarded(Row::Local, ServerChoice::Local).or(all),
                better => Decision {
                    finally: all,
                    ..guarded(Row::Peers, peers(better, gvr)).or(ServerChoice::Local)
                },
            }
        }
        Some((gvr, holders)) if !holders.targets.is_empty() => {
            let peers = guarded(Row::Peers, peers(&holders.targets, gvr));
            match holders.local {
                true => peers.or(ServerChoice::Local),
                false => peers,
            }
        }
        Some((_, holders)) if holders.local => {
            guarded(Row::LocalUninitialized, ServerChoice::Local)
        }
        // The local served set is unknown, so the local apiserver may list the resource too. What it answers under the name of
        // a CRD may be another resource.
        Some(_) if initialized && !snapshot.local_known && !snapshot.may_be_anothers(gvr) => {
            guarded(Row::Unknown, ServerChoice::Local)
        }
        Some(_) => guarded(Row::Unreachable, ServerChoice::Nowhere),
        None if !snapshot.local_known || snapshot.peer_unknown || stale() => {
            guarded(Row::Unknown, ServerChoice::Local)
        }
        None => guarded(Row::Nobody, ServerChoice::Local).if_not_found(NoSuchResource::IfProved),
    }
}

/// Where a watch from a revision goes after a server has answered that it has no history from there: first the targets
/// whose history is known to reach back, then the other targets that list the resource, then the local apiserver. The
/// caches of custom resources begin at their first use, on each server at another time: any target may have one.
pub fn after_expiry<'s>(
    question: RoutingInput<'_>,
    policy: Policy,
    local: LocalServer,
    snapshot: &'s Snapshot,
) -> Option<Decision<'s>> {
    let (gvr, since) = question.resource.zip(question.resume)?;
    // The proxy that a rerouted watch came through asks the others.
    if question.rerouted || !policy.rerouting || !snapshot.synced {
        return None;
    }
    let (targets, gvr, is_local) = match snapshot.is_custom(gvr) {
        true => (&snapshot.targets, None, true),
        false => {
            let (gvr, holders) = snapshot.holders(gvr)?;
            (&holders.targets, Some(gvr), holders.local)
        }
    };
    let others = match (gvr, question.version) {
        (Some(gvr), Some(wanted)) => ServerChoice::Fitting(targets, gvr, wanted),
        (gvr, _) => ServerChoice::Peers(targets, gvr),
    };
    Some(Decision {
        row: Row::Resume,
        to: ServerChoice::Historians(targets, gvr, since),
        then: others,
        finally: match is_local && local.initialized {
            true => ServerChoice::Local,
            false => ServerChoice::Nowhere,
        },
        no_such_resource: NoSuchResource::Doubt,
    })
}

#[cfg(test)]
mod tests;
