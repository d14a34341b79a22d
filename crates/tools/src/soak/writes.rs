//! Compares what writers were told with what happened, as etcd tells it. Pure.
//!
//! Names are unique: only its writer writes to an object. A created object's name begins with its operation's name
//! (`generateName`), so two executions make two objects; an update names the revision that it replaces.

use std::collections::BTreeMap;

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

/// What is wrong with the writes to one kind of objects. `changes`: all of that kind, in etcd's order.
pub fn check(writes: &[Write], changes: &[Change]) -> Vec<String> {
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
        let later = changes
            .iter()
            .filter(|change| name(change) == object && change.before.is_some());
        wrong.extend(counted("changes", object, later.count(), &times));
    }
    wrong
}

fn created(write: &Write, changes: &[Change]) -> Vec<String> {
    let of_this = changes
        .iter()
        .filter(|change| change.before.is_none() && name(change).starts_with(&write.object));
    let mut wrong = counted("objects", &write.object, of_this.count(), &write.times());
    wrong.extend(at_its_revision(write, changes));
    wrong
}

/// A revision that was answered must be there.
fn at_its_revision(write: &Write, changes: &[Change]) -> Option<String> {
    let Effect::Done(Some(revision)) = write.effect else {
        return None;
    };
    let is_it =
        |change: &Change| change.revision == revision && name(change).starts_with(&write.object);
    let object = &write.object;
    let verb = write.verb;
    (!changes.iter().any(is_it))
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
