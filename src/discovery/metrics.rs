//! Metrics of reading peers' discovery, written by its task.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Registry};

use crate::discovery::peer_discovery::SourceStatus;
use crate::metrics::{counter_vec, gauge_vec, int_gauge, saturating};

#[derive(Debug, Clone)]
pub struct PeerDiscoveryMetrics {
    sources: IntGaugeVec,
    reads: IntCounterVec,
    by_name: IntGauge,
    openapi: IntGauge,
}

impl PeerDiscoveryMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            sources: gauge_vec(
                registry,
                "kube_interop_proxy_discovery_sources",
                "Peers, those of one version that list the same as one, whose documents add something to the local apiserver's, by state: read, failing, unreachable.",
                &["state"],
            )?,
            reads: counter_vec(
                registry,
                "kube_interop_proxy_discovery_reads_total",
                "Times that a peer was asked for its documents, by result: ok, failed.",
                &["result"],
            )?,
            by_name: int_gauge(
                registry,
                "kube_interop_proxy_discovery_undescribed_group_versions",
                "Group versions that only others list and whose document could not be read: listed as stale.",
            )?,
            openapi: int_gauge(
                registry,
                "kube_interop_proxy_discovery_openapi_bytes",
                "Size of the OpenAPI documents of peers that are kept.",
            )?,
        })
    }

    /// The documents of a peer were read, or could not be read.
    pub fn read(&self, ok: bool) {
        let result = if ok { "ok" } else { "failed" };
        self.reads.with_label_values(&[result]).inc();
    }

    /// `openapi`: size of all OpenAPI documents in bytes.
    pub fn sources(&self, sources: &[SourceStatus], openapi: usize) {
        for state in ["read", "failing", "unreachable"] {
            let count = sources
                .iter()
                .filter(|source| source.state() == state)
                .count();
            let gauge = self.sources.with_label_values(&[state]);
            gauge.set(saturating(count));
        }
        self.by_name.set(saturating(
            sources.iter().map(|source| source.by_name).sum::<usize>(),
        ));
        self.openapi.set(saturating(openapi));
    }
}
