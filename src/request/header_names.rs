//! Sets of header names, in any spelling that another server could read as the same name. Pure.

use http::header::{HeaderMap, HeaderName};

/// Names and prefixes of headers.
#[derive(Debug, Clone)]
pub struct HeaderNames {
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl HeaderNames {
    /// Both in lower case. An empty prefix takes in every name.
    pub fn new(names: Vec<String>, prefixes: Vec<String>) -> Self {
        Self { names, prefixes }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty()
    }

    /// Whether a header of this name is one of them. `_` equals `-`.
    pub fn contains(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|known| same(name.as_bytes(), known.as_bytes())) || self.takes_in(name)
    }

    /// Whether a prefix is one that `name` begins with.
    pub fn takes_in(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| {
            name.len() >= prefix.len() && same(&name.as_bytes()[..prefix.len()], prefix.as_bytes())
        })
    }

    /// Removes all of them but those that stay. Returns the number of names removed.
    pub fn strip(&self, headers: &mut HeaderMap, stays: impl Fn(&str) -> bool) -> usize {
        let found: Vec<HeaderName> = headers
            .keys()
            .filter(|name| self.contains(name.as_str()) && !stays(name.as_str()))
            .cloned()
            .collect();
        for name in &found {
            headers.remove(name);
        }
        found.len()
    }
}

/// Compares names; `_` equals `-`.
fn same(name: &[u8], known: &[u8]) -> bool {
    let dashed = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    name.len() == known.len() && name.iter().zip(known).all(|(a, b)| dashed(a) == dashed(b))
}
