//! Metrics of watches and of draining.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use crate::metrics::{Open, counter, counter_vec, gauge_vec, int_gauge};
use crate::watches::proof::Withheld;

#[derive(Debug)]
pub struct WatchMetrics {
    open: [IntGauge; 2],
    given: IntCounter,
    withheld: IntCounterVec,
    expired: [IntCounter; 2],
    /// Long-running requests that the drain has not ended yet.
    pub left: IntGauge,
}

impl WatchMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let open = gauge_vec(
            registry,
            "kube_interop_proxy_watches",
            "Watches that are open, by whether a bookmark is looked for when the proxy stops.",
            &["bookmarks"],
        )?;
        let given = counter(
            registry,
            "kube_interop_proxy_last_bookmarks_total",
            "Watches that ended with a bookmark of the proxy's.",
        )?;
        let withheld = counter_vec(
            registry,
            "kube_interop_proxy_last_bookmarks_withheld_total",
            "Watches that ended without a bookmark although they had asked for some, by reason.",
            &["reason"],
        )?;
        let expired = counter_vec(
            registry,
            "kube_interop_proxy_expired_watches_total",
            "Watches from a revision that an apiserver has answered with 410 (its history does not reach back), by whether another apiserver served them. Each is counted by the proxy that its client asked.",
            &["result"],
        )?;
        let left = int_gauge(
            registry,
            "kube_interop_proxy_drain_left",
            "Long-running requests that the drain has not ended yet.",
        )?;
        for reason in Withheld::ALL {
            withheld.with_label_values(&[reason.name()]);
        }
        Ok(Self {
            open: ["false", "true"].map(|followed| open.with_label_values(&[followed])),
            given,
            withheld,
            expired: ExpiredResult::ALL.map(|result| expired.with_label_values(&[result.name()])),
            left,
        })
    }

    /// Counts an open watch until the result is dropped. `followed`: a final bookmark is prepared for it.
    pub fn open(&self, followed: bool) -> Open<'_> {
        let [other, bookmarks] = &self.open;
        Open::new(if followed { bookmarks } else { other })
    }

    /// A watch ended with a final bookmark.
    pub fn given(&self) {
        self.given.inc();
    }

    /// A server has answered a watch from a revision with 410.
    pub fn expired(&self, result: ExpiredResult) {
        self.expired[result as usize].inc();
    }

    /// How many watches were answered with 410 and served by another server, and how many were not.
    pub fn expired_watches(&self) -> [u64; 2] {
        self.expired.each_ref().map(IntCounter::get)
    }

    /// How many ended with one, and how many without one, by reason, where there are any.
    pub fn last_bookmarks(&self) -> (u64, impl Iterator<Item = (&'static str, u64)>) {
        let withheld = Withheld::ALL.map(|reason| {
            let counter = self.withheld.with_label_values(&[reason.name()]);
            (reason.name(), counter.get())
        });
        let withheld = withheld.into_iter().filter(|(_, count)| *count > 0);
        (self.given.get(), withheld)
    }

    /// A watch ended without one.
    pub fn withheld(&self, withheld: Withheld) {
        self.withheld.with_label_values(&[withheld.name()]).inc();
    }
}

/// What became of a watch that a server has answered with 410.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExpiredResult {
    /// Another server served it.
    Avoided,
    /// No server did: its client got the 410.
    Passed,
}

impl ExpiredResult {
    pub const ALL: [Self; 2] = [Self::Avoided, Self::Passed];

    /// Name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avoided => "avoided",
            Self::Passed => "passed",
        }
    }
}

#[cfg(test)]
mod tests {
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
