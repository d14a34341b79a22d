//! The keys below one prefix, from the events of [`super::watch`]. Pure.
//!
//! A list stays in use until a newer one is complete. A value that cannot be decoded leaves the last known value of its
//! key.
//!
//! Keys that are bound to etcd leases may disappear when that does not prove that their servers are absent: an etcd that
//! pauses for longer than a lease's TTL deletes all of them as soon as it is back. So a key that disappears soon after a
//! [`Gap`] in etcd's events counts for one more TTL, in which running servers write their keys again, or until a
//! connection to its server is refused. An etcd that was restored from a backup has lost all later keys, which is a gap
//! too.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::source::{EtcdItem, Event};

/// A value with its revision.
#[derive(Debug, Clone)]
pub struct Versioned<T> {
    pub value: T,
    /// The revision that wrote it.
    pub revision: i64,
    /// The revision that created its key.
    pub created: i64,
    /// The same of the key before it, if that had disappeared and counted still: most likely its server has written it anew.
    pub former: Option<i64>,
    /// Its key has disappeared, and counts until then.
    until: Option<Instant>,
}

/// What a value is read as. `None`: it cannot be decoded. `Some(None)`: it is nothing that is kept.
pub type Decoded<T> = Option<Option<T>>;

/// The values below one prefix.
#[derive(Debug)]
pub struct PrefixState<T> {
    keys: BTreeMap<String, Versioned<T>>,
    staged: Option<BTreeMap<String, Versioned<T>>>,
    /// It was listed completely at least once.
    complete: bool,
    /// So many are kept: those that were created first.
    pub most: usize,
    /// The last event left this one out, of this revision.
    pub left_out: Option<(String, i64)>,
}

impl<T> Default for PrefixState<T> {
    fn default() -> Self {
        Self::at_most(usize::MAX)
    }
}

impl<T> PrefixState<T> {
    pub fn at_most(most: usize) -> Self {
        Self {
            keys: BTreeMap::new(),
            staged: None,
            complete: false,
            most,
            left_out: None,
        }
    }

    /// All keys that count.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Versioned<T>)> {
        self.keys.iter()
    }

    pub fn get(&self, key: &str) -> Option<&Versioned<T>> {
        self.keys.get(key)
    }

    /// What is in etcd, as far as is known.
    pub fn listed(&self, key: &str) -> Option<&Versioned<T>> {
        self.get(key).filter(|at| at.until.is_none())
    }

    /// When the next key that has disappeared ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.keys.values().filter_map(|at| at.until).min()
    }

    /// Removes the keys whose time is over. Returns whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.retain(|at| at.until.is_none_or(|until| until > now))
    }

    /// Connections to these servers are refused: their keys that have disappeared are gone. Returns whether there were any.
    pub fn refused(&mut self, refuses: impl Fn(&T) -> bool) -> bool {
        self.retain(|at| at.until.is_none() || !refuses(&at.value))
    }

    /// Nothing of it can be read any more.
    pub fn forget(&mut self) {
        self.retain(|at| at.until.is_some());
        (self.staged, self.complete) = (None, false);
    }

    fn retain(&mut self, stays: impl Fn(&Versioned<T>) -> bool) -> bool {
        let before = self.keys.len();
        self.keys.retain(|_, at| stays(at));
        self.keys.len() != before
    }
}

impl<T: Clone + PartialEq> PrefixState<T> {
    /// Applies an event. `until`: how long keys count that disappear with it. Returns whether values changed, not only
    /// their revisions.
    pub fn take(
        &mut self,
        event: Event,
        until: Option<Instant>,
        mut decode: impl FnMut(&EtcdItem) -> Decoded<T>,
    ) -> bool {
        self.left_out = None;
        match event {
            Event::Init => self.staged = Some(BTreeMap::new()),
            Event::InitApply(item) => {
                let now = match decode(&item) {
                    Some(value) => value.map(|value| versioned(value, &item)),
                    None => self.listed(&item.key).cloned(),
                };
                if let (Some(staged), Some(now)) = (&mut self.staged, now) {
                    self.left_out = keep(staged, item.key, now, self.most);
                }
            }
            Event::InitDone(_) => return self.replace(until),
            Event::Apply(item) => match decode(&item) {
                Some(Some(value)) => {
                    let before = self.listed(&item.key);
                    let changed = before.is_none_or(|before| before.value != value);
                    let now = versioned(value, &item).after(self.get(&item.key));
                    self.left_out = keep(&mut self.keys, item.key.clone(), now, self.most);
                    let is_left_out = |(key, _): &(String, i64)| *key == item.key;
                    return changed && !self.left_out.as_ref().is_some_and(is_left_out);
                }
                Some(None) => return self.keys.remove(&item.key).is_some(),
                None => {}
            },
            Event::Delete(key) => {
                let there = self.keys.get_mut(&key);
                let Some(at) = there.filter(|at| at.until.is_none()) else {
                    return false;
                };
                at.until = until;
                if until.is_none() {
                    self.keys.remove(&key);
                }
                return true;
            }
            Event::Progress(_) | Event::OtherHistory | Event::Forbidden => {}
        }
        false
    }

    fn replace(&mut self, until: Option<Instant>) -> bool {
        let new = self.staged.take().unwrap_or_default().into_iter();
        let new = new.map(|(key, now)| {
            let now = now.after(self.keys.get(&key));
            (key, now)
        });
        let new = new.collect();
        let old = std::mem::replace(&mut self.keys, new);
        let is_same = |before: &Versioned<T>, now: &Versioned<T>| {
            before.until.is_none() && before.value == now.value && before.created == now.created
        };
        let mut now = self.keys.iter();
        let same = now.all(|(key, now)| old.get(key).is_some_and(|before| is_same(before, now)));
        let first = !std::mem::replace(&mut self.complete, true);
        let mut changed = first || !same;
        for (key, mut gone) in old {
            let Entry::Vacant(entry) = self.keys.entry(key) else {
                continue;
            };
            changed |= gone.until.is_none();
            gone.until = gone.until.or(until);
            if gone.until.is_some() {
                entry.insert(gone);
            }
        }
        changed
    }
}

fn versioned<T>(value: T, item: &EtcdItem) -> Versioned<T> {
    Versioned {
        value,
        revision: item.mod_revision,
        created: item.create_revision,
        former: None,
        until: None,
    }
}

impl<T> Versioned<T> {
    /// In place of what its key was before.
    fn after(mut self, before: Option<&Self>) -> Self {
        self.former = before.and_then(|before| match before.until {
            Some(_) => Some(before.created),
            None => before.former.filter(|_| before.created == self.created),
        });
        self
    }
}

/// Adds a value. If there are too many, returns the one that was created last, which is left out.
fn keep<T>(
    keys: &mut BTreeMap<String, Versioned<T>>,
    key: String,
    value: Versioned<T>,
    most: usize,
) -> Option<(String, i64)> {
    keys.insert(key, value);
    if keys.len() <= most {
        return None;
    }
    let last = keys.iter().max_by_key(|(_, at)| at.created);
    let last = last.map(|(key, _)| key.clone())?;
    keys.remove_entry(&last).map(|(key, at)| (key, at.revision))
}

/// Values that say where a server can be reached.
pub trait Addressed {
    fn address(&self) -> SocketAddr;
}

impl<T: Addressed> PrefixState<T> {
    /// Whether one of them has this address.
    pub fn has_address(&self, address: SocketAddr) -> bool {
        self.iter().any(|(_, at)| at.value.address() == address)
    }

    /// Whether none with the same address is newer.
    pub fn is_newest(&self, this: &Versioned<T>) -> bool {
        let address = this.value.address();
        let mut all = self.iter();
        !all.any(|(_, at)| at.value.address() == address && at.revision > this.revision)
    }

    /// Whether two keys have one address. Then the newer one counts, and a renewal, which changes no value, can change
    /// which one that is.
    pub fn has_twins(&self) -> bool {
        let addresses: BTreeSet<_> = self.iter().map(|(_, at)| at.value.address()).collect();
        addresses.len() < self.keys.len()
    }
}

/// Detects gaps in the events of one watch.
#[derive(Debug)]
pub struct Gap {
    /// How long a key counts that disappears because of a gap.
    pub ttl: Duration,
    /// Longer than this without an event is a gap.
    quiet: Duration,
    /// The last event.
    pub heard: Option<Instant>,
    /// When the last gap ended.
    pub ended: Option<Instant>,
}

impl Gap {
    /// Of the watch of live keys, which are written three times in their TTL.
    pub fn of_live_keys(ttl: Duration) -> Self {
        Self {
            quiet: ttl / 2,
            ..Self::of_watch(ttl)
        }
    }

    /// Of a watch whose keys may not change: its progress is requested after one `ttl`.
    pub fn of_watch(ttl: Duration) -> Self {
        Self {
            ttl,
            quiet: ttl * 3 / 2,
            heard: None,
            ended: None,
        }
    }

    /// An event arrived.
    pub fn note(&mut self, now: Instant) {
        if self.is_open(now) {
            self.ended = Some(now);
        }
        self.heard = Some(now);
    }

    fn is_open(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now - heard > self.quiet)
    }

    /// Whether a key that disappears now may have done so because of a gap.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.is_open(now) || self.ended.is_some_and(|ended| now - ended <= self.ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn item(key: &str, value: &str, mod_revision: i64) -> EtcdItem {
        EtcdItem {
            key: key.into(),
            value: value.into(),
            create_revision: 1,
            mod_revision,
        }
    }

    fn text(item: &EtcdItem) -> Decoded<String> {
        let text = String::from_utf8(item.value.clone()).ok()?;
        (text != "bad").then_some(Some(text))
    }

    fn take(listed: &mut PrefixState<String>, event: Event) -> bool {
        listed.take(event, None, text)
    }

    fn listed(events: Vec<Event>) -> PrefixState<String> {
        let mut listed = PrefixState::default();
        for event in events {
            take(&mut listed, event);
        }
        listed
    }

    fn seen(listed: &PrefixState<String>) -> Vec<(&str, &str, i64)> {
        let seen = listed.iter();
        seen.map(|(key, at)| (key.as_str(), at.value.as_str(), at.revision))
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
        assert!(take(&mut listed, Event::InitDone(2)));
        assert_eq!(seen(&listed), [("b", "2", 2)]);
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
        take(&mut listed, Event::Init);
        take(&mut listed, Event::InitApply(item("a", "bad", 2)));
        take(&mut listed, Event::InitDone(4));
        assert_eq!(seen(&listed), [("a", "1", 1)]);
    }

    #[test]
    fn a_value_written_anew_is_no_change_but_has_a_newer_revision() {
        let mut listed = listed(vec![Event::Init, Event::InitDone(1)]);
        let mut apply = |revision| take(&mut listed, Event::Apply(item("a", "1", revision)));
        assert!(apply(2));
        assert!(!apply(3));
        assert_eq!(seen(&listed), [("a", "1", 3)]);
    }

    #[test]
    fn the_first_list_is_a_change_even_if_empty_and_the_same_list_again_is_none() {
        let mut listed = PrefixState::<String>::default();
        for changed in [true, false] {
            take(&mut listed, Event::Init);
            assert_eq!(take(&mut listed, Event::InitDone(1)), changed);
        }
    }

    #[test]
    fn a_key_that_was_created_anew_is_a_change_also_in_a_list() {
        let mut listed = listed(vec![Event::Apply(item("a", "1", 1))]);
        let again = EtcdItem {
            create_revision: 5,
            ..item("a", "1", 5)
        };
        for changed in [true, false] {
            take(&mut listed, Event::Init);
            take(&mut listed, Event::InitApply(again.clone()));
            listed.complete = true;
            assert_eq!(take(&mut listed, Event::InitDone(6)), changed);
        }
    }

    #[test]
    fn what_disappears_counts_until_its_time_is_over_or_a_connection_is_refused() {
        let now = Instant::now();
        let suspended = |events: Vec<Event>| {
            let mut listed = listed(vec![Event::Apply(item("a", "1", 1))]);
            let changes = events.into_iter();
            let changes = changes.map(|event| listed.take(event, Some(now + TTL), text));
            assert!(changes.last().unwrap());
            listed
        };
        for events in [
            vec![Event::Delete("a".into())],
            vec![Event::Init, Event::InitDone(2)],
        ] {
            let mut gone = suspended(events.clone());
            assert!(gone.listed("a").is_none() && gone.get("a").is_some());
            assert_eq!(gone.next_end(), Some(now + TTL));
            assert!(!gone.expire(now + TTL - Duration::from_millis(1)));
            assert!(gone.expire(now + TTL));
            assert_eq!(seen(&gone), []);

            let mut gone = suspended(events.clone());
            assert!(!gone.refused(|at| at == "2"));
            assert!(gone.refused(|at| at == "1"));
            assert_eq!(seen(&gone), []);

            let mut back = suspended(events);
            assert!(take(&mut back, Event::Apply(item("a", "1", 2))));
            assert!(back.listed("a").is_some() && !back.expire(now + TTL));
        }
    }

    /// A gap that ended so long ago, for a watch that was quiet for so long.
    fn ended(quiet: Duration, ago: Duration) -> (Gap, Instant) {
        let start = Instant::now();
        let mut gap = Gap::of_live_keys(TTL);
        gap.note(start);
        let back = start + quiet;
        let now = back + ago;
        let events = (0..4).map(|third| back + third * TTL / 3);
        for at in events.filter(|at| *at <= now) {
            gap.note(at);
        }
        (gap, now)
    }

    #[test]
    fn only_what_disappears_within_a_ttl_after_a_gap_may_be_there_still() {
        for (quiet, ago, recent) in [
            (TTL / 3, Duration::ZERO, false),
            (4 * TTL, Duration::ZERO, true),
            (4 * TTL, TTL, true),
            (4 * TTL, TTL + Duration::from_millis(1), false),
        ] {
            let (gap, now) = ended(quiet, ago);
            assert_eq!(gap.is_recent(now), recent, "{quiet:?} {ago:?}");
        }
    }

    #[test]
    fn what_disappears_in_a_gap_that_has_not_ended_is_not_gone_yet() {
        let start = Instant::now();
        let mut gap = Gap::of_live_keys(TTL);
        assert!(!gap.is_recent(start), "nothing was ever heard");
        gap.note(start);
        assert!(!gap.is_recent(start + TTL / 2));
        assert!(gap.is_recent(start + TTL));
    }
}
