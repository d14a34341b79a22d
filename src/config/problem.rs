//! What is wrong with a configuration, and where.
//!
//! Problems are collected, never returned early: an operator sees all of them at once. Each is one line of text,
//! whatever the file contains.

use std::fmt::{self, Display, Formatter, Write as _};

use super::file::Node;
use super::lines;

/// Longest piece of the file that a message repeats, in characters.
const QUOTED_CHARS: usize = 60;

/// Problems whose line is looked up. Each look-up reads the file again; nobody reads on after so many.
const LOCATED_PROBLEMS: usize = 100;

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Full path of the key, such as `serving.certFile` or `etcd.endpoints[1]`; empty when it is about the whole file.
    pub key: String,
    /// Line of the file, from 1, where it is known.
    pub line: Option<usize>,
    /// What is wrong and what to do about it, one line.
    pub message: String,
}

impl Problem {
    /// A problem of the whole file.
    pub(super) fn of_file(line: Option<usize>, message: impl Display) -> Self {
        Self {
            key: String::new(),
            line,
            message: one_line(&message.to_string()),
        }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.key.is_empty(), self.line) {
            (true, None) => f.write_str(&self.message),
            (true, Some(line)) => write!(f, "line {line}: {}", self.message),
            (false, None) => write!(f, "{}: {}", self.key, self.message),
            (false, Some(line)) => write!(f, "{} (line {line}): {}", self.key, self.message),
        }
    }
}

impl std::error::Error for Problem {}

/// One step down from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The `nth` (from 0) entry of a mapping with this key; more than one is a mistake that must be pointed at.
    Key {
        /// The key as written.
        name: String,
        /// Which of the entries with this key.
        nth: usize,
    },
    /// An item of a list, from 0.
    Item(usize),
}

/// The way from the root of the file to a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KeyPath(Vec<Step>);

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
        self.then(Step::Key { name, nth })
    }

    /// An item of the list that this path names.
    pub(super) fn item(&self, index: usize) -> Self {
        self.then(Step::Item(index))
    }

    /// The steps from the root.
    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    fn then(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl Display for KeyPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(index) => write!(f, "[{index}]")?,
                Step::Key { name, .. } => {
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

/// The problems found so far; lines are looked up at the end.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(KeyPath, String)>);

impl Problems {
    /// Adds a problem of the value at `path`.
    pub(super) fn add(&mut self, path: KeyPath, message: impl Display) {
        self.0.push((path, one_line(&message.to_string())));
    }

    /// Whether nothing was found.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All problems with their lines, in the order of the file; those without a line come last.
    pub(super) fn located(self, text: &str, root: &Node) -> Vec<Problem> {
        let mut located: Vec<Problem> = (self.0.into_iter().enumerate())
            .map(|(index, (path, message))| Problem {
                key: path.to_string(),
                line: (index < LOCATED_PROBLEMS)
                    .then(|| lines::line_of(text, root, &path))
                    .flatten(),
                message,
            })
            .collect();
        located.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        located
    }
}

/// A piece of the file in quotes, shortened, fit for a message.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn one_line(text: &str) -> String {
    let plain = |c: char| !c.is_control() && c != '\u{2028}' && c != '\u{2029}';
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let escaped = |c: char| {
        if plain(c) {
            c.to_string()
        } else {
            c.escape_default().to_string()
        }
    };
    text.chars().map(escaped).collect()
}
