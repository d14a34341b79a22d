//! What becomes of spans.

use prometheus::{IntCounter, Registry};

use crate::metrics::counter_vec;

#[derive(Debug, Clone)]
pub struct SpanMetrics {
    pub exported: IntCounter,
    /// The queue was full.
    pub dropped: IntCounter,
    /// The receiver did not take them.
    pub failed: IntCounter,
}

impl SpanMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let spans = counter_vec(
            registry,
            "kube_interop_proxy_spans_total",
            "Spans of sampled requests, by what became of them: the receiver of tracing.endpoint took them (exported), it did not (failed), or too many waited for it (dropped).",
            &["result"],
        )?;
        Ok(Self {
            exported: spans.with_label_values(&["exported"]),
            dropped: spans.with_label_values(&["dropped"]),
            failed: spans.with_label_values(&["failed"]),
        })
    }
}
