//! Limits how often a failure is logged.
//!
//! A task that fails fails again with each retry, and often several tasks fail for one cause. [`LogThrottle`] lets the
//! first failure, each new reason and the recovery be logged. Failures of requests come as often as clients ask:
//! [`LogRateLimit`] lets one line a minute pass and counts the others. Metrics count all failures.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Reasons that are logged in one outage: an error text that never repeats must not fill the log.
const REASONS: usize = 8;

/// One outage, which may concern several tasks. `K` names a task.
#[derive(Debug)]
pub struct LogThrottle<K = ()>(Mutex<Outage<K>>);

#[derive(Debug)]
struct Outage<K> {
    /// Tasks that fail.
    failing: BTreeSet<K>,
    logged: Vec<String>,
    since: Instant,
}

impl<K> Default for LogThrottle<K> {
    fn default() -> Self {
        Self(Mutex::new(Outage {
            failing: BTreeSet::new(),
            logged: Vec::new(),
            since: Instant::now(),
        }))
    }
}

impl<K: Ord> LogThrottle<K> {
    /// The task `key` failed. Whether to log it: the outage begins, or its reason was not logged yet.
    pub fn should_log(&self, key: K, reason: String) -> bool {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if outage.failing.is_empty() {
            outage.logged.clear();
            outage.since = Instant::now();
        }
        outage.failing.insert(key);
        let new = outage.logged.len() < REASONS && !outage.logged.contains(&reason);
        if new {
            outage.logged.push(reason);
        }
        new
    }

    /// The task `key` succeeded. How long the outage was, if it was the last task that failed.
    pub fn recovered(&self, key: &K) -> Option<Duration> {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = outage.failing.remove(key) && outage.failing.is_empty();
        over.then(|| outage.since.elapsed())
    }
}

/// Logs a failure, if it is new ([`LogThrottle::should_log`]). `$error`: `&impl Error`; then what `tracing::warn!` takes.
macro_rules! warn_new {
    ($throttle:expr, $key:expr, $error:expr, $($event:tt)*) => {{
        let reason = $crate::log_throttle::chain($error);
        if $throttle.should_log($key, reason.clone()) {
            tracing::warn!(error = reason, $($event)*);
        }
    }};
}
pub(crate) use warn_new;

/// An error with all of its causes: a log in JSON would have none of them.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Logs at most once a minute from where it stands. `$level`: such as `warn`; then what that macro of `tracing` takes.
macro_rules! log_rarely {
    ($level:ident, $($event:tt)*) => {{
        static RATE: $crate::log_throttle::LogRateLimit = $crate::log_throttle::LogRateLimit::new();
        if let Some(left_out) = RATE.admit() {
            tracing::$level!(left_out, $($event)*);
        }
    }};
}
pub(crate) use log_rarely;

/// Between two lines that pass.
const PAUSE_MILLIS: u64 = 60_000;

static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Lets one line a minute pass. Lock-free.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    /// When the next line may pass, in milliseconds after [`BEGINNING`].
    next: AtomicU64,
    left_out: AtomicU64,
}

impl LogRateLimit {
    pub const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// `Some`: the line may pass; the number of lines that were left out since the last one. `None`: leave it out.
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

    /// What this thread logs, in JSON.
    #[derive(Clone, Default)]
    struct Written(std::sync::Arc<Mutex<Vec<u8>>>);

    impl Written {
        fn from_now_on() -> (Self, tracing::subscriber::DefaultGuard) {
            let written = Self::default();
            let writer = written.clone();
            let logs = tracing_subscriber::fmt().json();
            let logs = logs.with_writer(move || writer.clone()).finish();
            (written, tracing::subscriber::set_default(logs))
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_in_json_has_the_causes_too() {
        let (written, _logging) = Written::from_now_on();
        let error = Outer(std::io::Error::other("connection refused"));
        warn_new!(LogThrottle::default(), (), &error, "retrying");
        let line = written.text();
        assert!(
            line.contains("\"etcd does not answer: connection refused\""),
            "{line}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_outage_is_one_event_for_all_whom_it_concerns() {
        let throttle = LogThrottle::default();
        assert!(throttle.should_log("a", error("refused")));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!throttle.should_log("b", error("refused")));
        assert!(!throttle.should_log("a", error("refused")));
        assert!(throttle.should_log("a", error("permission denied")));
        assert_eq!(throttle.recovered(&"a"), None);
        assert_eq!(throttle.recovered(&"b"), Some(Duration::from_secs(3)));
        assert_eq!(throttle.recovered(&"b"), None);
        assert!(throttle.should_log("b", error("refused")));
    }

    #[test]
    fn reasons_that_never_repeat_are_not_told_for_ever() {
        let throttle = LogThrottle::default();
        let logged = (0..100).filter(|number| throttle.should_log((), number.to_string()));
        assert_eq!(logged.count(), REASONS);
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_in_a_minute_and_counts_the_others() {
        let limit = LogRateLimit::new();
        assert_eq!(limit.admit(), Some(0));
        assert!((0..50).all(|_| limit.admit().is_none()));
        tokio::time::advance(Duration::from_millis(PAUSE_MILLIS)).await;
        assert_eq!(limit.admit(), Some(50));
        assert_eq!(limit.admit(), None);
    }
}
