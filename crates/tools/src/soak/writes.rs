//! Compares what writers were told with what happened, as etcd tells it. Pure.
//!
//! Names are unique: only its writer writes to an object. A created object's name begins with its operation's name
//! (`generateName`), so two executions make two objects; an update names the revision that it replaces.

use std::collections::BTreeMap;
use std::ops::Bound;

use testkit::ledger::Change;

use crate::rules::{Effect, Verb};

#[derive(Clone, Debug)]
pub struct Write {
    pub verb: Verb,
    /// Namespace and name; of a creation the beginning of it.
    pub object: String,
    pub effect: Effect,
    /// Attempts before the last that may have been executed, each.
    pub uncertain: usize,
}

/// What happened to one object.
#[derive(Default)]
struct Times {
    least: usize,
    most: usize,
}

impl Write {
    fn times(&self) -> Times {
        match self.effect {
            Effect::Done(_) => Times {
                least: 1,
                most: 1 + self.uncertain,
            },
            Effect::NotDone => Times {
                least: 0,
                most: self.uncertain,
            },
            Effect::Unknown => Times {
                least: 0,
                most: 1 + self.uncertain,
            },
        }
    }
}

/// Changes by the names of their objects, and of each object in etcd's order.
type Changes<'a> = BTreeMap<String, Vec<&'a Change>>;

/// What is wrong with the writes to one kind of objects. `changes`: all of that kind, in etcd's order.
pub fn check(writes: &[Write], changes: &[Change]) -> Vec<String> {
    let mut of_objects = Changes::new();
    for change in changes {
        of_objects.entry(name(change)).or_default().push(change);
    }
    let changes = &of_objects;
    let mut wrong = Vec::new();
    let (creations, others): (Vec<_>, Vec<_>) =
        writes.iter().partition(|write| write.verb == Verb::Create);
    for write in &creations {
        wrong.extend(created(write, changes));
    }
    let mut expected: BTreeMap<&str, Times> = BTreeMap::new();
    for write in &others {
        let (times, all) = (write.times(), expected.entry(&write.object).or_default());
        all.least += times.least;
        all.most += times.most;
        wrong.extend(at_its_revision(write, changes));
    }
    for (object, times) in expected {
        let all = changes.get(object).into_iter().flatten();
        let later = all.filter(|change| change.before.is_some());
        wrong.extend(counted("changes", object, later.count(), &times));
    }
    wrong
}

/// Of all objects whose names begin so.
fn beginning_with<'a>(
    changes: &'a Changes<'a>,
    start: &'a str,
) -> impl Iterator<Item = &'a Change> {
    let from = changes.range::<str, _>((Bound::Included(start), Bound::Unbounded));
    let those = from.take_while(move |(name, _)| name.starts_with(start));
    those.flat_map(|(_, changes)| changes.iter().copied())
}

fn created(write: &Write, changes: &Changes<'_>) -> Vec<String> {
    let of_this = beginning_with(changes, &write.object);
    let of_this = of_this.filter(|change| change.before.is_none());
    let mut wrong = counted("objects", &write.object, of_this.count(), &write.times());
    wrong.extend(at_its_revision(write, changes));
    wrong
}

/// A revision that was answered must be there.
fn at_its_revision(write: &Write, changes: &Changes<'_>) -> Option<String> {
    let Effect::Done(Some(revision)) = write.effect else {
        return None;
    };
    let mut of_this = beginning_with(changes, &write.object);
    let object = &write.object;
    let verb = write.verb;
    (!of_this.any(|change| change.revision == revision))
        .then(|| format!("lost: {verb:?} of {object} was answered with {revision}"))
}

fn counted(what: &str, object: &str, count: usize, times: &Times) -> Vec<String> {
    let mut wrong = Vec::new();
    if count < times.least {
        wrong.push(format!(
            "lost: {count} {what} of {object}, at least {} expected",
            times.least
        ));
    }
    if count > times.most {
        wrong.push(format!(
            "done twice: {count} {what} of {object}, at most {} expected",
            times.most
        ));
    }
    wrong
}

fn name(change: &Change) -> String {
    format!("{}/{}", change.namespace, change.name)
}

#[cfg(test)]
mod tests;
