//! Problems of a configuration, and where in the file they are.
//!
//! They are collected, never returned early: an operator sees all of them at once. Each is one line of text, even if
//! the file contains control characters.

use std::fmt::{self, Display, Formatter};

use super::file;
use super::message::one_line;
use super::tree::{KeyPath, Node};

/// Most problems whose line is looked up: each look-up reads the file again.
const MAX_LOCATED: usize = 100;

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Full path of the key, such as `serving.certFile` or `etcd.endpoints[1]`; empty if the problem is about the whole
    /// file.
    pub key: String,
    /// Line of the file, from 1, if known.
    pub line: Option<usize>,
    /// One line: the problem and its solution.
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

/// The problems found so far; lines are looked up at the end.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(KeyPath, String)>);

impl Problems {
    /// Adds a problem of the value at `path`.
    pub(super) fn add(&mut self, path: KeyPath, message: impl Display) {
        self.0.push((path, one_line(&message.to_string())));
    }

    /// Whether the value at `path` has one.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        self.0.iter().any(|(at, _)| at == path)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All problems with their lines, in the order of the file; those without a line come last.
    pub(super) fn located(self, text: &str, root: &Node) -> Vec<Problem> {
        let mut located: Vec<Problem> = (self.0.into_iter().enumerate())
            .map(|(index, (path, message))| Problem {
                key: path.to_string(),
                line: (index < MAX_LOCATED)
                    .then(|| file::line_of(text, root, &path))
                    .flatten(),
                message,
            })
            .collect();
        located.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        located
    }
}
