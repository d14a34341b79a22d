//! Metrics of the identity Lease. Written by [`crate::publish::lease`].

use prometheus::{IntCounter, Opts, Registry};
use time::OffsetDateTime;

use super::metrics::{counter, gauge, register};

/// Who keeps the Lease that has our server ID for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOwner {
    /// This proxy.
    Proxy,
    /// Somebody else, most likely the apiserver: it is left alone.
    Other,
}

impl LeaseOwner {
    pub(super) const ALL: [Self; 2] = [Self::Proxy, Self::Other];

    /// Name for metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Other => "other",
        }
    }
}

/// How it goes with our identity Lease (KEP-1965).
#[derive(Debug, Clone)]
pub struct LeaseMetrics {
    start_time: prometheus::Gauge,
    renew_time: prometheus::Gauge,
    successes: IntCounter,
    kept: prometheus::IntGaugeVec,
    /// Creations and renewals that failed.
    pub failures: IntCounter,
}

impl LeaseMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let kept = prometheus::IntGaugeVec::new(
            Opts::new(
                "kube_interop_proxy_identity_lease",
                "1 for who keeps the Lease of this server's name, where the proxy should: proxy, or other.",
            ),
            &["kept_by"],
        )?;
        register(registry, &kept)?;
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

    /// Whom the Lease was found to be kept by; `None`: the proxy has none to keep.
    pub fn kept_by(&self, owner: Option<LeaseOwner>) {
        for each in LeaseOwner::ALL {
            let gauge = self.kept.with_label_values(&[each.name()]);
            gauge.set((owner == Some(each)).into());
        }
    }

    /// Who keeps it.
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
    use crate::admin::metrics::{Gauges, Metrics};

    #[test]
    fn the_leases_metrics_have_kubernetes_names() {
        let metrics = Metrics::new().unwrap();
        let at = OffsetDateTime::from_unix_timestamp(1_000_000_000).unwrap();
        metrics.lease.acquired(at);
        metrics.lease.renewed(at + Duration::from_millis(1500));
        metrics.lease.failures.inc_by(2);
        metrics.lease.kept_by(Some(LeaseOwner::Other));
        assert_eq!(metrics.lease.owner(), Some(LeaseOwner::Other));
        let text = metrics.render(Gauges::default()).unwrap();
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
}
