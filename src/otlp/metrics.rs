//! What becomes of spans.

use prometheus::{IntCounter, Registry};

use crate::metrics::metrics;

metrics! {
    struct Spans {
        /// Spans of sampled requests, by what became of them: the receiver of tracing.endpoint took them (exported), it
        /// did not (failed), or too many waited for it (dropped).
        by_result: [IntCounter; 3] =
            counters("kube_interop_proxy_spans_total", "result", ["exported", "dropped", "failed"]),
    }
}

#[derive(Debug, Clone)]
pub struct SpanMetrics {
    pub exported: IntCounter,
    /// The queue was full.
    pub dropped: IntCounter,
    /// The receiver did not take them.
    pub failed: IntCounter,
}

impl SpanMetrics {
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let [exported, dropped, failed] = Spans::new(registry)?.by_result;
        Ok(Self {
            exported,
            dropped,
            failed,
        })
    }
}
