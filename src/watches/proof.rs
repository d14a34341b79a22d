//! Finds the revision for a watch's final bookmark: the newest up to which its client has certainly seen everything. Pure.
//!
//! Invariant: every change of the watched keys at or before the returned revision was delivered. Where this cannot be proved,
//! the result is the reason.

use super::change_log::ChangeLog;
use super::follower::WatchPosition;

/// Why a watch ends without a final bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The response could not be parsed to its last byte: another media type, an error, a table, too large.
    NotUnderstood,
    /// Too much was kept of events that clients have read in part.
    OverBudget,
    /// The forwarded bytes end in the middle of a frame.
    HalfFrame,
    /// The watch began with the existing objects, and no bookmark came since.
    NoBeginning,
    /// No delivered object shows the objects' type.
    TypeUnknown,
    /// It is unknown where in etcd the resource is stored, or it is stored in another etcd.
    ElsewhereStored,
    /// It is not proved that the server stores the resource in this etcd.
    NotFound,
    /// etcd did not report the changes in time.
    NotTold,
    /// etcd has compacted the changes since, or there are too many.
    Forgotten,
    /// One transaction changed several objects, and not all of them were delivered.
    HalfRevision,
    /// The client has seen the newest revision already, or misses the very next change.
    NothingNewer,
}

impl Withheld {
    pub const ALL: [Withheld; 11] = [
        Withheld::NotUnderstood,
        Withheld::OverBudget,
        Withheld::HalfFrame,
        Withheld::NoBeginning,
        Withheld::TypeUnknown,
        Withheld::ElsewhereStored,
        Withheld::NotFound,
        Withheld::NotTold,
        Withheld::Forgotten,
        Withheld::HalfRevision,
        Withheld::NothingNewer,
    ];

    /// Label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Withheld::NotUnderstood => "not_understood",
            Withheld::OverBudget => "over_budget",
            Withheld::HalfFrame => "half_frame",
            Withheld::NoBeginning => "no_beginning",
            Withheld::TypeUnknown => "type_unknown",
            Withheld::ElsewhereStored => "elsewhere_stored",
            Withheld::NotFound => "not_found",
            Withheld::NotTold => "not_told",
            Withheld::Forgotten => "forgotten",
            Withheld::HalfRevision => "half_revision",
            Withheld::NothingNewer => "nothing_newer",
        }
    }
}

/// The newest revision up to which a client at `position` has seen every change of the keys that begin with `scope`.
/// `stored_here`: its server is proved to store the resource in this etcd.
pub fn newest_safe(
    position: WatchPosition,
    scope: &str,
    log: &ChangeLog,
    stored_here: bool,
) -> Result<i64, Withheld> {
    let WatchPosition { revision, seen } = position;
    if !stored_here {
        return Err(Withheld::NotFound);
    }
    if seen > 0 {
        if log.from() > revision {
            return Err(Withheld::Forgotten);
        }
        if log.through() < revision {
            return Err(Withheld::NotTold);
        }
        if log.count_at(revision, scope) != seen as usize {
            return Err(Withheld::HalfRevision);
        }
    }
    if log.from() > revision + 1 {
        return Err(Withheld::Forgotten);
    }
    let missed = log.first_after(revision, scope);
    let safe = missed.map_or(log.through(), |missed| missed - 1);
    match safe > revision {
        true => Ok(safe),
        false => Err(Withheld::NothingNewer),
    }
}

#[cfg(test)]
mod tests;
