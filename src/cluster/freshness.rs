//! When each watch of etcd last had an event. Written by the catalog, read by requests and pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When each topic last had an event.
#[derive(Debug)]
pub struct Freshness {
    start: Instant,
    /// Milliseconds after `start`.
    heard: Box<[AtomicU64]>,
}

impl Freshness {
    /// `topics`: number of topics, without events yet.
    pub fn new(topics: usize) -> Self {
        Self {
            start: Instant::now(),
            heard: (0..topics).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Time since the last event of the quietest topic, or since start.
    pub fn age(&self) -> Duration {
        let oldest = self.heard.iter().map(|at| at.load(Ordering::Relaxed)).min();
        self.since(oldest)
    }

    /// Time since the last event of a topic, by [`super::keys::Topic::index`].
    pub fn age_of(&self, topic: usize) -> Duration {
        let heard = self.heard.get(topic);
        self.since(heard.map(|at| at.load(Ordering::Relaxed)))
    }

    fn since(&self, millis: Option<u64>) -> Duration {
        let heard = Duration::from_millis(millis.unwrap_or(0));
        self.start.elapsed().saturating_sub(heard)
    }

    /// A topic is not followed: it does not count.
    pub fn exempt(&self, topic: usize) {
        if let Some(at) = self.heard.get(topic) {
            at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// A topic had an event.
    pub fn touch(&self, topic: usize) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(at) = self.heard.get(topic) {
            at.store(millis, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_is_not_followed_decides_nothing() {
        let freshness = Freshness::new(2);
        freshness.exempt(1);
        assert_eq!(freshness.age_of(1), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            freshness.age() >= Duration::from_millis(20),
            "the other one does"
        );
    }

    #[test]
    fn the_quietest_topic_decides() {
        let freshness = Freshness::new(2);
        std::thread::sleep(Duration::from_millis(20));
        freshness.touch(0);
        assert!(freshness.age() >= Duration::from_millis(20));
        assert!(freshness.age_of(1) >= Duration::from_millis(20));
        assert!(freshness.age_of(0) < freshness.age_of(1));
        freshness.touch(1);
        assert!(freshness.age() <= freshness.age_of(0));
    }
}
