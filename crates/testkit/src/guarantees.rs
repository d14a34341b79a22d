//! Compares a watch with what etcd guarantees of its own: ordered, unique, without gaps, atomic, with bookmarks that are
//! true. Pure.
//!
//! A watch through the API may end between the events of one transaction. And kube-apiserver (1.20) loses the rest of a
//! transaction during which a watch begins: after the events that its cache has, it passes only those of greater
//! revisions. [`begins_within`] tells this case. Everything else that etcd guarantees holds; no write through the API
//! changes two objects at one revision.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

pub type Data = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: i64,
    /// Namespace and name.
    pub object: String,
    pub kind: Kind,
    /// The object's data; of one that was deleted, its last.
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Event(Event),
    Bookmark(i64),
}

/// One watch, to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// It was asked for what came after this revision.
    pub from: i64,
    pub told: Vec<Told>,
}

impl Stream {
    pub fn new(from: i64) -> Self {
        Self {
            from,
            told: Vec::new(),
        }
    }

    /// From where the next watch has to go on. The last event is told again: it may be one of several of a transaction.
    pub fn position(&self) -> i64 {
        match self.told.last() {
            None => self.from,
            Some(Told::Bookmark(revision)) => *revision,
            Some(Told::Event(event)) => event.revision - 1,
        }
    }
}

/// A guarantee that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Unique: an event is told at most once, and not if the watch begins after it.
    Twice(Event),
    /// Ordered: by revision, and in a transaction as it was written.
    Unordered(Event),
    /// What is told has happened like that.
    MadeUp(Event),
    /// Reliable: what lies between two events is told.
    Missed(Event),
    /// Atomic: others of its revision were told without it.
    Torn(Event),
    /// Bookmarks: everything up to there was told.
    BookmarkAbove { bookmark: i64, event: Event },
    /// And they are ordered too.
    BookmarkBackwards { bookmark: i64, after: i64 },
}

/// What is wrong with a watch. `history`: every change of what it watches, as etcd told them, in etcd's order.
pub fn check(history: &[Event], stream: &Stream) -> Vec<Violation> {
    let mut check = Check {
        history,
        from: stream.from,
        told: vec![false; history.len()],
        next: history.partition_point(|event| event.revision <= stream.from),
        newest: stream.from,
        violations: Vec::new(),
    };
    for told in &stream.told {
        match told {
            Told::Event(event) => check.event(event),
            Told::Bookmark(revision) => check.bookmark(*revision),
        }
    }
    check.violations
}

/// The revision of the transaction during which a watch began, if that explains all that it missed of transactions.
pub fn begins_within(violations: &[Violation]) -> Option<i64> {
    let mut torn = violations.iter().filter_map(|violation| match violation {
        Violation::Torn(event) => Some(event.revision),
        _ => None,
    });
    let first = torn.next()?;
    torn.all(|revision| revision == first).then_some(first)
}

/// The state of one comparison.
struct Check<'a> {
    history: &'a [Event],
    from: i64,
    told: Vec<bool>,
    /// Index of the event that has to come next.
    next: usize,
    newest: i64,
    violations: Vec<Violation>,
}

impl Check<'_> {
    fn event(&mut self, event: &Event) {
        let Some(index) = self.history.iter().position(|it| it == event) else {
            self.violations.push(Violation::MadeUp(event.clone()));
            return;
        };
        if self.told[index] || event.revision <= self.from {
            self.violations.push(Violation::Twice(event.clone()));
        } else if index < self.next {
            self.violations.push(Violation::Unordered(event.clone()));
        }
        let newest = self.newest;
        for skipped in self.skip_to(index) {
            let is_torn = skipped.revision == newest || skipped.revision == event.revision;
            self.violations.push(match is_torn {
                true => Violation::Torn(skipped),
                false => Violation::Missed(skipped),
            });
        }
        self.told[index] = true;
        self.next = self.next.max(index + 1);
        self.newest = newest.max(event.revision);
    }

    fn bookmark(&mut self, bookmark: i64) {
        if bookmark < self.newest {
            let after = self.newest;
            let backwards = Violation::BookmarkBackwards { bookmark, after };
            self.violations.push(backwards);
        }
        let until = self
            .history
            .partition_point(|event| event.revision <= bookmark);
        for event in self.skip_to(until) {
            let above = Violation::BookmarkAbove { bookmark, event };
            self.violations.push(above);
        }
        self.newest = self.newest.max(bookmark);
    }

    /// What was not told before the event with this index.
    fn skip_to(&mut self, index: usize) -> Vec<Event> {
        let skipped = self.history.get(self.next..index).unwrap_or_default();
        self.next = self.next.max(index);
        skipped.to_vec()
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            revision,
            object,
            kind,
            data,
        } = self;
        write!(f, "{object} {kind:?} {data:?} at {revision}")
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(event) => write!(f, "told twice: {event}"),
            Self::Unordered(event) => write!(f, "told too late: {event}"),
            Self::MadeUp(event) => write!(f, "did not happen: {event}"),
            Self::Missed(event) => write!(f, "missed: {event}"),
            Self::Torn(event) => write!(f, "missed of a transaction: {event}"),
            Self::BookmarkAbove { bookmark, event } => {
                write!(f, "a bookmark at {bookmark} before it was told: {event}")
            }
            Self::BookmarkBackwards { bookmark, after } => {
                write!(f, "backwards: a bookmark at {bookmark}, after {after}")
            }
        }
    }
}
