//! Live keys that disappeared when that does not prove that their servers are gone. Pure.
//!
//! An etcd that pauses for longer than a lease's TTL deletes every live key as soon as it is back. So a key that disappears
//! soon after a gap in etcd's events is suspended: it counts for one more TTL, in which running servers write their keys
//! again, or until a connection to its server is refused. An etcd that was restored from a backup has lost all later keys,
//! which counts as a gap too.
//!
//! Live keys are written so often that their watch shows every gap. Each kind of key has its own watch, and the watches
//! recover in any order: one may report a deletion while the gap is still open for another, or long after its end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::prefix::{PrefixState, Versioned};
use super::source::EtcdItem;
use super::watch::Event;

/// Detects gaps in etcd's events.
#[derive(Debug)]
pub struct Gap {
    ttl: Duration,
    /// Longer than this without an event is a gap.
    quiet: Duration,
    heard: Option<Instant>,
    ended: Option<Instant>,
}

impl Gap {
    /// For events of live keys. `ttl`: their TTL. Every server renews its key three times in it, so half of it without an
    /// event is a gap.
    pub fn new(ttl: Duration) -> Self {
        Self::longer_than(ttl / 2, ttl)
    }

    /// For a watch whose keys may not change: its progress is requested after one `ttl`.
    fn of_watch(ttl: Duration) -> Self {
        Self::longer_than(ttl * 3 / 2, ttl)
    }

    fn longer_than(quiet: Duration, ttl: Duration) -> Self {
        Self {
            ttl,
            quiet,
            heard: None,
            ended: None,
        }
    }

    /// An event arrived.
    pub fn heard(&mut self, now: Instant) {
        if self.is_open(now) {
            self.ended = Some(now);
        }
        self.heard = Some(now);
    }

    fn is_open(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now - heard > self.quiet)
    }

    /// etcd has lost keys, however short it was away.
    pub fn forgot(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Whether a key that disappears now may have done so because of a gap.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.is_open(now) || self.ended.is_some_and(|ended| now - ended <= self.ttl)
    }

    /// Until when a key that disappears now is suspended.
    pub fn suspended_until(&self, now: Instant) -> Instant {
        now + self.ttl
    }
}

/// The keys below one prefix that are bound to etcd leases: those that are there, and those that disappeared and still
/// count.
#[derive(Debug)]
pub struct LeasedKeys<T> {
    /// Those that are there.
    pub listed: PrefixState<T>,
    suspended: BTreeMap<String, (Versioned<T>, Instant)>,
    /// Gaps in these keys' own watch.
    own: Gap,
}

impl<T: Clone + PartialEq> LeasedKeys<T> {
    /// `ttl`: as for [`Gap`].
    pub fn new(ttl: Duration) -> Self {
        Self {
            listed: PrefixState::default(),
            suspended: BTreeMap::new(),
            own: Gap::of_watch(ttl),
        }
    }

    /// Applies an event, as [`PrefixState::take`] does. Returns whether readers see a change. `gap`: of the live keys'
    /// events.
    pub fn take(
        &mut self,
        event: Event,
        now: Instant,
        gap: &Gap,
        decode: impl FnMut(&EtcdItem) -> Option<T>,
    ) -> bool {
        let effect = self.listed.take(event, now, decode);
        let mut changed = effect.changed;
        self.own.heard(now);
        if gap.is_recent(now) || self.own.is_recent(now) {
            let until = gap.suspended_until(now).max(self.own.suspended_until(now));
            let removed = effect.removed.into_iter();
            self.suspended
                .extend(removed.map(|(key, at)| (key, (at, until))));
        }
        self.suspended.retain(|key, _| {
            let back = self.listed.current.contains_key(key);
            changed |= back;
            !back
        });
        changed
    }

    /// All keys that count.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Versioned<T>)> {
        let suspended = self.suspended.iter().map(|(key, (at, _))| (key, at));
        self.listed.current.iter().chain(suspended)
    }

    pub fn get(&self, key: &str) -> Option<&Versioned<T>> {
        let suspended = || self.suspended.get(key).map(|(at, _)| at);
        self.listed.current.get(key).or_else(suspended)
    }

    /// Whether the key disappeared and still counts.
    pub fn is_suspended(&self, key: &str) -> bool {
        self.suspended.contains_key(key)
    }

    /// When the next suspended key expires.
    pub fn next(&self) -> Option<Instant> {
        self.suspended.values().map(|(_, until)| *until).min()
    }

    /// Removes expired suspended keys. Returns whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.suspended.len();
        self.suspended.retain(|_, (_, until)| *until > now);
        self.suspended.len() != before
    }

    /// A connection to `address` was refused: removes its suspended keys. Returns whether there were any.
    pub fn refused(&mut self, address: SocketAddr, of: impl Fn(&T) -> SocketAddr) -> bool {
        let before = self.suspended.len();
        self.suspended.retain(|_, (at, _)| of(&at.value) != address);
        self.suspended.len() != before
    }
}

/// Values that say where a server can be reached.
pub trait Addressed {
    fn address(&self) -> SocketAddr;
}

impl<T: Addressed + Clone + PartialEq> LeasedKeys<T> {
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
        addresses.len() < self.iter().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);
    const A: &str = "10.0.0.1:6443";

    fn written(revision: i64) -> Event {
        Event::Apply(EtcdItem {
            key: "a".into(),
            value: A.into(),
            create_revision: 1,
            mod_revision: revision,
        })
    }

    fn take(keys: &mut LeasedKeys<SocketAddr>, event: Event, gap: &Gap, now: Instant) -> bool {
        keys.take(event, now, gap, |_| A.parse().ok())
    }

    /// A gap of that length, and one key that vanished so long after it.
    fn suspended(quiet: Duration, after: Duration) -> (LeasedKeys<SocketAddr>, Instant) {
        let start = Instant::now();
        let (mut gap, mut keys) = (Gap::new(TTL), LeasedKeys::new(TTL));
        gap.heard(start);
        take(&mut keys, written(1), &gap, start);
        let back = start + quiet;
        let now = back + after;
        let heard = (0..4).map(|third| back + third * TTL / 3);
        for at in heard.filter(|at| *at <= now) {
            gap.heard(at);
            take(&mut keys, Event::Progress(1), &gap, at);
        }
        assert!(take(&mut keys, Event::Delete("a".into()), &gap, now));
        (keys, now)
    }

    #[test]
    fn what_vanishes_without_a_gap_is_gone() {
        let (suspended, _) = suspended(TTL / 3, Duration::ZERO);
        assert_eq!(suspended.iter().count(), 0);
    }

    #[test]
    fn what_vanishes_right_after_a_gap_is_gone_a_ttl_later() {
        for after in [Duration::ZERO, TTL] {
            let (mut suspended, now) = suspended(4 * TTL, after);
            assert!(!suspended.expire(now + TTL - Duration::from_millis(1)));
            assert_eq!(suspended.next(), Some(now + TTL));
            assert!(suspended.expire(now + TTL));
            assert_eq!(suspended.iter().count(), 0);
        }
    }

    #[test]
    fn what_vanishes_long_after_a_gap_is_gone() {
        let (suspended, _) = suspended(4 * TTL, TTL + Duration::from_millis(1));
        assert_eq!(suspended.iter().count(), 0);
    }

    #[test]
    fn what_vanishes_in_a_gap_that_has_not_ended_is_not_gone_yet() {
        let start = Instant::now();
        let mut gap = Gap::new(TTL);
        assert!(!gap.is_recent(start), "nothing was ever heard");
        gap.heard(start);
        assert!(!gap.is_recent(start + TTL / 2));
        assert!(gap.is_recent(start + TTL));
    }

    #[test]
    fn what_refuses_connections_is_gone() {
        let (mut suspended, _) = suspended(4 * TTL, Duration::ZERO);
        assert!(!suspended.refused("10.0.0.2:6443".parse().unwrap(), |at| *at));
        assert!(suspended.refused(A.parse().unwrap(), |at| *at));
    }

    #[test]
    fn what_comes_back_is_there() {
        let (mut suspended, now) = suspended(4 * TTL, Duration::ZERO);
        assert!(suspended.is_suspended("a"));
        assert!(take(&mut suspended, written(2), &Gap::new(TTL), now));
        assert!(!suspended.is_suspended("a"));
        assert_eq!(suspended.iter().count(), 1);
    }
}
