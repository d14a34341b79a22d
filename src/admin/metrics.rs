//! Gauges that are set from the state each time somebody reads `/metrics`.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec, Registry};

use super::document::CheckStatus;
use crate::log_queue;
use crate::metrics::{counter, gauge, gauge_vec, int_gauge, saturating};

/// Current values of the gauges.
#[derive(Debug, Clone, Copy, Default)]
pub struct GaugeValues {
    /// Time since etcd last sent anything.
    pub etcd_age: Duration,
    pub etcd_revision: i64,
    /// Complete lists since start.
    pub etcd_lists: u64,
    /// Values that could not be decoded since start.
    pub etcd_undecodable: u64,
    /// Watches that found etcd restored or replaced, since start.
    pub etcd_restores: u64,
    /// Everything was listed at least once.
    pub etcd_synced: bool,
    /// Peers that requests may be sent to, without bare ones.
    pub targets: usize,
    /// Peers with a live key that are no targets.
    pub live: usize,
    /// Live apiservers without a proxy.
    pub bare: usize,
    /// Known servers without a live key.
    pub absent: usize,
    pub initialized: bool,
    /// Resources that would be answered 503 if this server stopped.
    pub only_here: usize,
    /// A background task has panicked.
    pub control_panicked: bool,
}

pub struct Gauges {
    etcd_age: Gauge,
    etcd_revision: IntGauge,
    etcd_lists: IntGauge,
    etcd_undecodable: IntGauge,
    etcd_restores: IntGauge,
    etcd_synced: IntGauge,
    peers: IntGaugeVec,
    initialized: IntGauge,
    only_here: IntGauge,
    control_panicked: IntGauge,
    readyz_checks: IntGaugeVec,
    dropped_log_lines: IntCounter,
}

impl Gauges {
    /// Registers the gauges, and the version of this build.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let build = gauge_vec(
            registry,
            "kube_interop_proxy_build_info",
            "Always 1; the version is a label.",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let etcd_age = gauge(
            registry,
            "kube_interop_proxy_etcd_state_age_seconds",
            "Time since etcd was last heard of.",
        )?;
        let peers = gauge_vec(
            registry,
            "kube_interop_proxy_peers",
            "Other servers by state: target, live, bare, absent.",
            &["state"],
        )?;
        let readyz_checks = gauge_vec(
            registry,
            "kube_interop_proxy_readyz_check",
            "1 while this check of /readyz passes, else 0.",
            &["check"],
        )?;
        let dropped_log_lines = counter(
            registry,
            "kube_interop_proxy_dropped_log_lines_total",
            "Log lines that were dropped, because whoever reads them is slow or gone, or the disk is full.",
        )?;
        let gauge = |name: &str, help: &str| int_gauge(registry, name, help);
        Ok(Self {
            etcd_age,
            etcd_revision: gauge(
                "kube_interop_proxy_etcd_revision",
                "Newest etcd revision known.",
            )?,
            etcd_lists: gauge(
                "kube_interop_proxy_etcd_lists",
                "Complete lists asked of etcd since start.",
            )?,
            etcd_undecodable: gauge(
                "kube_interop_proxy_etcd_undecodable",
                "Values in etcd that could not be decoded since start.",
            )?,
            etcd_restores: gauge(
                "kube_interop_proxy_etcd_restores",
                "Watches that found etcd restored or replaced since start.",
            )?,
            etcd_synced: gauge(
                "kube_interop_proxy_etcd_synced",
                "1 once everything was listed since start.",
            )?,
            peers,
            initialized: gauge(
                "kube_interop_proxy_apiserver_initialized",
                "1 while the local apiserver is initialized (KEP-3028).",
            )?,
            only_here: gauge(
                "kube_interop_proxy_only_here_resources",
                "Resources that no other server lists that can be asked: they would be answered 503 if this server stopped.",
            )?,
            control_panicked: gauge(
                "kube_interop_proxy_control_panicked",
                "1 once a background task has panicked: restart the proxy.",
            )?,
            readyz_checks,
            dropped_log_lines,
        })
    }

    pub fn set(&self, values: GaugeValues, checks: &[CheckStatus]) {
        for check in checks {
            let passes = check.missing.is_none();
            let gauge = self.readyz_checks.with_label_values(&[&check.name]);
            gauge.set(passes.into());
        }
        self.etcd_age.set(values.etcd_age.as_secs_f64());
        self.etcd_revision.set(values.etcd_revision);
        self.etcd_lists.set(saturating(values.etcd_lists));
        self.etcd_undecodable
            .set(saturating(values.etcd_undecodable));
        self.etcd_restores.set(saturating(values.etcd_restores));
        self.etcd_synced.set(values.etcd_synced.into());
        self.initialized.set(values.initialized.into());
        self.only_here.set(saturating(values.only_here));
        self.control_panicked.set(values.control_panicked.into());
        self.dropped_log_lines.inc_by(log_queue::take_dropped());
        for (state, count) in [
            ("target", values.targets),
            ("live", values.live),
            ("bare", values.bare),
            ("absent", values.absent),
        ] {
            self.peers
                .with_label_values(&[state])
                .set(saturating(count));
        }
    }
}
