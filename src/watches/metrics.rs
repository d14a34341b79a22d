//! Metrics of watches and of draining.

use prometheus::{IntCounter, IntGauge};

use crate::metrics::{Open, metrics};
use crate::watches::change_log::Withheld;

/// What became of a watch that a server has answered with 410.
pub const EXPIRED_RESULTS: [&str; 2] = ["avoided", "passed"];

metrics! {
    #[derive(Debug)]
    pub struct WatchMetrics {
        /// Watches that are open, by whether a bookmark is looked for when the proxy stops.
        open: [IntGauge; 2] =
            gauges("kube_interop_proxy_watches", "bookmarks", ["false", "true"]),
        /// Watches that ended with a bookmark of the proxy's.
        given: IntCounter = counter("kube_interop_proxy_last_bookmarks_total"),
        /// Watches that ended without a bookmark although they had asked for some, by reason.
        withheld: [IntCounter; Withheld::ALL.len()] =
            counters("kube_interop_proxy_last_bookmarks_withheld_total", "reason", Withheld::ALL.map(Withheld::name)),
        /// Watches from a revision that an apiserver has answered with 410 (its history does not reach back), by whether
        /// another apiserver served them. Each is counted by the proxy that its client asked.
        expired: [IntCounter; 2] =
            counters("kube_interop_proxy_expired_watches_total", "result", EXPIRED_RESULTS),
        /// Long-running requests that the drain has not ended yet.
        pub left: IntGauge = gauge("kube_interop_proxy_drain_left"),
    }
}

impl WatchMetrics {
    /// Counts an open watch until the result is dropped. `followed`: a final bookmark is prepared for it.
    pub fn open(&self, followed: bool) -> Open<'_> {
        let [other, bookmarks] = &self.open;
        Open::new(if followed { bookmarks } else { other })
    }

    /// A watch ended with a final bookmark.
    pub fn given(&self) {
        self.given.inc();
    }

    /// A server has answered a watch from a revision with 410. `avoided`: another one serves it.
    pub fn expired(&self, avoided: bool) {
        let [of_avoided, of_passed] = &self.expired;
        if avoided { of_avoided } else { of_passed }.inc();
    }

    /// A watch ended without one.
    pub fn withheld(&self, withheld: Withheld) {
        if let Some(counter) = self.withheld.get(withheld as usize) {
            counter.inc();
        }
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
