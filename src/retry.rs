//! Pauses between retries: exponential backoff with jitter, so that the proxies of a cluster do not retry at the same time.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// Exponential backoff: the pause doubles with each failure in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// After the first failure, before jitter.
    pub first: Duration,
    /// Limit of a pause, before jitter.
    pub longest: Duration,
}

impl Backoff {
    pub const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after this many failures in a row; jitter shortens it by at most half. `random`: from 0 up to 1.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1);
        let full = self.first.saturating_mul(2_u32.saturating_pow(doublings));
        shortened(full.min(self.longest), random)
    }

    /// As [`Backoff::pause`], with a random number of its own.
    pub fn random_pause(&self, failures: u32) -> Duration {
        self.pause(failures, random())
    }
}

/// Between half of `pause` and all of it.
pub fn jittered(pause: Duration) -> Duration {
    shortened(pause, random())
}

/// Resolves at this time; never if there is none.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn random() -> f64 {
    rand::thread_rng().r#gen()
}

/// Between half of `pause` and all of it.
fn shortened(pause: Duration, random: f64) -> Duration {
    pause.mul_f64((1.0 + random.clamp(0.0, 1.0)) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        first: Duration::from_millis(100),
        longest: Duration::from_secs(1),
    };

    #[test]
    fn a_pause_doubles_with_each_failure_up_to_the_longest() {
        let millis = [100, 100, 200, 400, 800, 1000, 1000];
        let pauses = [0, 1, 2, 3, 4, 5, u32::MAX].map(|failures| BACKOFF.pause(failures, 1.0));
        assert_eq!(pauses, millis.map(Duration::from_millis));
    }

    #[test]
    fn jitter_takes_half_of_a_pause_and_no_more() {
        assert_eq!(BACKOFF.pause(1, 0.0), BACKOFF.first / 2);
        assert_eq!(BACKOFF.pause(1, 1.0), BACKOFF.first);
        for _ in 0..1000 {
            let pause = BACKOFF.random_pause(1);
            assert!(pause >= BACKOFF.first / 2 && pause <= BACKOFF.first);
            let pause = jittered(BACKOFF.first);
            assert!(pause >= BACKOFF.first / 2 && pause <= BACKOFF.first);
        }
    }
}
