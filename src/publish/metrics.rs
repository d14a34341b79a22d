//! Metrics of the server's identity and of its Lease.

use prometheus::{GaugeVec, IntCounterVec, IntGauge, IntGaugeVec};
use time::OffsetDateTime;

use crate::metrics::metrics;

/// This proxy keeps the identity Lease.
pub const PROXY: &str = "proxy";
/// Somebody else does, most likely the apiserver: it is left alone.
pub const OTHER: &str = "other";

metrics! {
    /// All metrics of the identity Lease (KEP-1965) but one have its name as label `id`.
    #[derive(Debug, Clone)]
    pub struct IdentityMetrics {
        /// Always 1 (KEP-1965).
        identity: IntGaugeVec = gauge_vec("apiserver_identity", &["id"]),
        /// 1 while another live proxy claims this server ID.
        pub duplicate_id: IntGauge = gauge("kube_interop_proxy_duplicate_server_id"),
        /// 1 for what keeps the identity Lease, if the proxy should.
        kept: IntGaugeVec = gauge_vec("kube_interop_proxy_identity_lease", &["kept_by"]),
        /// When this process acquired the identity Lease, in Unix time.
        start_time: GaugeVec = gauge_vec("apiserver_identity_lease_start_time_seconds", &["id"]),
        /// When this process renewed the identity Lease last, in Unix time.
        renew_time: GaugeVec = gauge_vec("apiserver_identity_lease_renew_time_seconds", &["id"]),
        /// Creations and renewals of the identity Lease by this process.
        successes: IntCounterVec = counter_vec("apiserver_identity_lease_success_count", &["id"]),
        /// Creations and renewals of the identity Lease by this process that failed.
        failures: IntCounterVec = counter_vec("apiserver_identity_lease_failure_count", &["id"]),
    }
}

impl IdentityMetrics {
    /// The apiserver's ID is now `id`.
    pub fn identity(&self, id: &str) {
        self.identity.reset();
        self.identity.with_label_values(&[id]).set(1);
    }

    /// The Lease to keep is that of `id`; `None`: there is none to keep.
    pub fn is_of(&self, id: Option<&str>) {
        self.start_time.reset();
        self.renew_time.reset();
        self.successes.reset();
        self.failures.reset();
        if let Some(id) = id {
            for counter in [&self.successes, &self.failures] {
                counter.with_label_values(&[id]);
            }
        }
    }

    /// The Lease is ours since `at`.
    pub fn acquired(&self, id: &str, at: OffsetDateTime) {
        self.start_time.with_label_values(&[id]).set(unix(at));
    }

    /// Who keeps the Lease, [`PROXY`] or [`OTHER`]; `None`: this proxy should not.
    pub fn kept_by(&self, keeper: Option<&str>) {
        for each in [PROXY, OTHER] {
            let gauge = self.kept.with_label_values(&[each]);
            gauge.set((keeper == Some(each)).into());
        }
    }

    pub fn keeper(&self) -> Option<&'static str> {
        let is = |keeper: &&str| self.kept.with_label_values(&[keeper]).get() == 1;
        [PROXY, OTHER].into_iter().find(is)
    }

    /// The Lease was written.
    pub fn renewed(&self, id: &str, at: OffsetDateTime) {
        self.renew_time.with_label_values(&[id]).set(unix(at));
        self.successes.with_label_values(&[id]).inc();
    }

    /// The Lease could not be written.
    pub fn failed(&self, id: &str) {
        self.failures.with_label_values(&[id]).inc();
    }
}

fn unix(time: OffsetDateTime) -> f64 {
    (time - OffsetDateTime::UNIX_EPOCH).as_seconds_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;

    use super::*;
    use crate::metrics::text;

    #[test]
    fn the_leases_metrics_have_kubernetes_names() {
        let registry = Registry::new();
        let metrics = IdentityMetrics::new(&registry).unwrap();
        let at = OffsetDateTime::from_unix_timestamp(1_000_000_000).unwrap();
        metrics.is_of(Some("before"));
        metrics.is_of(Some("cp-a"));
        metrics.acquired("cp-a", at);
        metrics.renewed("cp-a", at + Duration::from_millis(1500));
        metrics.failed("cp-a");
        metrics.kept_by(Some(OTHER));
        assert_eq!(metrics.keeper(), Some(OTHER));
        let text = text(&registry).unwrap();
        for line in [
            "apiserver_identity_lease_start_time_seconds{id=\"cp-a\"} 1000000000",
            "apiserver_identity_lease_renew_time_seconds{id=\"cp-a\"} 1000000001.5",
            "apiserver_identity_lease_success_count{id=\"cp-a\"} 1",
            "apiserver_identity_lease_failure_count{id=\"cp-a\"} 1",
            "kube_interop_proxy_identity_lease{kept_by=\"other\"} 1",
            "kube_interop_proxy_identity_lease{kept_by=\"proxy\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert!(!text.contains("id=\"before\""), "{text}");
    }

    #[test]
    fn a_new_identity_replaces_the_old_one() {
        let registry = Registry::new();
        let metrics = IdentityMetrics::new(&registry).unwrap();
        metrics.identity("before");
        metrics.identity("now");
        let text = text(&registry).unwrap();
        assert!(text.contains("apiserver_identity{id=\"now\"} 1"), "{text}");
        assert!(!text.contains("id=\"before\""), "{text}");
    }
}
