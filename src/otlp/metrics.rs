//! What becomes of spans.

use prometheus::IntCounter;

use crate::metrics::metrics;

metrics! {
    #[derive(Debug, Clone)]
    pub struct SpanMetrics {
        /// Spans of sampled requests: the receiver took them (exported), it did not (failed), or too many waited for it
        /// (dropped).
        pub by_result: [IntCounter; 3] =
            counters("kube_interop_proxy_spans_total", "result", ["exported", "dropped", "failed"]),
    }
}
