//! Live keys that disappeared when that does not prove that their servers are gone. Pure.
//!
//! An etcd that pauses for longer than a lease's TTL deletes every live key as soon as it is back. So a key that disappears
//! soon after a gap in etcd's events is suspended: it counts for one more TTL, in which running servers write their keys
//! again, or until a connection to its server is refused. An etcd that was restored from a backup has lost all later keys,
//! which counts as a gap too.
//!
//! Live keys are written so often that their watch shows every gap. Each kind of key has its own watch, and the watches
//! recover in any order: one may report a deletion while the gap is still open for another, or long after its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::prefix::{PrefixChange, Versioned};

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

/// Keys that disappeared and still count.
#[derive(Debug)]
pub struct Suspended<T> {
    keys: BTreeMap<String, (Versioned<T>, Instant)>,
    /// Gaps in these keys' own watch.
    own: Gap,
}

impl<T: Clone + PartialEq> Suspended<T> {
    /// `ttl`: as for [`Gap`].
    pub fn new(ttl: Duration) -> Self {
        Self {
            keys: BTreeMap::new(),
            own: Gap::of_watch(ttl),
        }
    }

    /// Takes what an event changed in `current`. Returns whether readers see a change. `gap`: of the live keys' events.
    pub fn take(
        &mut self,
        effect: PrefixChange<T>,
        current: &BTreeMap<String, Versioned<T>>,
        gap: &Gap,
        now: Instant,
    ) -> bool {
        let mut changed = effect.changed;
        self.own.heard(now);
        if gap.is_recent(now) || self.own.is_recent(now) {
            let until = gap.suspended_until(now).max(self.own.suspended_until(now));
            for (key, at) in effect.removed {
                self.keys.insert(key, (at, until));
            }
        }
        self.keys.retain(|key, _| {
            let back = current.contains_key(key);
            changed |= back;
            !back
        });
        changed
    }

    /// The suspended keys.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Versioned<T>)> {
        self.keys.iter().map(|(key, (at, _))| (key, at))
    }

    pub fn get(&self, key: &str) -> Option<&Versioned<T>> {
        self.keys.get(key).map(|(at, _)| at)
    }

    /// When the next of them expires.
    pub fn next(&self) -> Option<Instant> {
        self.keys.values().map(|(_, until)| *until).min()
    }

    /// Removes expired keys. Returns whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.keys.len();
        self.keys.retain(|_, (_, until)| *until > now);
        self.keys.len() != before
    }

    /// A connection to `address` was refused: removes its keys. Returns whether there were any.
    pub fn refused(&mut self, address: SocketAddr, of: impl Fn(&T) -> SocketAddr) -> bool {
        let before = self.keys.len();
        self.keys.retain(|_, (at, _)| of(&at.value) != address);
        self.keys.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);
    const A: &str = "10.0.0.1:6443";

    fn removed(key: &str, heard: Instant) -> PrefixChange<SocketAddr> {
        let at = Versioned {
            value: A.parse().unwrap(),
            revision: 1,
            heard,
        };
        PrefixChange {
            changed: true,
            removed: vec![(key.into(), at)],
        }
    }

    /// A gap of that length, and one key that vanished so long after it.
    fn suspended(quiet: Duration, after: Duration) -> (Suspended<SocketAddr>, Instant) {
        let start = Instant::now();
        let mut gap = Gap::new(TTL);
        gap.heard(start);
        let back = start + quiet;
        let now = back + after;
        let heard = (0..4).map(|third| back + third * TTL / 3);
        for at in heard.filter(|at| *at <= now) {
            gap.heard(at);
        }
        let mut suspended = Suspended::new(TTL);
        suspended.take(removed("a", start), &BTreeMap::new(), &gap, now);
        (suspended, now)
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
        let at = Versioned {
            value: A.parse().unwrap(),
            revision: 2,
            heard: now,
        };
        let current = [("a".to_owned(), at)].into();
        let effect = PrefixChange {
            changed: false,
            removed: Vec::new(),
        };
        assert!(suspended.take(effect, &current, &Gap::new(TTL), now));
        assert_eq!(suspended.iter().count(), 0);
    }
}
