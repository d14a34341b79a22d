//! Keys that say that somebody lives, and vanished when that proves nothing. Pure.
//!
//! An etcd that pauses for longer than a lease's life deletes every live key in its first instant back, whoever lives.
//! So what vanishes soon after a gap in etcd's answers is believed gone only after another life of a lease, in which
//! those who live write their keys anew, or when a connection to it is refused. An etcd that was restored from a backup
//! has lost the keys of all that came since, and counts as a gap.
//!
//! Live keys are written so often that their watch shows every gap. Each kind of key has a watch of its own, and they
//! come back in any order: one may tell what vanished while the gap is still open for another, or long after its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::listed::{At, Effect};

/// Watches for gaps.
#[derive(Debug)]
pub struct Gap {
    ttl: Duration,
    /// Longer than this without a word is one.
    quiet: Duration,
    heard: Option<Instant>,
    ended: Option<Instant>,
}

impl Gap {
    /// In what is heard of live keys. `ttl`: life of one. Everybody writes theirs anew three times in it, so half of it
    /// without a word is a gap.
    pub fn new(ttl: Duration) -> Self {
        Self::longer_than(ttl / 2, ttl)
    }

    /// In what is heard on one watch, whose keys may not change: it is asked for progress after one `ttl`.
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

    /// Something was heard.
    pub fn heard(&mut self, now: Instant) {
        if self.is_open(now) {
            self.ended = Some(now);
        }
        self.heard = Some(now);
    }

    fn is_open(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now - heard > self.quiet)
    }

    /// etcd has forgotten something, however short it was away.
    pub fn forgot(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Whether what vanishes now may have done so because of a gap.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.is_open(now) || self.ended.is_some_and(|ended| now - ended <= self.ttl)
    }

    /// When what vanishes now is believed to be gone.
    pub fn believed(&self, now: Instant) -> Instant {
        now + self.ttl
    }
}

/// What vanished and is not believed to be gone yet.
#[derive(Debug)]
pub struct Vanished<T> {
    keys: BTreeMap<String, (At<T>, Instant)>,
    /// In the watch of these keys.
    own: Gap,
}

impl<T: Clone + PartialEq> Vanished<T> {
    /// Nothing. `ttl`: as for [`Gap`].
    pub fn new(ttl: Duration) -> Self {
        Self {
            keys: BTreeMap::new(),
            own: Gap::of_watch(ttl),
        }
    }

    /// Takes in what an event did to `current`; whether readers see something else. `gap`: in what is heard of live
    /// keys.
    pub fn take(
        &mut self,
        effect: Effect<T>,
        current: &BTreeMap<String, At<T>>,
        gap: &Gap,
        now: Instant,
    ) -> bool {
        let mut changed = effect.changed;
        self.own.heard(now);
        if gap.is_recent(now) || self.own.is_recent(now) {
            let until = gap.believed(now);
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

    /// What counts as still there.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &At<T>)> {
        self.keys.iter().map(|(key, (at, _))| (key, at))
    }

    /// One of them.
    pub fn get(&self, key: &str) -> Option<&At<T>> {
        self.keys.get(key).map(|(at, _)| at)
    }

    /// When the next of them is believed to be gone.
    pub fn next(&self) -> Option<Instant> {
        self.keys.values().map(|(_, until)| *until).min()
    }

    /// Lets go of those that are believed to be gone by now; whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.keys.len();
        self.keys.retain(|_, (_, until)| *until > now);
        self.keys.len() != before
    }

    /// A connection to `address` was refused; whether something here was at it.
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

    fn removed(key: &str, heard: Instant) -> Effect<SocketAddr> {
        let at = At {
            value: A.parse().unwrap(),
            revision: 1,
            heard,
        };
        Effect {
            changed: true,
            removed: vec![(key.into(), at)],
        }
    }

    /// A gap of that length, and one key that vanished so long after it.
    fn vanished(quiet: Duration, after: Duration) -> (Vanished<SocketAddr>, Instant) {
        let start = Instant::now();
        let mut gap = Gap::new(TTL);
        gap.heard(start);
        let back = start + quiet;
        let now = back + after;
        let heard = (0..4).map(|third| back + third * TTL / 3);
        for at in heard.filter(|at| *at <= now) {
            gap.heard(at);
        }
        let mut vanished = Vanished::new(TTL);
        vanished.take(removed("a", start), &BTreeMap::new(), &gap, now);
        (vanished, now)
    }

    #[test]
    fn what_vanishes_without_a_gap_is_gone() {
        let (vanished, _) = vanished(TTL / 3, Duration::ZERO);
        assert_eq!(vanished.iter().count(), 0);
    }

    #[test]
    fn what_vanishes_right_after_a_gap_is_gone_a_ttl_later() {
        for after in [Duration::ZERO, TTL] {
            let (mut vanished, now) = vanished(4 * TTL, after);
            assert!(!vanished.expire(now + TTL - Duration::from_millis(1)));
            assert_eq!(vanished.next(), Some(now + TTL));
            assert!(vanished.expire(now + TTL));
            assert_eq!(vanished.iter().count(), 0);
        }
    }

    #[test]
    fn what_vanishes_long_after_a_gap_is_gone() {
        let (vanished, _) = vanished(4 * TTL, TTL + Duration::from_millis(1));
        assert_eq!(vanished.iter().count(), 0);
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
        let (mut vanished, _) = vanished(4 * TTL, Duration::ZERO);
        assert!(!vanished.refused("10.0.0.2:6443".parse().unwrap(), |at| *at));
        assert!(vanished.refused(A.parse().unwrap(), |at| *at));
    }

    #[test]
    fn what_comes_back_is_there() {
        let (mut vanished, now) = vanished(4 * TTL, Duration::ZERO);
        let at = At {
            value: A.parse().unwrap(),
            revision: 2,
            heard: now,
        };
        let current = [("a".to_owned(), at)].into();
        let effect = Effect {
            changed: false,
            removed: Vec::new(),
        };
        assert!(vanished.take(effect, &current, &Gap::new(TTL), now));
        assert_eq!(vanished.iter().count(), 0);
    }
}
