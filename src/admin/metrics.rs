//! Metrics that are set from the state each time somebody reads `/metrics`.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec};

use super::document::{CheckStatus, PEER_STATES, peer_state};
use crate::log_queue;
use crate::metrics::{metrics, saturating};
use crate::net::lock;
use crate::relay::shared::Shared;
use crate::routing::table::{Server, ServerKind};

metrics! {
    pub struct Gauges {
        /// Always 1.
        build: [IntGauge; 1] =
            gauges("kube_interop_proxy_build_info", "version", [env!("CARGO_PKG_VERSION")]),
        /// Time since the last answer of etcd.
        etcd_age: Gauge = gauge("kube_interop_proxy_etcd_state_age_seconds"),
        /// Newest etcd revision known.
        etcd_revision: IntGauge = gauge("kube_interop_proxy_etcd_revision"),
        /// Complete lists asked of etcd.
        etcd_lists: IntCounter = counter("kube_interop_proxy_etcd_lists_total"),
        /// Values in etcd that could not be decoded.
        etcd_undecodable: IntCounter = counter("kube_interop_proxy_etcd_undecodable_total"),
        /// Watches that found etcd restored or replaced.
        etcd_restores: IntCounter = counter("kube_interop_proxy_etcd_restores_total"),
        /// 1 once everything was listed since start.
        etcd_synced: IntGauge = gauge("kube_interop_proxy_etcd_synced"),
        /// Other servers by state.
        peers: [IntGauge; 4] =
            gauges("kube_interop_proxy_peers", "state", PEER_STATES),
        /// 1 while the local apiserver is initialized (KEP-3028).
        initialized: IntGauge = gauge("kube_interop_proxy_apiserver_initialized"),
        /// Resources that would be answered 503 if this server stopped: no other server that can be asked lists them.
        only_here: IntGauge = gauge("kube_interop_proxy_only_here_resources"),
        /// 1 once a background task has panicked: restart the proxy.
        control_panicked: IntGauge = gauge("kube_interop_proxy_control_panicked"),
        /// 1 while this check of /readyz passes, else 0.
        readyz_checks: IntGaugeVec = gauge_vec("kube_interop_proxy_readyz_check", &["check"]),
        /// Log lines that were dropped: their reader is slow or gone, or the disk is full.
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
        let etcd = published.etcd.load();
        self.etcd_age.set(etcd.heard.elapsed().as_secs_f64());
        self.etcd_revision.set(etcd.revision);
        catch_up(&self.etcd_lists, etcd.lists);
        catch_up(&self.etcd_undecodable, etcd.undecodable);
        catch_up(&self.etcd_restores, etcd.restores);
        let snapshot = published.snapshot.load();
        self.etcd_synced.set(snapshot.synced.into());
        self.only_here.set(saturating(snapshot.only_local()));
        let state = |it: &Server| peer_state(it.live, it.kind == ServerKind::Bare, it.target);
        for (gauge, name) in self.peers.iter().zip(PEER_STATES) {
            let servers = snapshot.servers.iter();
            let count = servers.filter(|server| state(server) == name).count();
            gauge.set(saturating(count));
        }
        self.initialized.set(shared.local.is_initialized().into());
        let panicked = shared.control_panicked.load(Relaxed);
        self.control_panicked.set(panicked.into());
        self.dropped_log_lines.inc_by(log_queue::take_dropped());
    }
}

/// Brings a counter to a count that is kept elsewhere, once for all who read at the same time.
fn catch_up(counter: &IntCounter, total: u64) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = lock(&ONE_AT_A_TIME);
    counter.inc_by(total.saturating_sub(counter.get()));
}
