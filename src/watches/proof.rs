//! Which revision a client may be told when its watch ends: one up to which it has seen everything, for certain. Pure.
//!
//! Invariant: whatever it answers, there is no change of the watched keys, at or before that revision, that was not
//! delivered. Where that cannot be shown, the answer is why not.

use super::chronicle::Chronicle;
use super::follower::Position;

/// Why a client is told nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The answer was not understood to its last byte: another media type, an error, a table, too large.
    NotUnderstood,
    /// Half a frame was passed on.
    HalfFrame,
    /// It began with what there was, and no bookmark came since.
    NoBeginning,
    /// Nothing was delivered that tells the objects' type.
    TypeUnknown,
    /// It is not known where etcd has the resource, or it is in another etcd.
    ElsewhereStored,
    /// No delivered object was found in etcd as it was delivered.
    NotFound,
    /// etcd did not tell in time, or is not there.
    NotTold,
    /// etcd has forgotten what changed since, or too much did.
    Forgotten,
    /// One transaction changed several objects, and not all of them were delivered.
    HalfRevision,
    /// The client knows the newest already, or misses the very next change.
    NothingNewer,
}

impl Withheld {
    /// All of them.
    pub const ALL: [Withheld; 10] = [
        Withheld::NotUnderstood,
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

    /// Name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Withheld::NotUnderstood => "not_understood",
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

/// The newest revision that is safe for a client at `position`, which watches the keys that begin with `scope`.
/// `found`: an object that its server delivered was found in this etcd, with the same revision.
pub fn newest_safe(
    position: Position,
    scope: &str,
    chronicle: &Chronicle,
    found: bool,
) -> Result<i64, Withheld> {
    let Position { revision, seen } = position;
    if !found {
        return Err(Withheld::NotFound);
    }
    if seen > 0 {
        if chronicle.from() > revision {
            return Err(Withheld::Forgotten);
        }
        if chronicle.through() < revision {
            return Err(Withheld::NotTold);
        }
        if chronicle.count_at(revision, scope) != seen as usize {
            return Err(Withheld::HalfRevision);
        }
    }
    if chronicle.from() > revision + 1 {
        return Err(Withheld::Forgotten);
    }
    let missed = chronicle.first_after(revision, scope);
    let safe = missed.map_or(chronicle.through(), |missed| missed - 1);
    match safe > revision {
        true => Ok(safe),
        false => Err(Withheld::NothingNewer),
    }
}

#[cfg(test)]
mod tests;
