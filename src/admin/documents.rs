//! Metrics of discovery documents.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use super::metrics::{counter, register};

/// How a request for a discovery document was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum How {
    /// By the local apiserver: others have nothing to add.
    Passed,
    /// With what others have, added to an apiserver's own.
    Merged,
    /// The client has the merged document already.
    NotModified,
    /// By another server.
    Rerouted,
    /// Refused: only servers that cannot be reached have it.
    Stale,
}

impl How {
    pub(super) const ALL: [(Self, &'static str); 5] = [
        (Self::Passed, "passed"),
        (Self::Merged, "merged"),
        (Self::NotModified, "not_modified"),
        (Self::Rerouted, "rerouted"),
        (Self::Stale, "stale"),
    ];
}

/// Counters of discovery documents.
pub struct DocumentMetrics {
    served: [IntCounter; How::ALL.len()],
    /// Documents that were put together; others were served from what was put together before.
    pub merges: IntCounter,
}

impl DocumentMetrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let served = IntCounterVec::new(
            Opts::new(
                "kube_interop_proxy_discovery_total",
                "Requests for discovery and OpenAPI documents by how they were served.",
            ),
            &["how"],
        )?;
        register(registry, &served)?;
        let merges = counter(
            registry,
            "kube_interop_proxy_discovery_merges_total",
            "Discovery and OpenAPI documents that were put together, each once for many requests.",
        )?;
        Ok(Self {
            served: How::ALL.map(|(_, name)| served.with_label_values(&[name])),
            merges,
        })
    }

    /// A request was served like this.
    pub fn count(&self, how: How) {
        if let Some(counter) = self.served.get(how as usize) {
            counter.inc();
        }
    }
}
