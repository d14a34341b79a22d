//! What changed below one prefix of etcd, and the revision for a watch's final bookmark that it proves: the newest up to
//! which the client has certainly seen everything. Pure.
//!
//! Invariant: every change of the watched keys at or before that revision was delivered. Where this cannot be proved, the
//! result is the reason.

use std::collections::VecDeque;

use super::follower::WatchPosition;
use crate::metrics::labels;

/// Changes that are kept: of a busy prefix the oldest are dropped.
const LIMIT: usize = 16 << 10;

/// The changes of all keys below one prefix, complete from one revision through another. [`super::change_logs`] writes it
/// from one etcd watch, or from several without a gap between them.
#[derive(Debug, Clone, Hash)]
pub struct ChangeLog {
    from: i64,
    through: i64,
    /// Revisions, and keys without the prefix.
    changes: VecDeque<(i64, Box<str>)>,
}

impl ChangeLog {
    /// Complete from `from` on, that revision included; no changes are known yet.
    pub fn new(from: i64) -> Self {
        Self {
            from,
            through: from - 1,
            changes: VecDeque::new(),
        }
    }

    /// A key, without the prefix, was written or deleted. Changes come in the order of their revisions.
    pub fn changed(&mut self, revision: i64, key: &str) {
        if self.changes.len() >= LIMIT
            && let Some((oldest, _)) = self.changes.pop_front()
        {
            // It may have been one of several changes of its revision.
            self.from = self.from.max(oldest + 1);
        }
        self.changes.push_back((revision, key.into()));
    }

    /// All changes up to and including `revision` are in the log.
    pub fn complete_through(&mut self, revision: i64) {
        // Never backwards: an etcd member that lags behind does not undo anything.
        self.through = self.through.max(revision);
    }

    /// The last revision that the log covers.
    pub fn through(&self) -> i64 {
        self.through
    }

    /// The revisions of all changes after `revision` of keys that begin with `scope`.
    fn after(&self, revision: i64, scope: &str) -> impl Iterator<Item = i64> {
        let at = self.changes.partition_point(|(at, _)| *at <= revision);
        let later = self.changes.range(at..);
        later
            .filter(move |(_, key)| key.starts_with(scope))
            .map(|(at, _)| *at)
    }
}

labels! {
    /// Why a watch ends without a final bookmark.
    pub enum Withheld {
        /// The response could not be parsed to its last byte: another media type, an error, a table, too large.
        NotUnderstood = "not_understood",
        /// Too much was kept of events that clients have read in part.
        OverBudget = "over_budget",
        /// The forwarded bytes end in the middle of a frame.
        HalfFrame = "half_frame",
        /// The watch began with the existing objects, and no bookmark came since.
        NoBeginning = "no_beginning",
        /// No delivered object shows the objects' type.
        TypeUnknown = "type_unknown",
        /// It is unknown where in etcd the resource is stored, or it is stored in another etcd.
        ElsewhereStored = "elsewhere_stored",
        /// It is not proved that the server stores the resource in this etcd.
        NotFound = "not_found",
        /// etcd did not report the changes in time.
        NotTold = "not_told",
        /// etcd has compacted the changes since, or there are too many.
        Forgotten = "forgotten",
        /// One transaction changed several objects, and not all of them were delivered.
        HalfRevision = "half_revision",
        /// The client has seen the newest revision already, or misses the very next change.
        NothingNewer = "nothing_newer",
    }
}

/// The newest revision up to which a client at `position` has seen every change of the keys that begin with `scope`.
/// `stored_here`: its server is proved to store the resource in this etcd.
pub fn newest_safe(
    WatchPosition { revision, seen, .. }: WatchPosition,
    scope: &str,
    log: &ChangeLog,
    stored_here: bool,
) -> Result<i64, Withheld> {
    if !stored_here {
        return Err(Withheld::NotFound);
    }
    // All of the position's own revision has been seen, or all that was seen of it must be compared.
    let needed = if seen > 0 { revision } else { revision + 1 };
    if log.from > needed {
        return Err(Withheld::Forgotten);
    }
    if seen > 0 {
        if log.through < revision {
            return Err(Withheld::NotTold);
        }
        let changes = log.after(revision - 1, scope);
        if changes.take_while(|at| *at == revision).count() != seen as usize {
            return Err(Withheld::HalfRevision);
        }
    }
    let missed = log.after(revision, scope).next();
    let safe = missed.map_or(log.through, |missed| missed - 1);
    match safe > revision {
        true => Ok(safe),
        false => Err(Withheld::NothingNewer),
    }
}

#[cfg(test)]
mod tests;
