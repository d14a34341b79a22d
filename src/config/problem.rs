//! A problem of a configuration: one line of text, even if the file contains control characters.

use std::fmt::{self, Display, Formatter};

use super::tree::one_line;

/// What sort of a problem it is. Each has a code that operators see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// The configuration file cannot be read.
    File,
    Yaml,
    UnknownKey,
    /// A key that is required, or what has to be in it.
    Missing,
    /// A key or an item is there twice.
    Repeated,
    Value,
    /// Two values that do not go together.
    Contradiction,
    /// A file that the configuration names.
    Credentials,
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    /// Full path of the key, such as `serving.certFile` or `etcd.endpoints[1]`; empty if the problem is about the whole
    /// file.
    pub key: String,
    /// Line of the file, from 1, if known.
    pub line: Option<usize>,
    /// One line: the problem and its solution.
    pub message: String,
}

#[cfg(test)]
impl ProblemKind {
    pub(crate) const ALL: [Self; 8] = [
        Self::File,
        Self::Yaml,
        Self::UnknownKey,
        Self::Missing,
        Self::Repeated,
        Self::Value,
        Self::Contradiction,
        Self::Credentials,
    ];
}

impl Problem {
    /// The one problem of a file of which nothing else can be said.
    pub(super) fn of_file(
        kind: ProblemKind,
        line: Option<usize>,
        message: impl Display,
    ) -> Vec<Self> {
        vec![Self {
            kind,
            key: String::new(),
            line,
            message: one_line(message),
        }]
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
