//! Metrics of reading peers' discovery, written by its task.

use prometheus::{IntGauge, IntGaugeVec};

use crate::discovery::peer_discovery::SourceStatus;
use crate::metrics::{metrics, saturating};

metrics! {
    #[derive(Debug, Clone)]
    pub struct PeerDiscoveryMetrics {
        /// Peers whose documents add something to the local apiserver's, those of one version that list the same count as one.
        sources: IntGaugeVec = gauge_vec("kube_interop_proxy_discovery_sources", &["state"]),
        /// Group versions that are listed as stale: only others list them, and their document could not be read.
        undescribed: IntGauge = gauge("kube_interop_proxy_discovery_undescribed_group_versions"),
    }
}

impl PeerDiscoveryMetrics {
    pub fn sources(&self, sources: &[SourceStatus]) {
        for state in ["read", "failing", "unreachable"] {
            let sources = sources.iter().filter(|source| source.state == state);
            let gauge = self.sources.with_label_values(&[state]);
            gauge.set(saturating(sources.count()));
        }
        let undescribed: usize = sources.iter().map(|source| source.undescribed).sum();
        self.undescribed.set(saturating(undescribed));
    }
}
