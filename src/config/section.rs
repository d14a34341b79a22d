//! Reads one mapping of the file key by key, and notes all of its problems.
//!
//! The caller names each key once, with its default and the function that parses its value; all other keys are unknown.
//! `None` from any of these methods means that a problem was noted, never that a key is missing.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use super::facts::Facts;
use super::problem::ProblemKind;
#[cfg(test)]
use super::tests::survey;
use super::tree::{KeyPath, Node};
use super::{file, values};

const TWICE: &str = "is there twice; remove one";

/// A mapping of the file being read.
pub(super) struct Section<'n, 'p> {
    path: KeyPath,
    entries: &'n [(String, Node)],
    /// It, or a section around it, is not a mapping. That is noted; missing keys are no further problems.
    broken: bool,
    known: Vec<&'static str>,
    /// Relative paths start there.
    base: &'p Path,
    facts: &'p mut Facts,
}

impl<'n> Section<'n, '_> {
    /// Reads the mapping `key` below this one with `read`; an empty one if it was left out.
    pub(super) fn section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'n, '_>) -> T,
    ) -> T {
        let (path, node) = self.find(key);
        visit(path, node, self.broken, self.base, self.facts, read)
    }

    /// Reads each mapping of the list `key` with `read`; the list is empty if it was left out.
    pub(super) fn mappings<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Section<'n, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (list, items) = self.given(key, items)?;
        #[cfg(test)]
        survey::default_items::<()>(&[], |_| {
            Err("expected a mapping, found a tagged value".to_owned())
        });
        let items = items.unwrap_or_default();
        // Their keys are noted one by one.
        self.facts.note(list.clone(), items.len(), &items.len());
        let values = items.iter().enumerate().map(|(index, item)| {
            let path = list.item(index);
            visit(path, Some(item), false, self.base, self.facts, &mut read)
        });
        let values: Vec<_> = values.collect();
        values.into_iter().collect()
    }

    /// The value of an optional key. `Some(None)`: it was left out.
    pub(super) fn optional<T: Debug + Clone + 'static>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let (path, value) = self.given(key, parse)?;
        if let Some(value) = &value {
            self.facts.note(path, value.clone(), value);
        }
        Some(value)
    }

    /// The value of a required key.
    pub(super) fn required<T: Debug + Clone + 'static>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<T> {
        let (path, value) = self.given(key, parse)?;
        match &value {
            Some(value) => self.facts.note(path, value.clone(), value),
            None => self
                .facts
                .add(path, ProblemKind::Missing, "required, but missing"),
        }
        value
    }

    /// The value of a key, or its default, which is written as in the file.
    pub(super) fn or<T: Debug + Clone + 'static>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        let (path, value) = self.given(key, &parse)?;
        let default = file::parse(default).ok()?;
        #[cfg(test)]
        survey::default(&default, |node| parse(node).err());
        let value = value.or_else(|| parse(&default).ok())?;
        self.facts.note(path, value.clone(), &value);
        Some(value)
    }

    /// The path of a required file.
    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        self.required(key, values::path(self.base))
    }

    /// The path of an optional file.
    pub(super) fn optional_file(&mut self, key: &'static str) -> Option<Option<PathBuf>> {
        self.optional(key, values::path(self.base))
    }

    /// The items of a list, or of its default. Items must be unique.
    pub(super) fn list<T: Debug + Clone + PartialEq + 'static>(
        &mut self,
        key: &'static str,
        default: &[&str],
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (list, items) = self.given(key, items)?;
        let default = default.iter().map(|it| Node::Text(it.to_string()));
        let default: Vec<_> = default.collect();
        #[cfg(test)]
        survey::default_items(&default, &parse);
        let items = items.unwrap_or(&default);
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = list.item(index);
            match parse(item) {
                Ok(value) if values.contains(&value) => {
                    self.facts.add(path, ProblemKind::Repeated, TWICE);
                }
                Ok(value) => {
                    self.facts.note_item(path, value.clone());
                    values.push(value);
                }
                Err(message) => self.facts.add(path, ProblemKind::Value, message),
            }
        }
        self.facts.note(list, items.len(), &values);
        (values.len() == items.len()).then_some(values)
    }

    fn find(&mut self, key: &'static str) -> (KeyPath, Option<&'n Node>) {
        self.known.push(key);
        let mut entries = self.entries.iter().enumerate();
        let found = entries.find(|(_, (name, _))| name == key);
        let node = found.map(|(_, (_, node))| node);
        let path = self.path.key(key, found.map(|(index, _)| index));
        (path, node.filter(|node| **node != Node::Null))
    }

    /// What the file has at `key`, if anything.
    fn given<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<(KeyPath, Option<T>)> {
        let (path, node) = self.find(key);
        let Some(node) = node else {
            #[cfg(test)]
            survey::asked(&path, |strange| parse(strange).err());
            return (!self.broken).then_some((path, None));
        };
        match parse(node) {
            Ok(value) => Some((path, Some(value))),
            Err(message) => {
                self.facts.add(path, ProblemKind::Value, message);
                None
            }
        }
    }
}

/// Reads the mapping at `path` with `read`, and notes unknown and repeated keys of it. `broken`: see [`Section`].
pub(super) fn visit<'n, T>(
    path: KeyPath,
    node: Option<&'n Node>,
    broken: bool,
    base: &Path,
    facts: &mut Facts,
    read: impl FnOnce(&mut Section<'n, '_>) -> T,
) -> T {
    let (entries, broken) = match node {
        None => (&[][..], broken),
        Some(Node::Map(entries)) => (entries.as_slice(), false),
        Some(other) => {
            let message = format!("expected a mapping, found {}", other.kind());
            facts.add(path.clone(), ProblemKind::Value, message);
            (&[][..], true)
        }
    };
    let mut section = Section {
        path,
        entries,
        broken,
        known: Vec::new(),
        base,
        facts,
    };
    let value = read(&mut section);
    let Section { path, known, .. } = section;
    for (index, (name, _)) in entries.iter().enumerate() {
        let is_same = |(earlier, _): &(String, Node)| earlier == name;
        let at = path.key(name, Some(index));
        if !known.contains(&name.as_str()) {
            let message = format!("unknown key; expected one of {}", known.join(", "));
            facts.add(at, ProblemKind::UnknownKey, message);
        } else if entries.iter().take(index).any(is_same) {
            facts.add(at, ProblemKind::Repeated, TWICE);
        }
    }
    value
}

fn items(node: &Node) -> Result<&[Node], String> {
    match node {
        Node::List(items) => Ok(items),
        other => Err(format!("expected a list, found {}", other.kind())),
    }
}
