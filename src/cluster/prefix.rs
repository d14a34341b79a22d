//! The keys below one prefix, from the events of [`super::watch`]. Pure.
//!
//! A list stays in use until a newer one is complete. A value that cannot be decoded leaves the last known value of its key.

use std::collections::BTreeMap;
use std::time::Instant;

use super::source::EtcdItem;
use super::watch::Event;

/// A value with its revision.
#[derive(Debug, Clone)]
pub struct Versioned<T> {
    pub value: T,
    /// The revision that wrote it.
    pub revision: i64,
    /// When the event arrived.
    pub heard: Instant,
}

/// The values below one prefix.
#[derive(Debug)]
pub struct PrefixState<T> {
    /// What readers see.
    pub current: BTreeMap<String, Versioned<T>>,
    /// It was listed completely at least once.
    pub complete: bool,
    staged: Option<BTreeMap<String, Versioned<T>>>,
}

/// What an event changed.
#[derive(Debug)]
pub struct PrefixChange<T> {
    /// Values changed, not only their revisions.
    pub changed: bool,
    /// Keys that are gone.
    pub removed: Vec<(String, Versioned<T>)>,
}

impl<T> Default for PrefixState<T> {
    fn default() -> Self {
        Self {
            current: BTreeMap::new(),
            complete: false,
            staged: None,
        }
    }
}

impl<T> Default for PrefixChange<T> {
    fn default() -> Self {
        Self {
            changed: false,
            removed: Vec::new(),
        }
    }
}

impl<T: Clone + PartialEq> PrefixState<T> {
    /// Applies an event. `decode` returns `None` for a value that cannot be decoded.
    pub fn take(
        &mut self,
        event: Event,
        now: Instant,
        mut decode: impl FnMut(&EtcdItem) -> Option<T>,
    ) -> PrefixChange<T> {
        let mut at = |item: &EtcdItem| {
            decode(item).map(|value| Versioned {
                value,
                revision: item.mod_revision,
                heard: now,
            })
        };
        match event {
            Event::Init => self.staged = Some(BTreeMap::new()),
            Event::InitApply(item) => {
                let value = at(&item).or_else(|| self.current.get(&item.key).cloned());
                if let (Some(staged), Some(value)) = (&mut self.staged, value) {
                    staged.insert(item.key, value);
                }
            }
            Event::InitDone(_) => return self.replace(),
            Event::Apply(item) => {
                if let Some(value) = at(&item) {
                    let before = self.current.get(&item.key);
                    let changed = before.is_none_or(|before| before.value != value.value);
                    self.current.insert(item.key, value);
                    return PrefixChange {
                        changed,
                        removed: Vec::new(),
                    };
                }
            }
            Event::Delete(key) => {
                let removed: Vec<_> = self.current.remove_entry(&key).into_iter().collect();
                return PrefixChange {
                    changed: !removed.is_empty(),
                    removed,
                };
            }
            Event::Progress(_) | Event::OtherHistory | Event::Forbidden => {}
        }
        PrefixChange::default()
    }

    fn replace(&mut self) -> PrefixChange<T> {
        let new = self.staged.take().unwrap_or_default();
        let old = std::mem::replace(&mut self.current, new);
        let same = old.len() == self.current.len()
            && old
                .iter()
                .zip(&self.current)
                .all(|(old, new)| old.0 == new.0 && old.1.value == new.1.value);
        let first = !std::mem::replace(&mut self.complete, true);
        PrefixChange {
            changed: first || !same,
            removed: old
                .into_iter()
                .filter(|(key, _)| !self.current.contains_key(key))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: &str, value: &str, mod_revision: i64) -> EtcdItem {
        EtcdItem {
            key: key.into(),
            value: value.into(),
            create_revision: 1,
            mod_revision,
        }
    }

    fn text(item: &EtcdItem) -> Option<String> {
        let text = String::from_utf8(item.value.clone()).ok()?;
        (text != "bad").then_some(text)
    }

    fn listed(events: Vec<Event>) -> PrefixState<String> {
        let mut listed = PrefixState::default();
        for event in events {
            listed.take(event, Instant::now(), text);
        }
        listed
    }

    fn seen(listed: &PrefixState<String>) -> Vec<(&str, &str, i64)> {
        let at = |(key, at): (_, &Versioned<String>)| (key, at.revision);
        listed
            .current
            .iter()
            .map(|(key, value)| {
                let (key, revision) = at((key.as_str(), value));
                (key, value.value.as_str(), revision)
            })
            .collect()
    }

    #[test]
    fn half_a_list_is_never_visible() {
        let mut listed = listed(vec![
            Event::Init,
            Event::InitApply(item("a", "1", 1)),
            Event::InitDone(1),
            Event::Init,
            Event::InitApply(item("b", "2", 2)),
        ]);
        assert_eq!(seen(&listed), [("a", "1", 1)]);
        let effect = listed.take(Event::InitDone(2), Instant::now(), text);
        assert_eq!(seen(&listed), [("b", "2", 2)]);
        let removed: Vec<_> = effect.removed.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!((effect.changed, removed), (true, vec!["a"]));
    }

    #[test]
    fn what_cannot_be_decoded_leaves_what_was_known() {
        let mut listed = listed(vec![
            Event::Init,
            Event::InitApply(item("a", "1", 1)),
            Event::InitDone(1),
            Event::Apply(item("a", "bad", 2)),
            Event::Apply(item("b", "bad", 3)),
        ]);
        assert_eq!(seen(&listed), [("a", "1", 1)]);
        listed.take(Event::Init, Instant::now(), text);
        listed.take(Event::InitApply(item("a", "bad", 2)), Instant::now(), text);
        listed.take(Event::InitDone(4), Instant::now(), text);
        assert_eq!(seen(&listed), [("a", "1", 1)]);
    }

    #[test]
    fn a_value_written_anew_is_no_change_but_has_a_newer_revision() {
        let mut listed = listed(vec![Event::Init, Event::InitDone(1)]);
        let mut apply = |revision| {
            listed
                .take(Event::Apply(item("a", "1", revision)), Instant::now(), text)
                .changed
        };
        assert!(apply(2));
        assert!(!apply(3));
        assert_eq!(seen(&listed), [("a", "1", 3)]);
    }

    #[test]
    fn the_first_list_is_a_change_even_if_empty_and_the_same_list_again_is_none() {
        let mut listed = PrefixState::<String>::default();
        for changed in [true, false] {
            listed.take(Event::Init, Instant::now(), text);
            let effect = listed.take(Event::InitDone(1), Instant::now(), text);
            assert_eq!(effect.changed, changed);
        }
    }
}
