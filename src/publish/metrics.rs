//! Metrics of the server's identity and of its Lease.

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec, Registry};
use time::OffsetDateTime;

use crate::metrics::{counter, gauge, gauge_vec, int_gauge};

#[derive(Debug, Clone)]
pub struct IdentityMetrics {
    identity: IntGaugeVec,
    pub duplicate_id: IntGauge,
}

impl IdentityMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            identity: gauge_vec(
                registry,
                "apiserver_identity",
                "Always 1; the server ID is a label (KEP-1965).",
                &["id"],
            )?,
            duplicate_id: int_gauge(
                registry,
                "kube_interop_proxy_duplicate_server_id",
                "1 while another live proxy claims this server ID.",
            )?,
        })
    }

    /// The server ID is now `id`.
    pub fn identity(&self, id: &str) {
        self.identity.reset();
        self.identity.with_label_values(&[id]).set(1);
    }
}

/// The writer of the Lease that is named by the server ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOwner {
    Proxy,
    /// Somebody else, most likely the apiserver: it is left alone.
    Other,
}

impl LeaseOwner {
    pub const ALL: [Self; 2] = [Self::Proxy, Self::Other];

    /// Name for metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Other => "other",
        }
    }
}

/// The identity Lease (KEP-1965).
#[derive(Debug, Clone)]
pub struct LeaseMetrics {
    start_time: Gauge,
    renew_time: Gauge,
    successes: IntCounter,
    kept: IntGaugeVec,
    /// Creations and renewals that failed.
    pub failures: IntCounter,
}

impl LeaseMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let kept = gauge_vec(
            registry,
            "kube_interop_proxy_identity_lease",
            "1 for who keeps the Lease of this server's name, where the proxy should: proxy, or other.",
            &["kept_by"],
        )?;
        Ok(Self {
            kept,
            start_time: gauge(
                registry,
                "apiserver_identity_lease_start_time_seconds",
                "When this process acquired its identity Lease, in Unix time.",
            )?,
            renew_time: gauge(
                registry,
                "apiserver_identity_lease_renew_time_seconds",
                "When the identity Lease was renewed last, in Unix time.",
            )?,
            successes: counter(
                registry,
                "apiserver_identity_lease_success_count",
                "Creations and renewals of the identity Lease.",
            )?,
            failures: counter(
                registry,
                "apiserver_identity_lease_failure_count",
                "Creations and renewals of the identity Lease that failed.",
            )?,
        })
    }

    /// The Lease is ours since `at`.
    pub fn acquired(&self, at: OffsetDateTime) {
        self.start_time.set(unix(at));
    }

    /// The current writer of the Lease; `None`: this proxy should not keep one.
    pub fn kept_by(&self, owner: Option<LeaseOwner>) {
        for each in LeaseOwner::ALL {
            let gauge = self.kept.with_label_values(&[each.name()]);
            gauge.set((owner == Some(each)).into());
        }
    }

    pub fn owner(&self) -> Option<LeaseOwner> {
        let is = |owner: &LeaseOwner| self.kept.with_label_values(&[owner.name()]).get() == 1;
        LeaseOwner::ALL.into_iter().find(is)
    }

    /// The Lease was written.
    pub fn renewed(&self, at: OffsetDateTime) {
        self.renew_time.set(unix(at));
        self.successes.inc();
    }
}

fn unix(time: OffsetDateTime) -> f64 {
    (time - OffsetDateTime::UNIX_EPOCH).as_seconds_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::text;

    #[test]
    fn the_leases_metrics_have_kubernetes_names() {
        let registry = Registry::new();
        let metrics = LeaseMetrics::new(&registry).unwrap();
        let at = OffsetDateTime::from_unix_timestamp(1_000_000_000).unwrap();
        metrics.acquired(at);
        metrics.renewed(at + Duration::from_millis(1500));
        metrics.failures.inc_by(2);
        metrics.kept_by(Some(LeaseOwner::Other));
        assert_eq!(metrics.owner(), Some(LeaseOwner::Other));
        let text = text(&registry).unwrap();
        for line in [
            "apiserver_identity_lease_start_time_seconds 1000000000",
            "apiserver_identity_lease_renew_time_seconds 1000000001.5",
            "apiserver_identity_lease_success_count 1",
            "apiserver_identity_lease_failure_count 2",
            "kube_interop_proxy_identity_lease{kept_by=\"other\"} 1",
            "kube_interop_proxy_identity_lease{kept_by=\"proxy\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
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
