//! Sets of header names, in any spelling that another server could read as the same name. Pure.

use http::header::{HeaderMap, HeaderName};

/// Names and prefixes of headers.
#[derive(Debug, Clone)]
pub struct HeaderNames {
    names: Vec<String>,
    prefixes: Vec<String>,
    /// First bytes of all these names: a fast check that excludes most headers.
    first: [bool; 256],
}

impl HeaderNames {
    /// Both in lower case. An empty prefix takes in every name.
    pub fn new(names: Vec<String>, prefixes: Vec<String>) -> Self {
        let mut first = [false; 256];
        for name in names.iter().chain(&prefixes) {
            match name.bytes().next() {
                Some(b'-' | b'_') => {
                    first[usize::from(b'-')] = true;
                    first[usize::from(b'_')] = true;
                }
                Some(byte) => first[usize::from(byte)] = true,
                None => first = [true; 256],
            }
        }
        Self {
            names,
            prefixes,
            first,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty()
    }

    /// Whether a header of this name is one of them. `_` equals `-`.
    pub fn contains(&self, name: &str) -> bool {
        name.bytes()
            .next()
            .is_some_and(|byte| self.first[usize::from(byte)])
            && (self
                .names
                .iter()
                .any(|known| same(name.as_bytes(), known.as_bytes()))
                || self.takes_in(name))
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
