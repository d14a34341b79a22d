//! The changes of all keys below one prefix: complete from one revision through another. Pure.
//!
//! [`super::change_logs`] writes it from one etcd watch, or from several without a gap between them. Bounded: of a busy
//! prefix the oldest changes are dropped.

use std::collections::VecDeque;

/// Changes that are kept.
const LIMIT: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    revision: i64,
    /// Without the prefix.
    key: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeLog {
    from: i64,
    through: i64,
    changes: VecDeque<Change>,
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
            && let Some(oldest) = self.changes.pop_front()
        {
            // It may have been one of several changes of its revision.
            self.from = self.from.max(oldest.revision + 1);
        }
        self.changes.push_back(Change {
            revision,
            key: key.into(),
        });
    }

    /// All changes up to and including `revision` are in the log.
    pub fn complete_through(&mut self, revision: i64) {
        // Never backwards: an etcd member that lags behind does not undo anything.
        self.through = self.through.max(revision);
    }

    /// The first revision that the log covers.
    pub fn from(&self) -> i64 {
        self.from
    }

    /// The last revision that the log covers.
    pub fn through(&self) -> i64 {
        self.through
    }

    /// The first change after `revision` of a key that begins with `scope`.
    pub fn first_after(&self, revision: i64, scope: &str) -> Option<i64> {
        let at = self
            .changes
            .partition_point(|change| change.revision <= revision);
        let mut later = self.changes.range(at..);
        later
            .find(|change| change.key.starts_with(scope))
            .map(|change| change.revision)
    }

    /// How many keys that begin with `scope` changed at `revision`.
    pub fn count_at(&self, revision: i64, scope: &str) -> usize {
        let changed = self.changes_at(revision);
        changed
            .filter(|change| change.key.starts_with(scope))
            .count()
    }

    fn changes_at(&self, revision: i64) -> impl Iterator<Item = &Change> {
        let at = self
            .changes
            .partition_point(|change| change.revision < revision);
        let later = self.changes.range(at..);
        later.take_while(move |change| change.revision == revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_by_revision_and_scope() {
        let mut log = ChangeLog::new(5);
        for (revision, key) in [(6, "a/x"), (8, "ab/x"), (8, "a/y"), (9, "b/x")] {
            log.changed(revision, key);
        }
        log.complete_through(12);
        log.complete_through(11);
        assert_eq!((log.from(), log.through()), (5, 12));
        assert_eq!(log.first_after(4, "a/"), Some(6));
        assert_eq!(log.first_after(6, "a/"), Some(8));
        assert_eq!(log.first_after(8, "a/"), None);
        assert_eq!(log.first_after(8, ""), Some(9));
        assert_eq!(
            (
                log.count_at(8, ""),
                log.count_at(8, "a/"),
                log.count_at(7, "")
            ),
            (2, 1, 0)
        );
    }

    #[test]
    fn what_is_too_much_is_forgotten_and_not_claimed() {
        let mut log = ChangeLog::new(1);
        let count = i64::try_from(LIMIT).unwrap() + 10;
        (1..=count).for_each(|revision| log.changed(revision, "a"));
        assert_eq!(log.from(), 11);
        assert_eq!(log.first_after(10, ""), Some(11));
    }
}
