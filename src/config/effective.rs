//! The value of each key that is in force, as text: says by key how two configurations differ.
//!
//! `super::section` notes every value that it reads, defaults included, so no key can be forgotten. Two spellings of
//! one value are the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Display, Formatter};

use super::tree::KeyPath;

/// Values by the full paths of their keys. A key without value and default is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectiveValues(BTreeMap<String, String>);

/// A key that has another value in another configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<'a> {
    pub key: &'a str,
    pub before: Option<&'a str>,
    pub now: Option<&'a str>,
}

impl Display for Change<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [before, now] = [self.before, self.now].map(|value| value.unwrap_or("unset"));
        write!(f, "{}: {before} -> {now}", self.key)
    }
}

impl EffectiveValues {
    /// A later value of the same key replaces the earlier one.
    pub(super) fn note(&mut self, path: &KeyPath, value: &dyn Debug) {
        self.0.insert(path.to_string(), format!("{value:?}"));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let values = self.0.iter();
        values.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The keys whose values differ in `new`, in alphabetical order.
    pub fn changes<'a>(&'a self, new: &'a Self) -> Vec<Change<'a>> {
        let keys: BTreeSet<&String> = self.0.keys().chain(new.0.keys()).collect();
        let value = |of: &'a Self, key| of.0.get(key).map(String::as_str);
        let changes = keys.into_iter().map(|key| Change {
            key,
            before: value(self, key),
            now: value(new, key),
        });
        changes
            .filter(|change| change.before != change.now)
            .collect()
    }
}
