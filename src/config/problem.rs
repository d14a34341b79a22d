//! A problem of a configuration: one line of text, even if the file contains control characters.

use std::fmt::{self, Display, Formatter};

use super::tree::one_line;

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
            message: one_line(message),
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
