//! The configuration file as a tree, and paths of keys in it.

use std::fmt::{self, Display, Formatter, Write as _};

use super::message::{one_line, shortened};

/// A value in the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// No value, `null` or `~`: the same as leaving the key out, as in Kubernetes.
    Null,
    Flag(bool),
    /// An integer or floating point number, as text of any size.
    Number(String),
    /// Any other scalar, or a quoted one.
    Text(String),
    List(Vec<Node>),
    /// A mapping in the order of the file, repeated keys included.
    Map(Vec<(String, Node)>),
    /// A value with a YAML tag of its own.
    Tagged,
}

impl Node {
    /// The type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Tagged => "a tagged value",
        }
    }

    /// The place of each step that is in the tree, among the entries or items of its level.
    pub(super) fn places(&self, path: &KeyPath) -> Vec<usize> {
        let mut node = self;
        let mut places = Vec::with_capacity(path.0.len());
        for step in &path.0 {
            let Some((place, below)) = node.child(step) else {
                break;
            };
            places.push(place);
            node = below;
        }
        places
    }

    fn child(&self, step: &KeyStep) -> Option<(usize, &Self)> {
        match (self, step) {
            (Self::List(items), KeyStep::Item(index)) => Some((*index, items.get(*index)?)),
            (Self::Map(entries), KeyStep::Key { name, nth }) => {
                let entries = entries.iter().enumerate();
                let mut same = entries.filter(|(_, (key, _))| key == name);
                let (place, (_, below)) = same.nth(*nth)?;
                Some((place, below))
            }
            _ => None,
        }
    }

    /// The node as the key of a mapping.
    pub(super) fn into_key(self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Flag(flag) => flag.to_string(),
            Self::Number(text) | Self::Text(text) => text,
            other => format!("({})", other.kind()),
        }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<bool> for Node {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u32> for Node {
    fn from(number: u32) -> Self {
        Self::Number(number.to_string())
    }
}

/// One step down from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyStep {
    /// The `nth` (from 0) entry of a mapping with this key; a repeated key is a problem of its own.
    Key { name: String, nth: usize },
    /// An item of a list, from 0.
    Item(usize),
}

/// The path from the root of the file to a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KeyPath(Vec<KeyStep>);

impl KeyPath {
    /// A path of known keys, `serving.certFile`.
    pub(super) fn of(dotted: &str) -> Self {
        dotted
            .split('.')
            .fold(Self::default(), |path, name| path.key(name))
    }

    /// The first entry `name` below this one.
    pub(super) fn key(&self, name: &str) -> Self {
        self.repeated(name, 0)
    }

    /// The `nth` entry `name` below this one.
    pub(super) fn repeated(&self, name: &str, nth: usize) -> Self {
        let name = name.to_owned();
        self.then(KeyStep::Key { name, nth })
    }

    /// An item of the list that this path names.
    pub(super) fn item(&self, index: usize) -> Self {
        self.then(KeyStep::Item(index))
    }

    /// Whether it is an item of the list at `list`.
    pub(super) fn is_item_of(&self, list: &Self) -> bool {
        matches!(self.0.split_last(), Some((KeyStep::Item(_), above)) if above == list.0)
    }

    /// The key itself, without the path to it; empty for an item.
    pub(super) fn name(&self) -> &str {
        match self.0.last() {
            Some(KeyStep::Key { name, .. }) => name,
            Some(KeyStep::Item(_)) | None => "",
        }
    }

    /// The key `name` in the same mapping.
    pub(super) fn sibling(&self, name: &str) -> Self {
        let above = self.0.split_last().map(|(_, above)| above.to_vec());
        Self(above.unwrap_or_default()).key(name)
    }

    fn then(&self, step: KeyStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl Display for KeyPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                KeyStep::Item(index) => write!(f, "[{index}]")?,
                KeyStep::Key { name, .. } => {
                    if depth > 0 {
                        f.write_char('.')?;
                    }
                    f.write_str(&one_line(&shortened(name)))?;
                }
            }
        }
        Ok(())
    }
}
