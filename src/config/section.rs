//! Reads one mapping of the file key by key, and notes all of its problems.
//!
//! The caller names each key once, with its default and the function that parses its value; all other keys are unknown.
//! `None` from any of these methods means that a problem was noted, never that a key is missing.

use std::collections::HashMap;
use std::fmt::Debug;

use super::effective::EffectiveValues;
use super::problem::Problems;
#[cfg(test)]
use super::tests::survey;
use super::tree::{KeyPath, Node};

/// A mapping of the file being read.
pub(super) struct Section<'n, 'p> {
    path: KeyPath,
    entries: &'n [(String, Node)],
    /// It, or a section around it, is not a mapping. That is noted; missing keys are no further problems.
    broken: bool,
    known: Vec<&'static str>,
    problems: &'p mut Problems,
    values: &'p mut EffectiveValues,
}

/// Where a section notes what it finds.
pub(super) type Notes<'p> = (&'p mut Problems, &'p mut EffectiveValues);

impl<'n> Section<'n, '_> {
    /// Reads the whole file with `read`.
    pub(super) fn root<T>(
        node: &'n Node,
        notes: Notes<'_>,
        read: impl FnOnce(&mut Section<'n, '_>) -> T,
    ) -> T {
        Self::visit(KeyPath::default(), Some(node), false, notes, read)
    }

    /// Reads the mapping `key` below this one with `read`; an empty one if it was left out.
    pub(super) fn section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Section<'n, '_>) -> T,
    ) -> T {
        let node = self.value(key);
        let path = self.path.key(key);
        let notes = (&mut *self.problems, &mut *self.values);
        Section::visit(path, node, self.broken, notes, read)
    }

    /// Reads each mapping of the list `key` with `read`; the list is empty if it was left out. `keys`: what a mapping has.
    pub(super) fn mappings<T>(
        &mut self,
        key: &'static str,
        keys: &str,
        mut read: impl FnMut(&mut Section<'n, '_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let check = |item: &Node| match item {
            Node::Map(_) => Ok(()),
            other => Err(format!(
                "expected a mapping of {keys}, found {}",
                other.kind()
            )),
        };
        let Some(node) = self.value(key) else {
            #[cfg(test)]
            {
                survey::asked(self.path.key(key), |strange| items(strange).err());
                let _ = survey::default_items(&[], check);
            }
            self.values.note(&self.path.key(key), &0);
            return (!self.broken).then(Vec::new);
        };
        let items = match items(node) {
            Ok(items) => items,
            Err(message) => {
                self.problem(key, &message);
                return None;
            }
        };
        // Their keys are noted one by one.
        self.values.note(&self.path.key(key), &items.len());
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = self.path.key(key).item(index);
            values.push(match check(item) {
                Ok(()) => {
                    let notes = (&mut *self.problems, &mut *self.values);
                    Section::visit(path, Some(item), false, notes, &mut read)
                }
                Err(message) => {
                    self.problems.add(path, message);
                    None
                }
            });
        }
        values.into_iter().collect()
    }

    /// The value of an optional key. `Some(None)`: it was left out.
    pub(super) fn optional<T: Debug>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let Some(node) = self.value(key) else {
            #[cfg(test)]
            survey::asked(self.path.key(key), |strange| parse(strange).err());
            return (!self.broken).then_some(None);
        };
        Some(Some(self.noted(key, parse(node))?))
    }

    /// The value of a required key.
    pub(super) fn required<T: Debug>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.optional(key, parse)?;
        if value.is_none() {
            #[cfg(test)]
            survey::required();
            self.problem(key, "required, but missing");
        }
        value
    }

    /// The value of a key, or its default.
    pub(super) fn or<T: Debug>(
        &mut self,
        key: &'static str,
        default: impl Into<Node>,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        if let Some(value) = self.optional(key, &parse)? {
            return Some(value);
        }
        let default = default.into();
        #[cfg(test)]
        survey::default(&default, |node| parse(node).err());
        self.noted(key, parse(&default))
    }

    /// The items of a list, or of its default. Items must be unique.
    pub(super) fn list<T: PartialEq + Debug>(
        &mut self,
        key: &'static str,
        default: &[&str],
        parse: impl FnMut(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        match self.optional(key, items)? {
            Some(items) => self.parsed(key, items, parse),
            None => {
                let items: Vec<Node> = default.iter().copied().map(Node::from).collect();
                #[cfg(test)]
                let parse = survey::default_items(&items, parse);
                self.parsed(key, &items, parse)
            }
        }
    }

    /// The items of a required list, which must not be empty.
    pub(super) fn required_list<T: PartialEq + Debug>(
        &mut self,
        key: &'static str,
        parse: impl FnMut(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let Some(items) = self.required(key, items) else {
            #[cfg(test)]
            survey::items(parse);
            return None;
        };
        let values = self.parsed(key, items, parse);
        self.not_empty(key, values)
    }

    /// Notes a problem if the list is empty.
    pub(super) fn not_empty<T>(
        &mut self,
        key: &'static str,
        values: Option<Vec<T>>,
    ) -> Option<Vec<T>> {
        if values.as_ref().is_some_and(Vec::is_empty) {
            self.problem(key, "must not be empty");
            return None;
        }
        values
    }

    /// Notes a problem of the value of `key`.
    pub(super) fn problem(&mut self, key: &str, message: &str) {
        self.problems.add(self.path.key(key), message);
    }

    /// The full path of a key of this section.
    pub(super) fn path(&self, key: &str) -> KeyPath {
        self.path.key(key)
    }

    fn visit<T>(
        path: KeyPath,
        node: Option<&'n Node>,
        parent_broken: bool,
        (problems, values): Notes<'_>,
        read: impl FnOnce(&mut Section<'n, '_>) -> T,
    ) -> T {
        let (entries, broken) = match node {
            None => (&[][..], parent_broken),
            Some(Node::Map(entries)) => (entries.as_slice(), false),
            Some(other) => {
                let message = format!("expected a mapping, found {}", other.kind());
                problems.add(path.clone(), message);
                (&[][..], true)
            }
        };
        let mut section = Section {
            path,
            entries,
            broken,
            known: Vec::new(),
            problems,
            values,
        };
        let value = read(&mut section);
        section.note_unexpected_keys();
        value
    }

    fn value(&mut self, key: &'static str) -> Option<&'n Node> {
        self.known.push(key);
        let (_, node) = self.entries.iter().find(|(name, _)| name == key)?;
        Some(node).filter(|node| **node != Node::Null)
    }

    fn noted<T: Debug>(&mut self, key: &str, parsed: Result<T, String>) -> Option<T> {
        match parsed {
            Ok(value) => {
                self.values.note(&self.path.key(key), &value);
                Some(value)
            }
            Err(message) => {
                self.problem(key, &message);
                None
            }
        }
    }

    fn parsed<T: PartialEq + Debug>(
        &mut self,
        key: &str,
        items: &[Node],
        mut parse: impl FnMut(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let mut values = Vec::with_capacity(items.len());
        let mut all_good = true;
        for (index, item) in items.iter().enumerate() {
            let value = match parse(item) {
                Ok(value) if values.contains(&value) => {
                    Err("is there twice; remove one".to_owned())
                }
                other => other,
            };
            match value {
                Ok(value) => values.push(value),
                Err(message) => {
                    self.problems.add(self.path.key(key).item(index), message);
                    all_good = false;
                }
            }
        }
        self.values.note(&self.path.key(key), &values);
        all_good.then_some(values)
    }

    /// Notes unknown and repeated keys.
    fn note_unexpected_keys(&mut self) {
        let mut times: HashMap<&str, usize> = HashMap::new();
        for (name, _) in self.entries {
            let seen = times.entry(name).or_default();
            let path = self.path.repeated(name, *seen);
            if !self.known.contains(&name.as_str()) {
                self.problems.add(path, unknown(name, &self.known));
            } else if *seen > 0 {
                self.problems.add(path, "is there twice; remove one");
            }
            *seen += 1;
        }
    }
}

fn items(node: &Node) -> Result<&[Node], String> {
    match node {
        Node::List(items) => Ok(items),
        other => Err(format!("expected a list, found {}", other.kind())),
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    if name == "<<" {
        return "merge keys are not supported; write the keys out".to_owned();
    }
    match known.iter().find(|known| alike(known, name)) {
        Some(known) => format!("unknown key; did you mean {known}?"),
        None => format!("unknown key; expected one of {}", known.join(", ")),
    }
}

/// Equal except for case, separators, or one letter that is additional, missing or wrong.
fn alike(known: &str, name: &str) -> bool {
    let plain = |text: &str| -> Vec<char> {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let (known, name) = (plain(known), plain(name));
    let common = known.iter().zip(&name).take_while(|(a, b)| a == b).count();
    let (known, name) = (&known[common..], &name[common..]);
    match (known, name) {
        ([], []) | ([_], []) | ([], [_]) => true,
        ([_, known @ ..], [_, name @ ..]) if known == name => true,
        _ => known.get(1..) == Some(name) || name.get(1..) == Some(known),
    }
}
