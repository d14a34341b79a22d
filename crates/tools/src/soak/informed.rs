//! Compares what an informer was told, and what it listed, with etcd's history. Pure.

use std::collections::BTreeMap;

use testkit::ledger::{Change, Interest, Ledger, Told, Violation};

/// Namespace and name, and the revision of the last change.
pub type Objects = BTreeMap<String, i64>;

/// What an informer was told, in its order.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub name: String,
    pub told: Vec<Told>,
    /// Each list with its revision, the first included.
    pub lists: Vec<(i64, Objects)>,
}

/// `after`: every informer had listed then. `start`: what was there before the first of `changes`, and its revision.
pub fn check(story: &Story, after: i64, start: &Objects, changes: &[Change]) -> Vec<String> {
    let ledger = Ledger::new(after, changes.to_vec());
    let violations = ledger.check(&Interest::default(), &story.told);
    // How often they list again is counted; it is nothing wrong.
    let violations = violations
        .iter()
        .filter(|violation| !matches!(violation, Violation::ListedAgain(_)));
    let name = &story.name;
    let mut wrong: Vec<_> = violations
        .map(|violation| format!("{name}: {violation}"))
        .collect();
    for (revision, listed) in &story.lists {
        if *listed != at(*revision, start, changes) {
            wrong.push(format!(
                "{name}: a list at {revision} is not what etcd had then"
            ));
        }
    }
    wrong
}

/// Whether an informer was told everything up to its last change.
pub fn is_complete(story: &Story, last: i64) -> bool {
    story.told.iter().any(|told| match told {
        Told::Event(event) => event.revision >= last,
        Told::Listed(revision) => revision.is_some_and(|revision| revision >= last),
        Told::Bookmark(_) => false,
    })
}

fn at(revision: i64, start: &Objects, changes: &[Change]) -> Objects {
    let mut objects = start.clone();
    for change in changes.iter().filter(|change| change.revision <= revision) {
        let name = format!("{}/{}", change.namespace, change.name);
        match change.after {
            Some(_) => objects.insert(name, change.revision),
            None => objects.remove(&name),
        };
    }
    objects
}

#[cfg(test)]
mod tests;
