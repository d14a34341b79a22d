//! Metrics of discovery documents.

use prometheus::IntCounter;

use crate::metrics::metrics;

/// How a request for a discovery document was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// In the order of their declaration.
    pub const NAMES: [&str; 5] = ["passed", "merged", "not_modified", "rerouted", "stale"];
}

metrics! {
    pub struct DocumentMetrics {
        /// Requests for discovery and OpenAPI documents by how they were served.
        served: [IntCounter; DocumentOutcome::NAMES.len()] =
            counters("kube_interop_proxy_discovery_total", "how", DocumentOutcome::NAMES),
        /// Discovery and OpenAPI documents that were put together, each once for many requests.
        pub merges: IntCounter = counter("kube_interop_proxy_discovery_merges_total"),
    }
}

impl DocumentMetrics {
    pub fn count(&self, how: DocumentOutcome) {
        self.served[how as usize].inc();
    }
}
