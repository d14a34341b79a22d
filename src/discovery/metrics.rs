//! Metrics of reading peers' discovery, written by its task.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use crate::discovery::peer_discovery::SourceStatus;
use crate::metrics::{metrics, saturating};

metrics! {
    #[derive(Debug, Clone)]
    pub struct PeerDiscoveryMetrics {
        /// Peers, those of one version that list the same as one, whose documents add something to the local apiserver's,
        /// by state: read, failing, unreachable.
        sources: IntGaugeVec = gauge_vec("kube_interop_proxy_discovery_sources", &["state"]),
        /// Times that a peer was asked for its documents, by result: ok, failed.
        reads: IntCounterVec = counter_vec("kube_interop_proxy_discovery_reads_total", &["result"]),
        /// Group versions that only others list and whose document could not be read: listed as stale.
        by_name: IntGauge = gauge("kube_interop_proxy_discovery_undescribed_group_versions"),
        /// Size of the OpenAPI documents of peers that are kept.
        openapi: IntGauge = gauge("kube_interop_proxy_discovery_openapi_bytes"),
    }
}

impl PeerDiscoveryMetrics {
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
