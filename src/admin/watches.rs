//! Metrics of watches and of the drain.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::metrics::register;
use crate::watches::proof::Withheld;

/// How watches end.
#[derive(Debug)]
pub struct WatchMetrics {
    open: [IntGauge; 2],
    given: IntCounter,
    withheld: IntCounterVec,
    /// Long-running requests that the drain has not ended yet.
    pub left: IntGauge,
}

impl WatchMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let open = IntGaugeVec::new(
            Opts::new(
                "kube_interop_proxy_watches",
                "Watches that are open, by whether a bookmark is looked for when the proxy stops.",
            ),
            &["bookmarks"],
        )?;
        let given = IntCounter::new(
            "kube_interop_proxy_last_bookmarks_total",
            "Watches that ended with a bookmark of the proxy's.",
        )?;
        let withheld = IntCounterVec::new(
            Opts::new(
                "kube_interop_proxy_last_bookmarks_withheld_total",
                "Watches that ended without a bookmark although they had asked for some, by reason.",
            ),
            &["reason"],
        )?;
        let left = IntGauge::new(
            "kube_interop_proxy_drain_left",
            "Long-running requests that the drain has not ended yet.",
        )?;
        register(registry, &open)?;
        register(registry, &given)?;
        register(registry, &withheld)?;
        register(registry, &left)?;
        for reason in Withheld::ALL {
            withheld.with_label_values(&[reason.name()]);
        }
        Ok(Self {
            open: ["false", "true"].map(|followed| open.with_label_values(&[followed])),
            given,
            withheld,
            left,
        })
    }

    /// A watch is open until this is dropped; `followed`: a bookmark will be looked for.
    pub fn open(&self, followed: bool) -> Open<'_> {
        let [other, bookmarks] = &self.open;
        Open::new(if followed { bookmarks } else { other })
    }

    /// A watch ended with a bookmark.
    pub fn given(&self) {
        self.given.inc();
    }

    /// A watch ended without.
    pub fn withheld(&self, withheld: Withheld) {
        self.withheld.with_label_values(&[withheld.name()]).inc();
    }
}

/// Counts something open while it lives.
#[derive(Debug)]
pub struct Open<'a>(&'a IntGauge);

impl<'a> Open<'a> {
    /// Counts one more.
    pub fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
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
