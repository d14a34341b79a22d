//! How far the shutdown of the proxy has come, as requests see it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

/// The part of `shutdown.drain` within which long-running requests end.
pub const DRAIN_SHARE: f64 = 0.9;

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
    /// The proxy is about to be removed.
    pub is_unwanted: AtomicBool,
}

impl Shutdown {
    pub fn new(drain: Duration) -> Self {
        Self {
            phase: watch::Sender::new(ShutdownPhase::Serving),
            drain,
            drain_begin: OnceLock::new(),
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

    /// Resolves after a random part of `shutdown.drain`.
    pub async fn random_drain_delay(&self) {
        let share = rand::thread_rng().gen_range(0.0..DRAIN_SHARE);
        tokio::time::sleep(self.drain.mul_f64(share)).await;
    }
}
