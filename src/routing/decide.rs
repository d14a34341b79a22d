//! The table of where a request goes (KEP-4020). Rows are numbered as in `ARCHITECTURE.md`; the first that matches
//! decides.

use super::table::{Gvr, GvrRef, Snapshot};
use super::version::Version;
use crate::config::Unsynced;

/// What is asked, as far as routing cares.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The resource, for a resource request.
    pub resource: Option<GvrRef<'a>>,
    /// It comes from a peer and was rerouted once.
    pub rerouted: bool,
    /// It is a watch that goes on after this etcd revision (KEP-1904), to be served by whoever still has what follows.
    pub resume: Option<i64>,
    /// The version that the client wants to be served with. It chooses among those that list a built-in resource.
    pub version: Option<Version>,
}

/// What is known of the local apiserver at this moment.
#[derive(Debug, Clone, Copy)]
pub struct Local {
    /// `/readyz` was 200 since it started.
    pub initialized: bool,
    /// The etcd revision since which it has watch history; `i64::MAX` while unknown.
    pub history_start: i64,
}

/// What the operator decided.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// `rerouting.enabled`
    pub rerouting: bool,
    /// `rerouting.unsynced`
    pub unsynced: Unsynced,
}

/// The row of the table that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Row {
    /// 1: not a resource request.
    NotAResource = 1,
    /// 2: rerouted once already.
    Rerouted,
    /// 3: rerouting is switched off.
    Disabled,
    /// 4: etcd's state was never complete since start.
    Unsynced,
    /// 5: the resource belongs to a CRD or an aggregated API.
    Custom,
    /// 6: a watch that a peer's longer history can serve.
    Resume,
    /// 7: local is initialized and lists it, and no target that lists it fits the version better.
    Local,
    /// 8: peers list it.
    Peers,
    /// 9: local lists it, but is not initialized.
    LocalUninitialized,
    /// 10: only servers that cannot be reached list it.
    Unreachable,
    /// 11: nobody lists it, but not everything is known.
    Unknown,
    /// 12: nobody lists it.
    Nobody,
}

impl Row {
    /// All rows, in order.
    pub const ALL: [Row; 12] = [
        Row::NotAResource,
        Row::Rerouted,
        Row::Disabled,
        Row::Unsynced,
        Row::Custom,
        Row::Resume,
        Row::Local,
        Row::Peers,
        Row::LocalUninitialized,
        Row::Unreachable,
        Row::Unknown,
        Row::Nobody,
    ];

    /// Name for logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Row::NotAResource => "not_a_resource",
            Row::Rerouted => "already_rerouted",
            Row::Disabled => "disabled",
            Row::Unsynced => "unsynced",
            Row::Custom => "custom",
            Row::Resume => "resume",
            Row::Local => "local",
            Row::Peers => "peers",
            Row::LocalUninitialized => "local_uninitialized",
            Row::Unreachable => "unreachable",
            Row::Unknown => "unknown",
            Row::Nobody => "nobody",
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'s> {
    /// Why.
    pub row: Row,
    /// Where.
    pub to: Place<'s>,
    /// Where to if nobody there can answer: what the rows after this one would say.
    pub then: Place<'s>,
    /// Where to after that: the local apiserver may stand between peers that fit better and those that fit less.
    pub finally: Place<'s>,
    /// Whether an apiserver's "no such resource" may reach the client.
    pub pass_no_such_resource: bool,
}

impl<'s> Decision<'s> {
    fn or(self, then: Place<'s>) -> Self {
        Self { then, ..self }
    }

    fn finally(self, finally: Place<'s>) -> Self {
        Self { finally, ..self }
    }
}

/// A place to send a request to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place<'s> {
    /// The apiserver beside us.
    Local,
    /// Any of these servers of the snapshot, by index; the resource's own name for metrics, where it is listed.
    Peers(&'s [usize], Option<&'s Gvr>),
    /// These servers, by how well they fit the version.
    Fitting(&'s [usize], &'s Gvr, Version),
    /// Those of these servers whose watch history reaches back to this etcd revision.
    Historians(&'s [usize], &'s Gvr, i64),
    /// Nowhere: 503 with `Retry-After`.
    Nowhere,
}

/// Decides. `stale`: whether the snapshot is too old to prove absence, asked only
/// where it matters.
pub fn decide<'s>(
    question: Question<'_>,
    policy: Policy,
    local: Local,
    snapshot: &'s Snapshot,
    stale: impl FnOnce() -> bool,
) -> Decision<'s> {
    let initialized = local.initialized;
    let guarded = |row, to| Decision {
        row,
        to,
        then: Place::Nowhere,
        finally: Place::Nowhere,
        pass_no_such_resource: false,
    };
    let open = |row, to| Decision {
        pass_no_such_resource: true,
        ..guarded(row, to)
    };

    let Some(gvr) = question.resource else {
        return open(Row::NotAResource, Place::Local);
    };
    if question.rerouted {
        return guarded(
            Row::Rerouted,
            if initialized {
                Place::Local
            } else {
                Place::Nowhere
            },
        );
    }
    if !policy.rerouting {
        return open(Row::Disabled, Place::Local);
    }
    if !snapshot.synced {
        return match policy.unsynced {
            Unsynced::Reject => guarded(Row::Unsynced, Place::Nowhere),
            Unsynced::ServeLocal => guarded(Row::Unsynced, Place::Local),
        };
    }
    if snapshot.custom.contains(gvr) {
        let targets = Place::Peers(&snapshot.targets, None);
        return match initialized {
            true => open(Row::Custom, Place::Local).or(targets),
            false if snapshot.targets.is_empty() => guarded(Row::Custom, Place::Local),
            false => guarded(Row::Custom, targets).or(Place::Local),
        };
    }
    let listed = snapshot.holders(gvr);
    if let (Some((gvr, holders)), Some(since)) = (listed, question.resume) {
        let local_reaches = holders.local && initialized && since >= local.history_start;
        let reaches = |index: &usize| snapshot.servers[*index].reaches(since);
        if !local_reaches && holders.targets.iter().any(reaches) {
            let historians = Place::Historians(&holders.targets, gvr, since);
            let others = match holders.local {
                true => Place::Local,
                false => Place::Peers(&holders.targets, Some(gvr)),
            };
            return guarded(Row::Resume, historians).or(others);
        }
    }
    let peers = |targets, gvr| match question.version {
        Some(wanted) => Place::Fitting(targets, gvr, wanted),
        None => Place::Peers(targets, Some(gvr)),
    };
    match listed {
        Some((gvr, holders)) if holders.local && initialized => {
            let all = peers(&holders.targets, gvr);
            let better = |wanted| snapshot.better_than_local(&holders.targets, wanted);
            match question.version.map(better).unwrap_or_default() {
                [] => guarded(Row::Local, Place::Local).or(all),
                better => guarded(Row::Peers, peers(better, gvr))
                    .or(Place::Local)
                    .finally(all),
            }
        }
        Some((gvr, holders)) if !holders.targets.is_empty() => {
            let peers = guarded(Row::Peers, peers(&holders.targets, gvr));
            match holders.local {
                true => peers.or(Place::Local),
                false => peers,
            }
        }
        Some((_, holders)) if holders.local => guarded(Row::LocalUninitialized, Place::Local),
        // What local serves is not known yet, so it may well be that it is not only the others that list it.
        Some(_) if initialized && !snapshot.local_known => guarded(Row::Unknown, Place::Local),
        Some(_) => guarded(Row::Unreachable, Place::Nowhere),
        None if !snapshot.local_known || snapshot.peer_unknown || stale() => {
            guarded(Row::Unknown, Place::Local)
        }
        None => open(Row::Nobody, Place::Local),
    }
}

#[cfg(test)]
mod tests;
