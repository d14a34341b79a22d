//! Metrics of what clients leave unread.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::metrics::{counter_vec, int_gauge, saturating};
use crate::relay::client::unread::ResetReason;

/// Metrics of the budget for unread answers.
#[derive(Debug, Clone)]
pub struct UnreadMetrics {
    held: IntGauge,
    given_up: [IntCounter; ResetReason::ALL.len()],
}

impl UnreadMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let held = int_gauge(
            registry,
            "kube_interop_proxy_unread_bytes",
            "Most that answers may hold here whose clients let them wait.",
        )?;
        let given_up = counter_vec(
            registry,
            "kube_interop_proxy_unread_resets_total",
            "Answers and connections ended because the client did not read: it took nothing for 60 s (timeout), or too much was unread (budget).",
            &["reason"],
        )?;
        Ok(Self {
            held,
            given_up: ResetReason::ALL.map(|reason| given_up.with_label_values(&[reason.name()])),
        })
    }

    pub fn held(&self, bytes: usize) {
        self.held.set(saturating(bytes));
    }

    pub fn given_up(&self, reason: ResetReason) {
        let [timeout, budget] = &self.given_up;
        match reason {
            ResetReason::Timeout => timeout.inc(),
            ResetReason::Budget => budget.inc(),
        }
    }
}
