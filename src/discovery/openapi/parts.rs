//! The two parts of a document that grow, and what one lacks of others. The same for every form.

use std::borrow::Cow;
use std::collections::HashSet;

/// A named entry as it is on the wire.
pub(super) type Entry<'a, T> = (Cow<'a, str>, &'a T);

/// The parts of a document that grow.
#[derive(Debug)]
pub(super) struct Parts<'a, T: ?Sized> {
    pub(super) paths: Vec<Entry<'a, T>>,
    pub(super) definitions: Vec<Entry<'a, T>>,
}

impl<'a, T: ?Sized> Parts<'a, T> {
    /// What of the others' entries is missing here. `None`: nothing. Definitions only come with paths.
    pub(super) fn lacking(
        &self,
        others: &[Parts<'a, T>],
        wanted: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let mut paths = Growing::new(&self.paths);
        let mut definitions = Growing::new(&self.definitions);
        for other in others {
            if paths.take(&other.paths, &wanted) {
                definitions.take(&other.definitions, |_| true);
            }
        }
        (!paths.added.is_empty()).then_some(Self {
            paths: paths.added,
            definitions: definitions.added,
        })
    }
}

/// A part while entries are added to it.
struct Growing<'s, 'a, T: ?Sized> {
    names: HashSet<&'s str>,
    added: Vec<Entry<'a, T>>,
}

impl<'s, 'a, T: ?Sized> Growing<'s, 'a, T> {
    fn new(entries: &'s [Entry<'a, T>]) -> Self {
        Self {
            names: entries.iter().map(|(name, _)| name.as_ref()).collect(),
            added: Vec::new(),
        }
    }

    /// Whether any of the entries was missing and wanted.
    fn take(&mut self, entries: &'s [Entry<'a, T>], wanted: impl Fn(&str) -> bool) -> bool {
        let before = self.added.len();
        for (name, entry) in entries {
            if !self.names.contains(name.as_ref()) && wanted(name) {
                self.names.insert(name);
                self.added.push((name.clone(), entry));
            }
        }
        self.added.len() > before
    }
}
