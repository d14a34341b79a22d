//! What operators see of requests: metrics, spans and the access log. Written by all that handles requests; nothing here
//! decides anything.
//!
//! A request is counted by decision, code and verb class, timed until its answer begins, and, if it is sampled, has a span
//! ([`crate::otlp`]): what was asked, which servers were tried, and how it ended. It is counted once: when its answer begins,
//! or at its end if there was none. Label values come from fixed lists or known state, never from a request's path. A series
//! is made when it is first needed; after that, counting takes one load from an array, and no lock.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Method, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

use crate::kube::gvr::Gvr;
use crate::metrics::{labels, metrics};
use crate::net::lock;
use crate::otlp::Tracer;
use crate::otlp::context::{self, TRACEPARENT};
use crate::relay::answer::Refusal;
use crate::relay::client::unread::UnreadMetrics;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::RequestKind;
use crate::request::caller::{Caller, ClientConnection};
use crate::request::headers::set;
use crate::request::info::{RequestInfo, Verb};
use crate::routing::decide::Row;
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
        /// Times that a request was sent to another server, by what was wrong with the previous one.
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
        let code = StatusCode::from_u16(code).unwrap_or_default();
        let [group, version, resource] =
            gvr.map_or([""; 3], |gvr| [&*gvr.group, &*gvr.version, &*gvr.resource]);
        self.rerouted
            .with_label_values(&[code.as_str(), group, version, resource])
            .inc();
    }
}

/// Goes with `traceparent`, and means nothing without it.
const TRACESTATE: &str = "tracestate";
/// Characters of a path in a span. Clients choose it, and spans wait in memory.
const LONGEST_PATH: usize = 512;

/// Buckets of the time to the first byte, in seconds. 1 and 30 are the bounds of Kubernetes' own latency objectives.
const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 30.0,
];

/// The `decision` of a request that the proxy answered before it came to the routing table.
pub const NO_DECISION: &str = "none";

labels! {
    /// Kinds of requests whose times can be compared with each other.
    pub enum VerbClass {
        /// GET, HEAD and OPTIONS of anything but a collection.
        Read = "read",
        /// GET and HEAD of a collection.
        List = "list",
        /// All other methods.
        Write = "write",
        /// Watches, followed logs, upgrades: what may stay open.
        LongRunning = "long_running",
    }
}

impl VerbClass {
    pub fn of(method: &Method, info: &RequestInfo<'_>, kind: RequestKind) -> Self {
        match *method {
            _ if kind != RequestKind::Short => VerbClass::LongRunning,
            _ if info.verb == Verb::List => VerbClass::List,
            Method::GET | Method::HEAD | Method::OPTIONS => VerbClass::Read,
            _ => VerbClass::Write,
        }
    }
}

/// The codes with a label value of their own: those of kube-apiserver and of this proxy.
const CODES: [u16; 28] = [
    101, 200, 201, 202, 204, 206, 301, 302, 304, 307, 400, 401, 403, 404, 405, 406, 409, 410, 412,
    413, 415, 422, 429, 431, 500, 502, 503, 504,
];
/// Other codes, which servers behind `proxy` may send, by their class. The first: no answer.
const OTHERS: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
const CODE_VALUES: usize = CODES.len() + OTHERS.len();
/// The rows, and no row.
const DECISIONS: usize = Row::ALL.len() + 1;

/// The index of a code in arrays; `None`: there was no answer.
fn code_index(code: Option<u16>) -> usize {
    let code = code.unwrap_or_default();
    match CODES.binary_search(&code) {
        Ok(index) => index,
        Err(_) => CODES.len() + usize::from(code / 100).min(OTHERS.len() - 1),
    }
}

fn code_value(index: usize) -> String {
    let other = || OTHERS[index - CODES.len()].to_owned();
    CODES.get(index).map_or_else(other, u16::to_string)
}

fn decision(row: Option<Row>) -> &'static str {
    row.map_or(NO_DECISION, Row::name)
}

metrics! {
    struct Families {
        /// Requests by the row of the routing table that decided first, counted when the answer begins.
        requests: IntCounterVec =
            counter_vec("kube_interop_proxy_requests_total", &["decision", "code", "verb_class"]),
        /// Time from a request's header to the first byte of its answer, apiservers included.
        first_byte: HistogramVec =
            histogram_vec("kube_interop_proxy_time_to_first_byte_seconds", &["decision", "verb_class"], &BUCKETS),
    }
}

pub struct RequestMetrics {
    families: Families,
    /// By decision, verb class and code.
    counters: Box<[OnceLock<IntCounter>]>,
    /// By decision and verb class.
    histograms: Box<[OnceLock<Histogram>]>,
}

impl RequestMetrics {
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let classes = DECISIONS * VerbClass::ALL.len();
        Ok(Self {
            families: Families::new(registry)?,
            counters: (0..classes * CODE_VALUES)
                .map(|_| OnceLock::new())
                .collect(),
            histograms: (0..classes).map(|_| OnceLock::new()).collect(),
        })
    }

    /// `code`: `None` if there was no answer.
    fn count(&self, row: Option<Row>, class: VerbClass, code: Option<u16>) {
        let code = code_index(code);
        let index = class_index(row, class) * CODE_VALUES + code;
        let Some(slot) = self.counters.get(index) else {
            return;
        };
        slot.get_or_init(|| {
            let labels = [decision(row), &code_value(code), class.name()];
            self.families.requests.with_label_values(&labels)
        })
        .inc();
    }

    fn observe(&self, row: Option<Row>, class: VerbClass, seconds: f64) {
        let Some(slot) = self.histograms.get(class_index(row, class)) else {
            return;
        };
        let labels = [decision(row), class.name()];
        slot.get_or_init(|| self.families.first_byte.with_label_values(&labels))
            .observe(seconds);
    }
}

fn class_index(row: Option<Row>, class: VerbClass) -> usize {
    row.map_or(0, |row| 1 + row as usize) * VerbClass::ALL.len() + class as usize
}

/// One request: counts it once, and keeps its span if it is sampled.
pub struct RequestMeter<'a> {
    pub started: Instant,
    metrics: &'a RequestMetrics,
    /// The row that decided first.
    pub row: Option<Row>,
    class: VerbClass,
    /// The code of the answer once it has begun; 0 before.
    code: AtomicU16,
    /// Set if the request is sampled.
    span: Option<Box<RequestSpan>>,
}

impl<'a> RequestMeter<'a> {
    pub fn new(
        metrics: &'a RequestMetrics,
        started: Instant,
        class: VerbClass,
        span: Option<Box<RequestSpan>>,
    ) -> Self {
        Self {
            started,
            metrics,
            row: None,
            class,
            code: AtomicU16::new(0),
            span,
        }
    }

    /// The request is sent to this server.
    pub fn attempt(&self, server: SocketAddr) {
        if let Some(span) = &self.span {
            let server = KeyValue::new("server.address", server.to_string());
            lock(span).add_event("attempt", vec![server]);
        }
    }

    /// That server could not answer.
    pub fn attempt_failed(&self, failure: &ExchangeFailure) {
        if let Some(span) = &self.span {
            let reason = KeyValue::new("reason", failure.name());
            lock(span).add_event("attempt failed", vec![reason]);
        }
    }

    /// The answer begins `now`. To be called before its header is written: a client that has it finds it counted.
    pub fn answer_begins(&self, code: u16, now: Instant) {
        if self.code.load(Ordering::Relaxed) == 0 {
            self.code.store(code, Ordering::Relaxed);
            self.metrics.count(self.row, self.class, Some(code));
            let seconds = (now - self.started).as_secs_f64();
            self.metrics.observe(self.row, self.class, seconds);
        }
    }

    /// The request has ended, or is a watch whose answer has begun. Its client may have gone away before the answer began.
    /// `refusal`: why the proxy answered itself. Returns the request's span, if it is sampled: it ends with the answer.
    pub fn ended(self, refusal: Option<&'static str>) -> Option<Box<RequestSpan>> {
        let code = Some(self.code.into_inner()).filter(|code| *code > 0);
        if code.is_none() {
            self.metrics.count(self.row, self.class, None);
        }
        let span = self.span?;
        let mut open = lock(&span);
        open.set_attributes([
            KeyValue::new("kube_interop_proxy.decision", decision(self.row)),
            KeyValue::new("kube_interop_proxy.verb_class", self.class.name()),
        ]);
        open.set_attributes(refusal.map(|it| KeyValue::new("kube_interop_proxy.refusal", it)));
        let status = |code| KeyValue::new("http.response.status_code", i64::from(code));
        open.set_attributes(code.map(status));
        if code >= Some(500) {
            open.set_status(Status::error(""));
        }
        drop(open);
        Some(span)
    }
}

/// The span of a request, which ends when it is dropped. The lock is never contended: one task serves a request.
pub type RequestSpan = Mutex<Span>;

/// Begins a span if the request is sampled. `trusted`: its `traceparent` decides that. Then `header` tells the next server
/// to continue it; otherwise its `traceparent` passes as it came. Boxed: few requests have one.
pub fn begin_span(
    tracer: &Tracer,
    trusted: bool,
    header: &mut Parts,
    path: &str,
) -> Option<Box<RequestSpan>> {
    let parent = context::parent(&header.headers);
    let is_root = parent.is_none();
    let method = known(&header.method);
    let mut span = tracer.sample(parent, trusted, method)?;
    let path: String = path.chars().take(LONGEST_PATH).collect();
    span.set_attribute(KeyValue::new("http.request.method", method));
    span.set_attribute(KeyValue::new("url.path", path));
    if is_root {
        header.headers.remove(TRACESTATE);
    }
    if let Some(value) = context::header(span.span_context()) {
        // Without room for it the request would be refused as too large in any case.
        let _ = set(&mut header.headers, TRACEPARENT, value);
    }
    Some(Box::new(Mutex::new(span)))
}

/// Names standard methods. Clients choose any others.
fn known(method: &Method) -> &'static str {
    let mut known = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT",
    ]
    .into_iter();
    known.find(|known| method == known).unwrap_or("other")
}

/// What the access log says of a request, besides its caller and how it ended.
pub struct AccessEntry<'a> {
    pub user: Option<HeaderValue>,
    pub decision: Option<&'static str>,
    pub refusal: Option<&'static str>,
    pub method: Method,
    pub path: Cow<'a, str>,
}

impl AccessEntry<'_> {
    /// For a watch, which ends when its request is gone.
    pub fn into_owned(self) -> AccessEntry<'static> {
        AccessEntry {
            path: self.path.into_owned().into(),
            ..self
        }
    }

    pub fn log(&self, client: &ClientConnection, caller: &Caller, result: Outcome) {
        tracing::info!(
            target: "access",
            client = ?client.address,
            caller = caller.name(),
            user = self.user.as_ref().map(tracing::field::debug),
            decision = self.decision,
            refusal = self.refusal,
            method = %self.method,
            path = &*self.path,
            ?result,
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::GvrRef;
    use crate::metrics::text;
    use crate::request::info;

    fn class(method: Method, path: &str, query: Option<&str>) -> VerbClass {
        let info = info::read(&method, path, query);
        let kind = match info.long_running {
            true => RequestKind::Long,
            false => RequestKind::Short,
        };
        VerbClass::of(&method, &info, kind)
    }

    #[test]
    fn classes_are_what_kubernetes_objectives_tell_apart() {
        let pods = "/api/v1/namespaces/a/pods";
        assert_eq!(class(Method::GET, "/version", None), VerbClass::Read);
        assert_eq!(class(Method::GET, "/apis", None), VerbClass::Read);
        assert_eq!(class(Method::HEAD, pods, None), VerbClass::List);
        assert_eq!(class(Method::GET, pods, None), VerbClass::List);
        let pod = format!("{pods}/x");
        assert_eq!(class(Method::GET, &pod, None), VerbClass::Read);
        assert_eq!(class(Method::POST, pods, None), VerbClass::Write);
        assert_eq!(class(Method::DELETE, pods, None), VerbClass::Write);
        let watch = class(Method::GET, pods, Some("watch=1"));
        assert_eq!(watch, VerbClass::LongRunning);
        let exec = class(Method::POST, &format!("{pod}/exec"), None);
        assert_eq!(exec, VerbClass::LongRunning);
    }

    #[test]
    fn every_code_has_one_value() {
        assert!(CODES.is_sorted());
        for (code, value) in [
            (Some(200), "200"),
            (Some(418), "4xx"),
            (Some(99), "none"),
            (Some(599), "5xx"),
            (Some(999), "5xx"),
            (None, "none"),
        ] {
            assert_eq!(code_value(code_index(code)), value, "{code:?}");
        }
    }

    #[test]
    fn every_series_has_its_own_place() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry).unwrap();
        let rows = Row::ALL.into_iter().map(Some).chain([None]);
        let each = rows.flat_map(|row| VerbClass::ALL.map(|class| (row, class)));
        for (row, class) in each.clone() {
            for code in [Some(101), Some(200), Some(504), Some(599), None] {
                metrics.count(row, class, code);
            }
            metrics.observe(row, class, 0.5);
        }
        let text = text(&registry).unwrap();
        for (row, class) in each {
            let (decision, class) = (decision(row), class.name());
            for code in ["101", "200", "504", "5xx", "none"] {
                let line = format!(
                    "kube_interop_proxy_requests_total{{code=\"{code}\",decision=\"{decision}\",verb_class=\"{class}\"}} 1\n"
                );
                assert!(text.contains(&line), "{line}");
            }
            let line = format!(
                "kube_interop_proxy_time_to_first_byte_seconds_count{{decision=\"{decision}\",verb_class=\"{class}\"}} 1\n"
            );
            assert!(text.contains(&line), "{line}");
        }
    }

    #[test]
    fn a_request_is_counted_once() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry).unwrap();
        let meter = |class| RequestMeter {
            row: Some(Row::Local),
            ..RequestMeter::new(&metrics, Instant::now(), class, None)
        };
        let answered = meter(VerbClass::Read);
        answered.answer_begins(200, Instant::now());
        // A watch whose first server was too new for it begins once, too.
        answered.answer_begins(410, Instant::now());
        answered.ended(None);
        meter(VerbClass::Write).ended(None);
        let counted = |class, code| {
            let labels = [Row::Local.name(), code, class];
            metrics.families.requests.with_label_values(&labels).get()
        };
        assert_eq!(counted("read", "200"), 1);
        assert_eq!(counted("read", "410"), 0);
        assert_eq!(counted("write", "none"), 1);
        let timed = |class| {
            metrics
                .families
                .first_byte
                .with_label_values(&[Row::Local.name(), class])
        };
        assert_eq!(timed("read").get_sample_count(), 1);
        assert_eq!(timed("write").get_sample_count(), 0);
    }

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
