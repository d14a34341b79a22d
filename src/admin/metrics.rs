//! Gauges that are set from the state each time somebody reads `/metrics`.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec};

use super::document::CheckStatus;
use crate::log_queue;
use crate::metrics::{metrics, saturating};
use crate::relay::shared::Shared;
use crate::routing::table::{Server, ServerKind};

metrics! {
    pub struct Gauges {
        /// Always 1; the version is a label.
        build: [IntGauge; 1] =
            gauges("kube_interop_proxy_build_info", "version", [env!("CARGO_PKG_VERSION")]),
        /// Time since etcd was last heard of.
        etcd_age: Gauge = gauge("kube_interop_proxy_etcd_state_age_seconds"),
        /// Newest etcd revision known.
        etcd_revision: IntGauge = gauge("kube_interop_proxy_etcd_revision"),
        /// Complete lists asked of etcd since start.
        etcd_lists: IntGauge = gauge("kube_interop_proxy_etcd_lists"),
        /// Values in etcd that could not be decoded since start.
        etcd_undecodable: IntGauge = gauge("kube_interop_proxy_etcd_undecodable"),
        /// Watches that found etcd restored or replaced since start.
        etcd_restores: IntGauge = gauge("kube_interop_proxy_etcd_restores"),
        /// 1 once everything was listed since start.
        etcd_synced: IntGauge = gauge("kube_interop_proxy_etcd_synced"),
        /// Other servers by state: target, live, bare, absent.
        peers: [IntGauge; 4] =
            gauges("kube_interop_proxy_peers", "state", ["target", "live", "bare", "absent"]),
        /// 1 while the local apiserver is initialized (KEP-3028).
        initialized: IntGauge = gauge("kube_interop_proxy_apiserver_initialized"),
        /// Resources that no other server lists that can be asked: they would be answered 503 if this server stopped.
        only_here: IntGauge = gauge("kube_interop_proxy_only_here_resources"),
        /// 1 once a background task has panicked: restart the proxy.
        control_panicked: IntGauge = gauge("kube_interop_proxy_control_panicked"),
        /// 1 while this check of /readyz passes, else 0.
        readyz_checks: IntGaugeVec = gauge_vec("kube_interop_proxy_readyz_check", &["check"]),
        /// Log lines that were dropped, because whoever reads them is slow or gone, or the disk is full.
        dropped_log_lines: IntCounter = counter("kube_interop_proxy_dropped_log_lines_total"),
    }
}

impl Gauges {
    pub fn set(&self, shared: &Shared, checks: &[CheckStatus]) {
        let [build] = &self.build;
        build.set(1);
        for check in checks {
            let gauge = self.readyz_checks.with_label_values(&[&check.name]);
            gauge.set(check.missing.is_none().into());
        }
        let published = &shared.published;
        let counters = &published.counters;
        self.etcd_age.set(published.freshness.age().as_secs_f64());
        self.etcd_revision.set(counters.revision.load(Relaxed));
        for (gauge, count) in [
            (&self.etcd_lists, &counters.lists),
            (&self.etcd_undecodable, &counters.undecodable),
            (&self.etcd_restores, &counters.restores),
        ] {
            gauge.set(saturating(count.load(Relaxed)));
        }
        let snapshot = published.snapshot.load();
        self.etcd_synced.set(snapshot.synced.into());
        self.only_here.set(saturating(snapshot.only_local()));
        let has_proxy = |server: &Server| server.kind != ServerKind::Bare;
        let states: [&dyn Fn(&Server) -> bool; 4] = [
            &|server| server.target && has_proxy(server),
            &|server| server.live && !server.target && has_proxy(server),
            &|server| server.live && !has_proxy(server),
            &|server| !server.live,
        ];
        for (gauge, is_so) in self.peers.iter().zip(states) {
            let servers = snapshot.servers.iter().filter(|server| is_so(server));
            gauge.set(saturating(servers.count()));
        }
        self.initialized.set(shared.local.is_initialized().into());
        let panicked = shared.control_panicked.load(Relaxed);
        self.control_panicked.set(panicked.into());
        self.dropped_log_lines.inc_by(log_queue::take_dropped());
    }
}
