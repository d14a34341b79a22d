//! How many frames a client may send that ask for nothing: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, empty DATA
//! and unknown ones. Pure.
//!
//! Requests and answers explain some of them: clients reset requests, and open windows while they read. A client beyond
//! its budget is not read until the budget has grown again, so that it breaks nothing of its own.

use std::time::{Duration, Instant};

/// Frames at once, as many as Go's server lets wait.
const MOST: i64 = 10_000;
const PER_SECOND: i64 = 1000;
/// Frames that one request explains.
pub(super) const OF_A_REQUEST: i64 = 8;
/// Bytes of answers that explain one frame. A client of Go opens two windows for each 4 KiB.
const BYTES: usize = 128;

#[derive(Debug)]
pub(super) struct FrameBudget {
    left: i64,
    /// It has grown until then.
    grown: Instant,
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: MOST,
            grown: now,
        }
    }

    /// So many bytes were sent to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.earn(i64::try_from(bytes / BYTES).unwrap_or(MOST));
    }

    /// These frames were read. Returns the time until the client may be read again, if it has sent too many.
    pub(super) fn read(&mut self, frames: i64, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if frames <= 0 {
            self.earn(frames.saturating_neg());
            return None;
        }
        self.left = self.left.saturating_sub(frames);
        if self.left >= 0 {
            return None;
        }
        let now = now();
        let time = now.saturating_duration_since(self.grown).as_millis();
        self.grown = now;
        self.earn(i64::try_from(time).unwrap_or(MOST) * PER_SECOND / 1000);
        let missing = u64::try_from(self.left.saturating_neg()).unwrap_or(0);
        (missing > 0).then(|| Duration::from_millis(missing * 1000 / PER_SECOND as u64))
    }

    fn earn(&mut self, frames: i64) {
        self.left = self.left.saturating_add(frames).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause after `frames` more, so many seconds after the beginning.
    fn paused(budget: &mut FrameBudget, begun: Instant, frames: i64, seconds: u64) -> Option<u64> {
        let now = || begun + Duration::from_secs(seconds);
        let pause = budget.read(frames, now)?;
        Some(pause.as_millis().try_into().unwrap())
    }

    #[test]
    fn who_floods_is_read_at_a_bounded_rate() {
        let begun = Instant::now();
        let mut budget = FrameBudget::new(begun);
        assert_eq!(paused(&mut budget, begun, MOST, 0), None);
        assert_eq!(paused(&mut budget, begun, 2000, 0), Some(2000));
        assert_eq!(paused(&mut budget, begun, 1000, 2), Some(1000));
        // It grows for as long as that, and not above its size.
        assert_eq!(paused(&mut budget, begun, 1000, 1_000_000), None);
        assert_eq!(
            paused(&mut budget, begun, MOST + 1000, 1_000_000),
            Some(1000)
        );
    }

    #[test]
    fn requests_and_answers_explain_frames() {
        let begun = Instant::now();
        let mut budget = FrameBudget::new(begun);
        for _ in 0..10 * MOST {
            assert_eq!(paused(&mut budget, begun, -OF_A_REQUEST, 0), None);
            assert_eq!(paused(&mut budget, begun, OF_A_REQUEST, 0), None);
            budget.sent(4096);
            assert_eq!(paused(&mut budget, begun, 32, 0), None);
            budget.sent(BYTES * 32);
        }
        // An answer to a PING explains none.
        budget.sent(17);
        assert_eq!(budget.left, MOST);
        assert!(paused(&mut budget, begun, MOST + 1, 0).is_some());
    }
}
