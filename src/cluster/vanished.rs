//! Keys that say that somebody lives, and vanished when that proves nothing. Pure.
//!
//! An etcd that pauses for longer than a lease's life deletes every live key in its first instant back, whoever lives.
//! So what vanishes soon after a gap in etcd's answers is believed gone only after another life of a lease, in which
//! those who live write their keys anew, or when a connection to it is refused. An etcd that was restored from a backup
//! has lost the keys of all that came since, and counts as a gap.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::listed::{At, Effect};

/// Watches for gaps.
#[derive(Debug)]
pub struct Gap {
    ttl: Duration,
    heard: Option<Instant>,
    ended: Option<Instant>,
}

impl Gap {
    /// `ttl`: life of a live key. Everybody writes theirs anew three times in it, so half of it without a word is a gap.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            heard: None,
            ended: None,
        }
    }

    /// Something was heard of live keys.
    pub fn heard(&mut self, now: Instant) {
        let quiet = self.heard.replace(now).map(|heard| now - heard);
        if quiet.is_some_and(|quiet| quiet > self.ttl / 2) {
            self.ended = Some(now);
        }
    }

    /// etcd has forgotten something, however short it was away.
    pub fn forgot(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Whether what vanishes now may have done so because of a gap.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.ended.is_some_and(|ended| now - ended <= self.ttl)
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
}

impl<T> Default for Vanished<T> {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
        }
    }
}

impl<T: Clone + PartialEq> Vanished<T> {
    /// Takes in what an event did to `current`; whether readers see something else.
    pub fn take(
        &mut self,
        effect: Effect<T>,
        current: &BTreeMap<String, At<T>>,
        gap: &Gap,
        now: Instant,
    ) -> bool {
        let mut changed = effect.changed;
        if gap.is_recent(now) {
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
        gap.heard(start + quiet);
        let now = start + quiet + after;
        let mut vanished = Vanished::default();
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
