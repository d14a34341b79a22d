//! Compares what an informer was told with what happened, as etcd tells it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

pub type Labels = BTreeMap<String, String>;

/// A change of one object, as etcd tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: i64,
    pub namespace: String,
    pub name: String,
    /// The object's labels before; `None`: it was created.
    pub before: Option<Labels>,
    /// The object's labels after; `None`: it was deleted.
    pub after: Option<Labels>,
}

/// What an informer asks for.
#[derive(Clone, Debug, Default)]
pub struct Interest {
    /// `None`: all.
    pub namespace: Option<String>,
    /// The objects must have this label.
    pub label: Option<(String, String)>,
}

/// What an informer has to be told about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// It is there now, or is another now.
    Applied,
    /// It is gone, or is no longer what was asked for.
    Deleted,
}

/// An event of an informer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    pub revision: i64,
    /// Namespace and name.
    pub object: String,
    pub what: What,
}

/// What an informer was told, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Event(Event),
    Bookmark(i64),
    /// It listed again; `None`: the list's revision is not known.
    Listed(Option<i64>),
}

/// What is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    Missed(Event),
    Twice(Event),
    /// Nothing of the kind happened.
    Unknown(Event),
    Backwards {
        event: Event,
        after: i64,
    },
    BookmarkBackwards {
        bookmark: i64,
        after: i64,
    },
    /// It had not been told this event yet.
    BookmarkAbove {
        bookmark: i64,
        event: Event,
    },
    ListedAgain(Option<i64>),
}

impl Interest {
    fn wants(&self, labels: Option<&Labels>) -> bool {
        match (labels, &self.label) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(labels), Some((name, value))) => labels.get(name) == Some(value),
        }
    }

    /// What it has to be told of a change.
    fn event(&self, change: &Change) -> Option<Event> {
        if self
            .namespace
            .as_ref()
            .is_some_and(|it| *it != change.namespace)
        {
            return None;
        }
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        let what = match (self.wants(before), self.wants(after)) {
            (_, true) => What::Applied,
            (true, false) => What::Deleted,
            (false, false) => return None,
        };
        Some(Event {
            revision: change.revision,
            object: format!("{}/{}", change.namespace, change.name),
            what,
        })
    }
}

/// Everything that happened to a resource between two revisions. What happened before and after is not judged.
pub struct Ledger {
    after: i64,
    until: i64,
    changes: Vec<Change>,
}

impl Ledger {
    /// `after`: all informers had listed then. `changes`: in etcd's order; the last of them is the last that is judged.
    pub fn new(after: i64, changes: Vec<Change>) -> Self {
        let in_order = changes.is_sorted_by_key(|change| change.revision);
        assert!(in_order, "etcd tells changes in the order of revisions");
        let until = changes.last().map_or(after, |change| change.revision);
        Self {
            after,
            until,
            changes,
        }
    }

    /// What an informer has to be told.
    pub fn due(&self, interest: &Interest) -> Vec<Event> {
        let changes = self
            .changes
            .iter()
            .filter(|change| self.judges(change.revision));
        changes
            .filter_map(|change| interest.event(change))
            .collect()
    }

    fn judges(&self, revision: i64) -> bool {
        self.after < revision && revision <= self.until
    }

    /// What is wrong with what an informer was told.
    pub fn check(&self, interest: &Interest, told: &[Told]) -> Vec<Violation> {
        let mut check = Check::new(self.due(interest));
        for (index, one) in told.iter().enumerate() {
            match one {
                Told::Event(event) if !self.judges(event.revision) => {}
                Told::Event(event) => check.event(event),
                Told::Bookmark(revision) => check.bookmark(*revision),
                Told::Listed(revision) => {
                    check.violations.push(Violation::ListedAgain(*revision));
                    check.listed(revision.unwrap_or_else(|| before_next(&told[index..])));
                }
            }
        }
        let missed = check.due.into_iter().map(Violation::Missed);
        check.violations.into_iter().chain(missed).collect()
    }
}

/// A list of unknown revision covers what came before the next event.
fn before_next(told: &[Told]) -> i64 {
    let next = told.iter().find_map(|told| match told {
        Told::Event(event) => Some(event.revision),
        _ => None,
    });
    next.map_or(i64::MAX, |revision| revision - 1)
}

/// The state of one comparison.
struct Check {
    all: BTreeSet<Event>,
    /// Not told yet.
    due: BTreeSet<Event>,
    told: BTreeSet<Event>,
    newest: i64,
    newest_bookmark: i64,
    violations: Vec<Violation>,
}

impl Check {
    fn new(due: Vec<Event>) -> Self {
        let due = BTreeSet::from_iter(due);
        Self {
            all: due.clone(),
            due,
            told: BTreeSet::new(),
            newest: 0,
            newest_bookmark: 0,
            violations: Vec::new(),
        }
    }

    fn event(&mut self, event: &Event) {
        let copy = || event.clone();
        if !self.all.contains(event) {
            self.violations.push(Violation::Unknown(copy()));
        } else if !self.told.insert(copy()) {
            self.violations.push(Violation::Twice(copy()));
        } else if event.revision < self.newest {
            let after = self.newest;
            let event = copy();
            self.violations.push(Violation::Backwards { event, after });
        }
        self.due.remove(event);
        self.newest = self.newest.max(event.revision);
    }

    fn bookmark(&mut self, bookmark: i64) {
        let after = self.newest.max(self.newest_bookmark);
        if bookmark < after {
            let backwards = Violation::BookmarkBackwards { bookmark, after };
            self.violations.push(backwards);
        }
        let is_new =
            |event: &&Event| event.revision > self.newest_bookmark && event.revision <= bookmark;
        let above = self
            .due
            .iter()
            .filter(is_new)
            .map(|event| Violation::BookmarkAbove {
                bookmark,
                event: event.clone(),
            });
        self.violations.extend(above);
        self.newest_bookmark = self.newest_bookmark.max(bookmark);
    }

    fn listed(&mut self, revision: i64) {
        self.due.retain(|event| event.revision > revision);
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            revision,
            object,
            what,
        } = self;
        write!(f, "{object} {what:?} at {revision}")
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed(event) => write!(f, "missed: {event}"),
            Self::Twice(event) => write!(f, "told twice: {event}"),
            Self::Unknown(event) => write!(f, "did not happen: {event}"),
            Self::Backwards { event, after } => write!(f, "backwards: {event}, after {after}"),
            Self::BookmarkBackwards { bookmark, after } => {
                write!(f, "backwards: a bookmark at {bookmark}, after {after}")
            }
            Self::BookmarkAbove { bookmark, event } => {
                write!(f, "a bookmark at {bookmark} before it was told: {event}")
            }
            Self::ListedAgain(revision) => write!(f, "listed again, at {revision:?}"),
        }
    }
}
