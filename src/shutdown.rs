//! How far the shutdown of the proxy has come, as requests see it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The part of `shutdown.drain` within which long-running requests end.
const DRAIN_SHARE: f64 = 0.9;

/// Longest [`ShutdownPhase::Ending`].
const LONGEST_ENDING: Duration = Duration::from_secs(2);

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    /// Serving.
    Serving,
    /// `/readyz` fails, everything is still served.
    Leaving,
    /// Connections end with one answer; long-running requests end one after the other.
    Draining,
    /// No new connections; the long-running requests that began during the drain end.
    Ending,
}

pub struct Shutdown {
    /// How far it has come.
    phase: watch::Sender<ShutdownPhase>,
    /// `shutdown.drain`
    drain: Duration,
    /// When the drain began.
    drain_begin: OnceLock<Instant>,
    /// When connections are cut off; from [`ShutdownPhase::Ending`] on.
    cut: OnceLock<Instant>,
    /// The proxy is about to be removed.
    pub is_unwanted: AtomicBool,
}

impl Shutdown {
    pub fn new(drain: Duration) -> Self {
        Self {
            phase: watch::Sender::new(ShutdownPhase::Serving),
            drain,
            drain_begin: OnceLock::new(),
            cut: OnceLock::new(),
            is_unwanted: AtomicBool::new(false),
        }
    }

    /// A phase begins. Only for `app`.
    pub fn enter(&self, phase: ShutdownPhase) {
        if phase == ShutdownPhase::Draining {
            let _ = self.drain_begin.set(Instant::now());
        }
        self.phase.send_replace(phase);
    }

    /// The last phase begins. Only for `app`. Returns when connections are cut off: at the end of the drain, which may be over.
    pub fn end(&self) -> Instant {
        let cut = (self.drain_begin() + self.drain).max(Instant::now() + self.ending());
        let cut = *self.cut.get_or_init(|| cut);
        self.enter(ShutdownPhase::Ending);
        cut
    }

    /// Why load balancers are to send nobody here any more. Who waits for this address reads the first.
    pub fn missing(&self) -> Option<&'static str> {
        let is_unwanted = self.is_unwanted.load(Relaxed);
        let unwanted = is_unwanted.then_some("uninstall has begun");
        self.is_leaving().then_some("stopping").or(unwanted)
    }

    /// Whether the proxy is stopping. An answer over HTTP/1 is then the last of its connection, and says so.
    pub fn is_leaving(&self) -> bool {
        *self.phase.borrow() != ShutdownPhase::Serving
    }

    /// Whether a connection ends with its next answer.
    pub fn is_draining(&self) -> bool {
        // Every request asks: no lock.
        self.drain_begin.get().is_some()
    }

    /// When the drain began; now, if it did not.
    pub fn drain_begin(&self) -> Instant {
        self.drain_begin.get().copied().unwrap_or_else(Instant::now)
    }

    /// How long [`ShutdownPhase::Ending`] takes: the end of `shutdown.drain`.
    pub fn ending(&self) -> Duration {
        let ending = self.drain.mul_f64(1.0 - DRAIN_SHARE);
        ending.min(LONGEST_ENDING)
    }

    /// Resolves when a phase has begun. Smaller than `wait_for`, and than an `async fn`, which would hold its arguments:
    /// thousands of watches wait here.
    pub fn reaches(&self, awaited: ShutdownPhase) -> impl Future<Output = ()> + use<> {
        let mut phase = self.phase.subscribe();
        // The sender outlives all requests: there is no error.
        async move { while *phase.borrow_and_update() < awaited && phase.changed().await.is_ok() {} }
    }

    /// Resolves after a random part of what is left of the time in which long-running requests end; before the drain, of all of it.
    pub async fn random_drain_delay(&self) {
        let last = self.drain_begin() + self.drain.mul_f64(DRAIN_SHARE);
        let left = last.saturating_duration_since(Instant::now());
        tokio::time::sleep(left.mul_f64(rand::random())).await;
    }

    /// Resolves shortly before connections are cut off: it is time for a clean end.
    pub async fn is_late(&self) {
        self.reaches(ShutdownPhase::Ending).await;
        let cut = self.cut.get().copied().unwrap_or_else(Instant::now);
        sleep_until(cut - self.ending() / 2).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_answer_begins_late_in_the_drain_ends_with_the_others() {
        let shutdown = Shutdown::new(60 * SECOND);
        shutdown.enter(ShutdownPhase::Draining);
        let begin = Instant::now();
        sleep(30 * SECOND).await;
        join_all((0..100).map(|_| shutdown.random_drain_delay())).await;
        let ended = begin.elapsed();
        assert!(40 * SECOND < ended && ended <= 54 * SECOND, "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_late_a_second_before_connections_are_cut_off_also_where_the_last_phase_begins_early()
     {
        let shutdown = Shutdown::new(60 * SECOND);
        shutdown.enter(ShutdownPhase::Draining);
        let begin = Instant::now();
        sleep(SECOND).await;
        assert_eq!(shutdown.end(), begin + 60 * SECOND);
        shutdown.is_late().await;
        assert_eq!(begin.elapsed(), 59 * SECOND);
    }
}
