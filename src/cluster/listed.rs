//! What is below one prefix, as a follower tells it (see [`super::watch::Event`]). Pure.
//!
//! A list that is being replaced stays in use until the newer one is complete. A value that cannot be decoded leaves
//! what was known of its key.

use std::collections::BTreeMap;
use std::time::Instant;

use super::source::Item;
use super::watch::Event;

/// A value, the revision that wrote it, and when that was heard of.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// etcd's revision of it.
    pub revision: i64,
    /// When it was heard of.
    pub heard: Instant,
}

/// What is below one prefix.
#[derive(Debug)]
pub struct Listed<T> {
    /// What readers see.
    pub current: BTreeMap<String, At<T>>,
    /// It was listed at least once.
    pub complete: bool,
    staged: Option<BTreeMap<String, At<T>>>,
}

/// What an event did.
#[derive(Debug)]
pub struct Effect<T> {
    /// Readers see other values, not only other revisions of them.
    pub changed: bool,
    /// What is gone.
    pub removed: Vec<(String, At<T>)>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self {
            current: BTreeMap::new(),
            complete: false,
            staged: None,
        }
    }
}

impl<T> Default for Effect<T> {
    fn default() -> Self {
        Self {
            changed: false,
            removed: Vec::new(),
        }
    }
}

impl<T: Clone + PartialEq> Listed<T> {
    /// Takes an event in. `decode`: `None` for what cannot be decoded.
    pub fn take(
        &mut self,
        event: Event,
        now: Instant,
        mut decode: impl FnMut(&Item) -> Option<T>,
    ) -> Effect<T> {
        let mut at = |item: &Item| {
            decode(item).map(|value| At {
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
                    return Effect {
                        changed,
                        removed: Vec::new(),
                    };
                }
            }
            Event::Delete(key) => {
                let removed: Vec<_> = self.current.remove_entry(&key).into_iter().collect();
                return Effect {
                    changed: !removed.is_empty(),
                    removed,
                };
            }
            Event::Progress(_) | Event::OtherHistory => {}
        }
        Effect::default()
    }

    fn replace(&mut self) -> Effect<T> {
        let new = self.staged.take().unwrap_or_default();
        let old = std::mem::replace(&mut self.current, new);
        let same = old.len() == self.current.len()
            && old
                .iter()
                .zip(&self.current)
                .all(|(old, new)| old.0 == new.0 && old.1.value == new.1.value);
        let first = !std::mem::replace(&mut self.complete, true);
        Effect {
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

    fn item(key: &str, value: &str, mod_revision: i64) -> Item {
        Item {
            key: key.into(),
            value: value.into(),
            mod_revision,
        }
    }

    fn text(item: &Item) -> Option<String> {
        let text = String::from_utf8(item.value.clone()).ok()?;
        (text != "bad").then_some(text)
    }

    fn listed(events: Vec<Event>) -> Listed<String> {
        let mut listed = Listed::default();
        for event in events {
            listed.take(event, Instant::now(), text);
        }
        listed
    }

    fn seen(listed: &Listed<String>) -> Vec<(&str, &str, i64)> {
        let at = |(key, at): (_, &At<String>)| (key, at.revision);
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
        let mut listed = Listed::<String>::default();
        for changed in [true, false] {
            listed.take(Event::Init, Instant::now(), text);
            let effect = listed.take(Event::InitDone(1), Instant::now(), text);
            assert_eq!(effect.changed, changed);
        }
    }
}
