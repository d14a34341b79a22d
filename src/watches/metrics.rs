//! Metrics of watches and of draining.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use crate::metrics::{Open, labels, metrics};
use crate::watches::change_log::Withheld;

/// What became of a watch that a server has answered with 410.
pub const EXPIRED_RESULTS: [&str; 2] = ["avoided", "passed"];

labels! {
    /// Why a watch leaves its server before its time.
    pub enum LeaveReason {
        /// The apiserver says that it is shutting down.
        ShutsDown = "shuts_down",
        /// The apiserver has ended it while it was shutting down, or a peer's proxy has, which cannot go on with it.
        Ended = "ended",
        /// The connection broke, or nothing came from the server for too long.
        BrokeOff = "broke_off",
    }
}

labels! {
    /// What became of a watch that left its server.
    pub enum HandOverResult {
        /// It goes on at another server.
        Continued = "continued",
        /// No server could go on with it: its client was told where it stopped, or that it has ended.
        Ended = "ended",
        /// Its client went away meanwhile.
        ClientGone = "client_gone",
    }
}

/// Buckets of the time without a server, in seconds.
const GAPS: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

metrics! {
    #[derive(Debug)]
    pub struct WatchMetrics {
        /// Watches in JSON and protobuf that are open, by whether a bookmark is looked for when the proxy stops.
        open: [IntGauge; 2] =
            gauges("kube_interop_proxy_watches", "bookmarks", ["false", "true"]),
        /// Watches that ended with a last bookmark from the proxy.
        pub given: IntCounter = counter("kube_interop_proxy_last_bookmarks_total"),
        /// Watches that ended without a bookmark although they had asked for some, by reason.
        withheld: [IntCounter; Withheld::ALL.len()] =
            counters("kube_interop_proxy_last_bookmarks_withheld_total", "reason", Withheld::ALL.map(Withheld::name)),
        /// Watches from a revision that an apiserver has answered with 410 (its history does not reach back), by whether
        /// another apiserver served them. Each is counted by the proxy that its client asked.
        expired: [IntCounter; 2] =
            counters("kube_interop_proxy_expired_watches_total", "result", EXPIRED_RESULTS),
        /// Watches that left their server early, by reason and by what became of them.
        handed_over: [[IntCounter; HandOverResult::ALL.len()]; LeaveReason::ALL.len()] = counter_table(
            "kube_interop_proxy_watch_hand_overs_total",
            ["reason", "result"],
            LeaveReason::ALL.map(LeaveReason::name),
            HandOverResult::ALL.map(HandOverResult::name),
        ),
        /// Time from when a watch left its server until another one continued it.
        gap: Histogram = histogram("kube_interop_proxy_watch_hand_over_seconds", &GAPS),
        /// Long-running requests that the drain has not ended yet.
        pub left: IntGauge = gauge("kube_interop_proxy_drain_left"),
        /// Watches whose server has stopped: their streams are open, and wait for a server that can continue them.
        pub held: IntGauge = gauge("kube_interop_proxy_watches_held"),
    }
}

impl WatchMetrics {
    /// Counts an open watch until the result is dropped. `followed`: a final bookmark is prepared for it.
    pub fn open(&self, followed: bool) -> Open<&IntGauge> {
        let [other, bookmarks] = &self.open;
        Open::new(if followed { bookmarks } else { other })
    }

    /// A server has answered a watch from a revision with 410. `avoided`: another one serves it.
    pub fn expired(&self, avoided: bool) {
        let [of_avoided, of_passed] = &self.expired;
        if avoided { of_avoided } else { of_passed }.inc();
    }

    /// A watch left its server `gap` ago.
    pub fn handed_over(&self, reason: LeaveReason, result: HandOverResult, gap: Duration) {
        self.handed_over[reason as usize][result as usize].inc();
        if result == HandOverResult::Continued {
            self.gap.observe(gap.as_secs_f64());
        }
    }

    /// How many watches have left their server with this result.
    pub fn left_and(&self, result: HandOverResult) -> u64 {
        let reasons = self.handed_over.iter();
        reasons.map(|results| results[result as usize].get()).sum()
    }

    /// Watches that are open.
    pub fn count_open(&self) -> i64 {
        self.open.iter().map(IntGauge::get).sum()
    }

    /// A watch ended without one.
    pub fn withheld(&self, withheld: Withheld) {
        self.withheld[withheld as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn what_is_open_is_counted_by_whether_it_is_followed() {
        let metrics = WatchMetrics::new(&Registry::new()).unwrap();
        let open = [metrics.open(true), metrics.open(true), metrics.open(false)];
        assert_eq!(metrics.open.each_ref().map(IntGauge::get), [1, 2]);
        drop(open);
        assert_eq!(metrics.open.each_ref().map(IntGauge::get), [0, 0]);
    }
}
