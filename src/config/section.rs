//! Reads one mapping of the file key by key, and notes all of its problems.
//!
//! The caller names each key once, with its default and the function that parses its value; all other keys are unknown.
//! `None` from any of these methods means that a problem was noted, never that a key is missing.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use super::effective::EffectiveValues;
use super::facts::Facts;
use super::problem::Problems;
#[cfg(test)]
use super::tests::survey;
use super::tree::{KeyPath, Node};
use super::values;

/// What is found while the file is read.
#[derive(Default)]
pub(super) struct Notes {
    /// Relative paths start there.
    base: PathBuf,
    pub(super) problems: Problems,
    pub(super) values: EffectiveValues,
    pub(super) facts: Facts,
}

impl Notes {
    pub(super) fn of_file_in(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            ..Self::default()
        }
    }
}

/// A mapping of the file being read.
pub(super) struct Section<'n, 'p> {
    path: KeyPath,
    entries: &'n [(String, Node)],
    /// It, or a section around it, is not a mapping. That is noted; missing keys are no further problems.
    broken: bool,
    known: Vec<&'static str>,
    notes: &'p mut Notes,
}

/// The value of a key.
pub(super) trait Value: Debug + Clone + 'static {}

impl<T: Debug + Clone + 'static> Value for T {}

impl<'n> Section<'n, '_> {
    /// Reads the whole file with `read`.
    pub(super) fn root<T>(
        node: &'n Node,
        notes: &mut Notes,
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
        Section::visit(self.path.key(key), node, self.broken, self.notes, read)
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
        let items = self.given(key, items)?;
        #[cfg(test)]
        if items.is_none() {
            let _ = survey::default_items(&[], check);
        }
        let items = items.unwrap_or_default();
        let path = self.path.key(key);
        // Their keys are noted one by one.
        self.notes.values.note(&path, &items.len());
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = path.item(index);
            values.push(match check(item) {
                Ok(()) => Section::visit(path, Some(item), false, self.notes, &mut read),
                Err(message) => {
                    self.notes.problems.add(path, message);
                    None
                }
            });
        }
        values.into_iter().collect()
    }

    /// The value of an optional key. `Some(None)`: it was left out.
    pub(super) fn optional<T: Value>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let value = self.given(key, parse)?;
        if let Some(value) = &value {
            self.note(key, value);
        }
        Some(value)
    }

    /// The value of a required key.
    pub(super) fn required<T: Value>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.optional(key, parse)?;
        if value.is_none() {
            self.missing(key);
        }
        value
    }

    /// The value of a key, or its default.
    pub(super) fn or<T: Value>(
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
        let value = self.unless_problem(key, parse(&default))?;
        self.note(key, &value);
        Some(value)
    }

    /// The path of a required file.
    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        let base = self.notes.base.clone();
        self.required(key, values::path(&base))
    }

    /// The path of an optional file.
    pub(super) fn optional_file(&mut self, key: &'static str) -> Option<Option<PathBuf>> {
        let base = self.notes.base.clone();
        self.optional(key, values::path(&base))
    }

    /// The items of a list, or of its default. Items must be unique.
    pub(super) fn list<T: Value + PartialEq>(
        &mut self,
        key: &'static str,
        default: &[&str],
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        match self.given(key, items)? {
            Some(items) => self.parsed(key, items, parse),
            None => {
                let items: Vec<Node> = default.iter().copied().map(Node::from).collect();
                #[cfg(test)]
                let parse = survey::default_items(&items, parse);
                self.parsed(key, &items, parse)
            }
        }
    }

    /// The items of a required list.
    pub(super) fn required_list<T: Value + PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let Some(items) = self.given(key, items)? else {
            self.missing(key);
            #[cfg(test)]
            survey::items(parse);
            return None;
        };
        self.parsed(key, items, parse)
    }

    fn visit<T>(
        path: KeyPath,
        node: Option<&'n Node>,
        parent_broken: bool,
        notes: &mut Notes,
        read: impl FnOnce(&mut Section<'n, '_>) -> T,
    ) -> T {
        let (entries, broken) = match node {
            None => (&[][..], parent_broken),
            Some(Node::Map(entries)) => (entries.as_slice(), false),
            Some(other) => {
                let message = format!("expected a mapping, found {}", other.kind());
                notes.problems.add(path.clone(), message);
                (&[][..], true)
            }
        };
        let mut section = Section {
            path,
            entries,
            broken,
            known: Vec::new(),
            notes,
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

    /// What the file has at `key`. `Some(None)`: nothing.
    fn given<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&'n Node) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let Some(node) = self.value(key) else {
            #[cfg(test)]
            survey::asked(self.path.key(key), |strange| parse(strange).err());
            return (!self.broken).then_some(None);
        };
        self.unless_problem(key, parse(node)).map(Some)
    }

    fn unless_problem<T>(&mut self, key: &str, parsed: Result<T, String>) -> Option<T> {
        let problem = |message| self.notes.problems.add(self.path.key(key), message);
        parsed.map_err(problem).ok()
    }

    fn missing(&mut self, key: &str) {
        #[cfg(test)]
        survey::required();
        let path = self.path.key(key);
        self.notes.problems.add(path, "required, but missing");
    }

    fn note<T: Value>(&mut self, key: &str, value: &T) {
        let path = self.path.key(key);
        self.notes.values.note(&path, value);
        self.notes.facts.note(path, value.clone());
    }

    fn parsed<T: Value + PartialEq>(
        &mut self,
        key: &str,
        items: &[Node],
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let list = self.path.key(key);
        let notes = &mut *self.notes;
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = list.item(index);
            match parse(item) {
                Ok(value) if values.contains(&value) => {
                    notes.problems.add(path, "is there twice; remove one");
                }
                Ok(value) => {
                    notes.facts.note(path, value.clone());
                    values.push(value);
                }
                Err(message) => notes.problems.add(path, message),
            }
        }
        notes.values.note(&list, &values);
        notes.facts.note_length(list, items.len());
        (values.len() == items.len()).then_some(values)
    }

    /// Notes unknown and repeated keys.
    fn note_unexpected_keys(&mut self) {
        let mut times: HashMap<&str, usize> = HashMap::new();
        for (name, _) in self.entries {
            let seen = times.entry(name).or_default();
            let path = self.path.repeated(name, *seen);
            if !self.known.contains(&name.as_str()) {
                self.notes.problems.add(path, unknown(name, &self.known));
            } else if *seen > 0 {
                self.notes.problems.add(path, "is there twice; remove one");
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
