//! What is found while the file is read: problems, and values that rules across keys need.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};

use super::problem::{Problem, ProblemKind};
use super::tree::{KeyPath, one_line};

/// The value of each key that is in force, as text: defaults included, and two spellings of one value are the same text.
pub type EffectiveValues = BTreeMap<String, String>;

/// Most problems whose line is looked up: each look-up reads the file again.
const MAX_LOCATED: usize = 100;

/// Problems are collected, never returned early: an operator sees all of them at once.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Each value that was read, of its own type, also items of lists; a list is its length. A value is noted even where
    /// others have problems, so that one problem does not hide another.
    read: Vec<(KeyPath, Box<dyn Any>)>,
    problems: Vec<(KeyPath, ProblemKind, String)>,
    pub(super) values: EffectiveValues,
}

impl Facts {
    /// Notes the value of a key, or the number of a list's items; `shown`: as an effective value.
    pub(super) fn note(&mut self, path: KeyPath, value: impl Any, shown: &dyn Debug) {
        self.values.insert(path.name.clone(), format!("{shown:?}"));
        self.note_item(path, value);
    }

    /// Notes an item of a list.
    pub(super) fn note_item(&mut self, path: KeyPath, value: impl Any) {
        self.read.push((path, Box::new(value)));
    }

    /// All values of this type.
    pub(super) fn all<T: Any>(&self) -> impl Iterator<Item = (&KeyPath, &T)> {
        let values = self.read.iter();
        values.filter_map(|(path, value)| Some((path, value.downcast_ref()?)))
    }

    /// The value of `key`, such as `etcd.prefix`; of a list its length, a `usize`.
    pub(super) fn get<T: Any>(&self, key: &str) -> Option<&T> {
        Some(self.all().find(|(path, _)| path.name == key)?.1)
    }

    /// The value of `key`, or the items of this list, that have no problems.
    pub(super) fn each<T: Any>(&self, key: &str) -> impl Iterator<Item = (&KeyPath, &T)> {
        self.all().filter(move |(path, _)| {
            let rest = path.name.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        })
    }

    /// Whether a list has no items.
    pub(super) fn is_empty(&self, list: &str) -> bool {
        self.get(list) == Some(&0_usize)
    }

    /// Adds a problem of the value at `path`.
    pub(super) fn add(&mut self, path: KeyPath, kind: ProblemKind, message: impl Display) {
        self.problems.push((path, kind, one_line(message)));
    }

    /// Notes that `key`, or what has to be in it, is missing.
    pub(super) fn missing(&mut self, key: &str, message: impl Display) {
        self.add_to(key, ProblemKind::Missing, message);
    }

    /// Notes that the value of `key` does not go together with another one.
    pub(super) fn contradiction(&mut self, key: &str, message: impl Display) {
        self.add_to(key, ProblemKind::Contradiction, message);
    }

    /// Adds a problem of `key`, `section.name`, which may be missing.
    fn add_to(&mut self, key: &str, kind: ProblemKind, message: impl Display) {
        let mut known = self.read.iter().map(|(path, _)| path);
        let path = known.clone().find(|path| path.name == key).cloned();
        // Else where its section is, if that is there.
        let section = key.split_once('.').map(|(section, _)| section);
        let index = known.find_map(|path| {
            let is_in = path.name.split_once('.').map(|(section, _)| section) == section;
            path.indices.first().copied().filter(|_| is_in)
        });
        let path = path.unwrap_or_else(|| KeyPath {
            name: key.to_owned(),
            indices: Vec::from_iter(index),
        });
        self.add(path, kind, message);
    }

    /// Whether the value of `key` has a problem.
    pub(super) fn has_problem(&self, key: &str) -> bool {
        self.problems.iter().any(|(path, ..)| path.name == key)
    }

    /// All problems, in the order of the file; those without a line come last. `line`: of the key at these indices.
    pub(super) fn into_problems(self, line: impl Fn(&[usize]) -> Option<usize>) -> Vec<Problem> {
        let mut problems: Vec<Problem> = (self.problems.into_iter().enumerate())
            .map(|(index, (path, kind, message))| Problem {
                kind,
                line: (index < MAX_LOCATED).then(|| line(&path.indices)).flatten(),
                key: path.name,
                message,
            })
            .collect();
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        problems
    }
}
