//! Metrics of requests. Label values come from known state, never from a request's path.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use super::meter::RequestMetrics;
use crate::kube::gvr::Gvr;
use crate::metrics::metrics;
use crate::relay::answer::Refusal;
use crate::relay::client::unread::UnreadMetrics;
use crate::relay::outcome::ExchangeFailure;
use crate::watches::metrics::WatchMetrics;

/// Buckets of the time that the proxy itself takes, in seconds.
const OWN_TIME: [f64; 10] = [
    10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 100e-3, 1.0,
];

metrics! {
    /// Counters of requests. Handles for the request path are made once.
    pub struct Metrics {
        /// Requests rerouted to a peer because the local apiserver cannot serve the resource, or not in the version asked
        /// for (KEP-4020); with 503 also if no server could be reached.
        rerouted: IntCounterVec =
            counter_vec("kubernetes_apiserver_rerouted_request_total", &["code", "group", "version", "resource"]),
        /// Answers that the proxy gave itself, by reason.
        refusals: [IntCounter; Refusal::ALL.len()] =
            counters("kube_interop_proxy_refusals_total", "reason", Refusal::ALL.map(Refusal::name)),
        /// Times that a request went on to another server, by what was wrong with the one before.
        failovers: IntCounterVec = counter_vec("kube_interop_proxy_failovers_total", &["reason"]),
        /// Requests that a peer could not answer: another server did (answered), or the proxy (refused).
        failed_reroutes: [IntCounter; 2] =
            counters("kube_interop_proxy_failed_reroutes_total", "result", ["refused", "answered"]),
        /// Answers to requests with X-Kubernetes-If-Ready, by the value of X-Kubernetes-Ready (KEP-3028).
        if_ready: [IntCounter; 2] =
            counters("kube_interop_proxy_if_ready_answers_total", "ready", ["false", "true"]),
        /// Requests and the time until their answers begin.
        pub requests: RequestMetrics,
        /// Short requests that were sent to an apiserver and are not answered completely.
        pub in_flight: IntGauge = gauge("kube_interop_proxy_requests_in_flight"),
        /// Headers removed because only peers may send them.
        pub rejected_headers: IntCounter = counter("kube_interop_proxy_rejected_headers_total"),
        /// Time that the proxy itself took for a request, without waiting for others.
        pub own_time: Histogram = histogram("kube_interop_proxy_own_duration_seconds", &OWN_TIME),
        /// Long-running requests that are open.
        pub long_running: IntGauge = gauge("kube_interop_proxy_long_running_requests"),
        /// Open long-running requests that began during the drain. They end last.
        pub late_long_running: IntGauge = gauge("kube_interop_proxy_drain_late_requests"),
        /// Open reads at another server because of a policy or a User-Agent: at most 100 short and 1000 long-running ones.
        pub moved: [IntGauge; 2] = gauges("kube_interop_proxy_reads_by_version", "kind", ["short", "long_running"]),
        /// Requests that did not get the version of a policy or a User-Agent: too many reads are there (load), or no
        /// server of it is ready (not_ready).
        pub class_left: [IntCounter; 2] =
            counters("kube_interop_proxy_version_class_left_total", "reason", ["load", "not_ready"]),
        /// What clients leave unread.
        pub unread: UnreadMetrics,
        /// Watches and the drain.
        pub watches: WatchMetrics,
    }
}

impl Metrics {
    /// An answer with this `X-Kubernetes-Ready` begins.
    pub fn ready_answered(&self, ready: bool) {
        self.if_ready[usize::from(ready)].inc();
    }

    /// A peer could not answer. `answered`: another server did.
    pub fn failed_reroute(&self, answered: bool) {
        self.failed_reroutes[usize::from(answered)].inc();
    }

    /// The proxy answered by itself.
    pub fn refused(&self, refusal: Refusal) {
        self.refusals[refusal as usize].inc();
    }

    /// A request goes on to another server. `custom`: it is about a custom resource.
    pub fn failed_over(&self, failure: &ExchangeFailure, custom: bool) {
        let reason = match custom && failure.is_no_such_resource() {
            true => "no_such_resource",
            false => failure.name(),
        };
        self.failovers.with_label_values(&[reason]).inc();
    }

    /// The client of a request that was to be rerouted got `code`; `gvr` is a name from the snapshot.
    pub fn rerouted(&self, code: u16, gvr: Option<&Gvr>) {
        let mut digits = [0; 3];
        let [group, version, resource] =
            gvr.map_or([""; 3], |gvr| [&*gvr.group, &*gvr.version, &*gvr.resource]);
        self.rerouted
            .with_label_values(&[decimal(code, &mut digits), group, version, resource])
            .inc();
    }
}

/// A status code's three digits, without allocating.
pub(super) fn decimal(code: u16, digits: &mut [u8; 3]) -> &str {
    *digits = [code / 100 % 10, code / 10 % 10, code % 10].map(|digit| b'0' + (digit as u8));
    std::str::from_utf8(digits).unwrap_or("000")
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::kube::gvr::GvrRef;
    use crate::metrics::text;

    #[test]
    fn the_rerouted_counter_has_the_keps_name_and_labels() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        let gvr = GvrRef {
            group: "autoscaling",
            version: "v1",
            resource: "horizontalpodautoscalers",
            subresource: "",
        };
        metrics.rerouted(200, Some(&gvr.owned()));
        let text = text(&registry).unwrap();
        let line = "kubernetes_apiserver_rerouted_request_total{code=\"200\",group=\"autoscaling\",resource=\"horizontalpodautoscalers\",version=\"v1\"} 1";
        assert!(text.contains(line), "{text}");
    }
}
