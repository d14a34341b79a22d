//! Which failures are worth a line in the log.
//!
//! What fails once fails again with each try, and often in many places at once. For an operator that is one event: it is
//! told when it begins, once for each reason, and when it is over ([`Trouble`]). What fails for requests, as often as
//! clients ask, is told once a minute at most, with how much was left out ([`Pace`]); metrics count all of it.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Reasons that are told of one trouble; it may change them for ever.
const REASONS: usize = 8;

/// Something that does not work for a while, for one or several that need it.
#[derive(Debug)]
pub struct Trouble<K = ()>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    who: BTreeSet<K>,
    told: Vec<String>,
    since: Instant,
}

impl<K> Default for Trouble<K> {
    fn default() -> Self {
        Self(Mutex::new(State {
            who: BTreeSet::new(),
            told: Vec::new(),
            since: Instant::now(),
        }))
    }
}

impl<K: Ord> Trouble<K> {
    /// It does not work for `who`. Whether that is news: the first time, or a reason that was not told yet.
    pub fn is_news(&self, who: K, reason: String) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.who.is_empty() {
            state.told.clear();
            state.since = Instant::now();
        }
        state.who.insert(who);
        let news = state.told.len() < REASONS && !state.told.contains(&reason);
        if news {
            state.told.push(reason);
        }
        news
    }

    /// It works again for `who`. How long it did not, if it works for all now.
    pub fn is_over(&self, who: &K) -> Option<Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = state.who.remove(who) && state.who.is_empty();
        over.then(|| state.since.elapsed())
    }
}

/// An error with all of its causes.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some say what their cause says.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Between two lines of one kind.
const PAUSE_MILLIS: u64 = 60_000;

/// When this program began to count time.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Lets one line pass in a minute. Nothing is locked.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the next may pass, in milliseconds.
    next: AtomicU64,
    left_out: AtomicU64,
}

impl Pace {
    /// The first may pass.
    pub const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// How many were left out since the last that passed, if this one may.
    pub fn admit(&self) -> Option<u64> {
        let now = u64::try_from(BEGINNING.elapsed().as_millis()).unwrap_or(u64::MAX);
        let passes = |next| (now >= next).then_some(now.saturating_add(PAUSE_MILLIS));
        let order = Ordering::Relaxed;
        match self.next.fetch_update(order, order, passes) {
            Ok(_) => Some(self.left_out.swap(0, order)),
            Err(_) => {
                self.left_out.fetch_add(1, order);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.to_owned()
    }

    #[derive(Debug, thiserror::Error)]
    #[error("etcd does not answer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn an_error_is_told_with_its_causes() {
        let inner = std::io::Error::other("connection refused");
        assert_eq!(
            chain(&Outer(inner)),
            "etcd does not answer: connection refused"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_outage_is_one_event_for_all_whom_it_concerns() {
        let trouble = Trouble::default();
        assert!(trouble.is_news("a", error("refused")));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!trouble.is_news("b", error("refused")));
        assert!(!trouble.is_news("a", error("refused")));
        assert!(trouble.is_news("a", error("permission denied")));
        assert_eq!(trouble.is_over(&"a"), None);
        assert_eq!(trouble.is_over(&"b"), Some(Duration::from_secs(3)));
        assert_eq!(trouble.is_over(&"b"), None);
        assert!(trouble.is_news("b", error("refused")));
    }

    #[test]
    fn reasons_that_never_repeat_are_not_told_for_ever() {
        let trouble = Trouble::default();
        let told = (0..100).filter(|number| trouble.is_news((), number.to_string()));
        assert_eq!(told.count(), REASONS);
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_in_a_minute_and_counts_the_others() {
        let pace = Pace::new();
        assert_eq!(pace.admit(), Some(0));
        assert!((0..50).all(|_| pace.admit().is_none()));
        tokio::time::advance(Duration::from_millis(PAUSE_MILLIS)).await;
        assert_eq!(pace.admit(), Some(50));
        assert_eq!(pace.admit(), None);
    }
}
