//! Prometheus metrics. Label values come from the known state, never from a request's path.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use super::certificates::CertificateMetrics;
use super::documents::DocumentMetrics;
use super::gathering::GatherMetrics;
use super::lease::LeaseMetrics;
use super::watches::WatchMetrics;
use crate::relay::answer::Refusal;
use crate::relay::forward::Failure;
use crate::routing::decide::Row;
use crate::routing::table::Gvr;

/// All metrics of one proxy. Handles that the request path uses are made once.
pub struct Metrics {
    registry: Registry,
    rerouted: IntCounterVec,
    decisions: [IntCounter; Row::ALL.len()],
    refusals: IntCounterVec,
    failovers: IntCounterVec,
    /// Requests that had headers which only peers may send.
    pub rejected_headers: IntCounter,
    /// Time that the proxy itself took for a request.
    pub own_time: Histogram,
    /// Long-running requests that are open.
    pub long_running: IntGauge,
    /// Client connections that are open.
    pub connections: IntGauge,
    /// Connections that failed before their first request.
    pub failed_handshakes: IntCounter,
    /// Connections beyond what the limit of open files allows.
    pub refused_connections: IntCounter,
    /// Certificate files.
    pub certificates: CertificateMetrics,
    /// 1 while another live proxy claims our server ID.
    pub duplicate_id: IntGauge,
    etcd_age: prometheus::Gauge,
    etcd_revision: IntGauge,
    etcd_lists: IntGauge,
    etcd_undecodable: IntGauge,
    etcd_restores: IntGauge,
    etcd_synced: IntGauge,
    peers: prometheus::IntGaugeVec,
    initialized: IntGauge,
    crippled: IntGauge,
    identity: prometheus::IntGaugeVec,
    /// Discovery documents.
    pub documents: DocumentMetrics,
    /// The identity Lease.
    pub lease: LeaseMetrics,
    /// Peers' documents.
    pub gathering: GatherMetrics,
    /// Watches and the drain.
    pub watches: WatchMetrics,
}

/// What is read when metrics are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// Time since etcd was last heard of.
    pub etcd_age: Duration,
    /// Newest revision known.
    pub etcd_revision: i64,
    /// Complete lists so far.
    pub etcd_lists: u64,
    /// Values that could not be decoded so far.
    pub etcd_undecodable: u64,
    /// Watches that found etcd restored or replaced so far.
    pub etcd_restores: u64,
    /// Everything was listed at least once.
    pub etcd_synced: bool,
    /// Peers that requests may be sent to.
    pub targets: usize,
    /// Peers with a live key that are no targets.
    pub live: usize,
    /// Known servers without a live key.
    pub absent: usize,
    /// The local apiserver is initialized.
    pub initialized: bool,
    /// A control task has panicked.
    pub crippled: bool,
}

impl Metrics {
    /// Registers everything. Fails only if two metrics have one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let decisions = counter_vec(
            &registry,
            "kube_interop_proxy_requests_total",
            "Requests by the row of the routing table that decided.",
            &["decision"],
        )?;
        let build = gauge_vec(
            &registry,
            "kube_interop_proxy_build_info",
            "Always 1; the version is a label.",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let own_time = Histogram::with_opts(
            HistogramOpts::new(
                "kube_interop_proxy_own_duration_seconds",
                "Time that the proxy itself took for a request: waiting for apiservers, clients and bodies left out.",
            )
            .buckets(vec![10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 100e-3, 1.0]),
        )?;
        register(&registry, &own_time)?;
        let peers = gauge_vec(
            &registry,
            "kube_interop_proxy_peers",
            "Other servers by state: target, live, absent.",
            &["state"],
        )?;
        let identity = gauge_vec(
            &registry,
            "apiserver_identity",
            "Always 1; the server ID is a label (KEP-1965).",
            &["id"],
        )?;
        let etcd_age = gauge(
            &registry,
            "kube_interop_proxy_etcd_state_age_seconds",
            "Time since etcd was last heard of.",
        )?;
        let lease = LeaseMetrics::new(&registry)?;
        let gauge = |name: &str, help: &str| int_gauge(&registry, name, help);
        Ok(Self {
            rerouted: counter_vec(
                &registry,
                "kubernetes_apiserver_rerouted_request_total",
                "Requests rerouted to a peer because the local apiserver cannot serve the resource, or not in the version asked for (KEP-4020).",
                &["code", "group", "version", "resource"],
            )?,
            decisions: Row::ALL.map(|row| decisions.with_label_values(&[row.name()])),
            refusals: counter_vec(
                &registry,
                "kube_interop_proxy_refusals_total",
                "Answers that the proxy gave itself, by reason.",
                &["reason"],
            )?,
            failovers: counter_vec(
                &registry,
                "kube_interop_proxy_failovers_total",
                "Times that a request went on to another server, by what was wrong with the one before.",
                &["reason"],
            )?,
            rejected_headers: counter(
                &registry,
                "kube_interop_proxy_rejected_headers_total",
                "Headers removed because only peers may send them.",
            )?,
            own_time,
            long_running: gauge(
                "kube_interop_proxy_long_running_requests",
                "Long-running requests that are open.",
            )?,
            connections: gauge(
                "kube_interop_proxy_connections",
                "Client connections that are open.",
            )?,
            failed_handshakes: counter(
                &registry,
                "kube_interop_proxy_failed_handshakes_total",
                "Connections that failed before their first request.",
            )?,
            refused_connections: counter(
                &registry,
                "kube_interop_proxy_refused_connections_total",
                "Client connections closed at once because the limit of open files allows no more.",
            )?,
            certificates: CertificateMetrics::new(&registry)?,
            duplicate_id: gauge(
                "kube_interop_proxy_duplicate_server_id",
                "1 while another live proxy claims this server ID.",
            )?,
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
            crippled: gauge(
                "kube_interop_proxy_control_panicked",
                "1 once a task that runs beside the requests has panicked: only a restart helps.",
            )?,
            identity,
            documents: DocumentMetrics::new(&registry)?,
            lease,
            gathering: GatherMetrics::new(&registry)?,
            watches: WatchMetrics::new(&registry)?,
            registry,
        })
    }

    /// This server is now known as `id`.
    pub fn identity(&self, id: &str) {
        self.identity.reset();
        self.identity.with_label_values(&[id]).set(1);
    }

    /// A request was decided.
    pub fn decided(&self, row: Row) {
        self.decisions[row as usize - 1].inc();
    }

    /// The proxy answered by itself.
    pub fn refused(&self, refusal: Refusal) {
        self.refusals.with_label_values(&[refusal.name()]).inc();
    }

    /// A request goes on to another server.
    pub fn failed_over(&self, failure: &Failure) {
        self.failovers.with_label_values(&[failure.name()]).inc();
    }

    /// A rerouted request was answered with `code`; `gvr` is a name from the snapshot.
    pub fn rerouted(&self, code: u16, gvr: Option<&Gvr>) {
        let mut digits = [0; 3];
        let [group, version, resource] =
            gvr.map_or([""; 3], |gvr| [&*gvr.group, &*gvr.version, &*gvr.resource]);
        self.rerouted
            .with_label_values(&[decimal(code, &mut digits), group, version, resource])
            .inc();
    }

    /// The Prometheus text.
    pub fn render(&self, gauges: Gauges) -> Result<String, prometheus::Error> {
        self.etcd_age.set(gauges.etcd_age.as_secs_f64());
        self.etcd_revision.set(gauges.etcd_revision);
        self.etcd_lists.set(saturating(gauges.etcd_lists));
        self.etcd_undecodable
            .set(saturating(gauges.etcd_undecodable));
        self.etcd_restores.set(saturating(gauges.etcd_restores));
        self.etcd_synced.set(gauges.etcd_synced.into());
        self.initialized.set(gauges.initialized.into());
        self.crippled.set(gauges.crippled.into());
        for (state, count) in [
            ("target", gauges.targets),
            ("live", gauges.live),
            ("absent", gauges.absent),
        ] {
            self.peers
                .with_label_values(&[state])
                .set(saturating(count as u64));
        }
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

fn saturating(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A status code's three digits, without allocating.
fn decimal(code: u16, digits: &mut [u8; 3]) -> &str {
    *digits = [code / 100 % 10, code / 10 % 10, code % 10].map(|digit| b'0' + (digit as u8));
    std::str::from_utf8(digits).unwrap_or("000")
}

/// Every metric passes here: tests read their descriptions.
pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: &C,
) -> Result<(), prometheus::Error> {
    #[cfg(test)]
    super::reference::note(collector);
    registry.register(Box::new(collector.clone()))
}

pub(super) fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(name, help)?;
    register(registry, &counter)?;
    Ok(counter)
}

pub(super) fn counter_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
    register(registry, &counter)?;
    Ok(counter)
}

pub(super) fn gauge(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<prometheus::Gauge, prometheus::Error> {
    let gauge = prometheus::Gauge::new(name, help)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

pub(super) fn int_gauge(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(name, help)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

pub(super) fn gauge_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<prometheus::IntGaugeVec, prometheus::Error> {
    let gauge = prometheus::IntGaugeVec::new(Opts::new(name, help), labels)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::GvrRef;

    #[test]
    fn the_rerouted_counter_has_the_keps_name_and_labels() {
        let metrics = Metrics::new().unwrap();
        let gvr = GvrRef {
            group: "autoscaling",
            version: "v1",
            resource: "horizontalpodautoscalers",
            subresource: "",
        };
        metrics.rerouted(200, Some(&gvr.owned()));
        let text = metrics.render(Gauges::default()).unwrap();
        let line = "kubernetes_apiserver_rerouted_request_total{code=\"200\",group=\"autoscaling\",resource=\"horizontalpodautoscalers\",version=\"v1\"} 1";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_new_identity_replaces_the_old_one() {
        let metrics = Metrics::new().unwrap();
        metrics.identity("before");
        metrics.identity("now");
        let text = metrics.render(Gauges::default()).unwrap();
        assert!(text.contains("apiserver_identity{id=\"now\"} 1"), "{text}");
        assert!(!text.contains("id=\"before\""), "{text}");
    }

    #[test]
    fn every_row_has_its_counter() {
        let metrics = Metrics::new().unwrap();
        for row in Row::ALL {
            metrics.decided(row);
        }
        let text = metrics.render(Gauges::default()).unwrap();
        for row in Row::ALL {
            let line = format!(
                "kube_interop_proxy_requests_total{{decision=\"{}\"}} 1",
                row.name()
            );
            assert!(text.contains(&line), "{text}");
        }
    }
}
