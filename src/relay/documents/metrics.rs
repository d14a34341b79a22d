//! Metrics of discovery documents.

use prometheus::{IntCounter, Registry};

use crate::metrics::{counter, counter_vec};

/// How a request for a discovery document was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DocumentOutcome {
    /// By the local apiserver, unchanged: other servers add nothing.
    Passed,
    /// With contents of other servers.
    Merged,
    /// The client has the merged document.
    NotModified,
    /// By another server.
    Rerouted,
    /// Refused: only servers that cannot be reached have it.
    Stale,
}

impl DocumentOutcome {
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Passed, "passed"),
        (Self::Merged, "merged"),
        (Self::NotModified, "not_modified"),
        (Self::Rerouted, "rerouted"),
        (Self::Stale, "stale"),
    ];
}

pub struct DocumentMetrics {
    served: [IntCounter; DocumentOutcome::ALL.len()],
    /// Documents that were merged. Others came from the cache.
    pub merges: IntCounter,
}

impl DocumentMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let served = counter_vec(
            registry,
            "kube_interop_proxy_discovery_total",
            "Requests for discovery and OpenAPI documents by how they were served.",
            &["how"],
        )?;
        let merges = counter(
            registry,
            "kube_interop_proxy_discovery_merges_total",
            "Discovery and OpenAPI documents that were put together, each once for many requests.",
        )?;
        Ok(Self {
            served: DocumentOutcome::ALL.map(|(_, name)| served.with_label_values(&[name])),
            merges,
        })
    }

    pub fn count(&self, how: DocumentOutcome) {
        if let Some(counter) = self.served.get(how as usize) {
            counter.inc();
        }
    }
}
