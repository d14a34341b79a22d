//! Metrics of what clients leave unread.

use prometheus::{IntCounter, IntGauge};

use crate::metrics::{metrics, saturating};
use crate::relay::client::unread::ResetReason;

metrics! {
    /// Metrics of the budget for unread answers.
    #[derive(Debug, Clone)]
    pub struct UnreadMetrics {
        /// Most that answers may hold here whose clients let them wait.
        held: IntGauge = gauge("kube_interop_proxy_unread_bytes"),
        /// Answers and connections ended because the client did not read: it took nothing for 60 s (timeout), or too
        /// much was unread (budget).
        given_up: [IntCounter; ResetReason::ALL.len()] =
            counters("kube_interop_proxy_unread_resets_total", "reason", ResetReason::ALL.map(ResetReason::name)),
    }
}

impl UnreadMetrics {
    pub fn held(&self, bytes: usize) {
        self.held.set(saturating(bytes));
    }

    pub fn given_up(&self, reason: ResetReason) {
        if let Some(counter) = self.given_up.get(reason as usize) {
            counter.inc();
        }
    }
}
