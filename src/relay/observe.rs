//! One request, as operators see it: counted by decision, code and verb class, timed until its answer begins, and, if it
//! is sampled, its span ([`crate::otlp`]): what was asked, which servers were tried, and how it ended.
//!
//! A request is counted once: when its answer begins, or at its end if there was none. Label values come from fixed
//! lists. A series is made when it is first needed; after that, counting takes one load of its place in an array, and
//! no lock.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use http::Method;
use http::header::HeaderValue;
use http::request::Parts;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, Registry};

use super::metrics::decimal;
use crate::metrics::{labels, metrics};
use crate::otlp::Tracer;
use crate::otlp::context::{TRACEPARENT, TraceContext};
use crate::otlp::span::OpenSpan;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::RequestKind;
use crate::request::caller::{Caller, ClientConnection};
use crate::request::headers::set;
use crate::request::info::{RequestInfo, Verb};
use crate::routing::decide::Row;

/// Goes with `traceparent`, and means nothing without it.
const TRACESTATE: &str = "tracestate";

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

/// The place of a code in arrays; `None`: there was no answer.
fn code_index(code: Option<u16>) -> usize {
    let code = code.unwrap_or_default();
    match CODES.binary_search(&code) {
        Ok(index) => index,
        Err(_) => CODES.len() + usize::from(code / 100).min(OTHERS.len() - 1),
    }
}

fn code_value(index: usize, digits: &mut [u8; 3]) -> &str {
    match CODES.get(index) {
        Some(code) => decimal(*code, digits),
        None => OTHERS[index - CODES.len()],
    }
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
            let mut digits = [0; 3];
            let labels = [decision(row), code_value(code, &mut digits), class.name()];
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
        row: Option<Row>,
        class: VerbClass,
        span: Option<Box<RequestSpan>>,
    ) -> Self {
        Self {
            started,
            metrics,
            row,
            class,
            code: AtomicU16::new(0),
            span,
        }
    }

    /// The request is sent to this server.
    pub fn attempt(&self, server: SocketAddr) {
        if let Some(span) = &self.span {
            let server = server.to_string();
            lock(&span.open).event("attempt", "server.address", &server);
        }
    }

    /// That server could not answer.
    pub fn attempt_failed(&self, failure: &ExchangeFailure) {
        if let Some(span) = &self.span {
            lock(&span.open).event("attempt failed", "reason", failure.name());
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

    /// The request has ended. Its client may have gone away before the answer began. `refusal`: why the proxy answered
    /// itself.
    pub fn ended(self, refusal: Option<&str>) {
        let code = Some(self.code.into_inner()).filter(|code| *code > 0);
        if code.is_none() {
            self.metrics.count(self.row, self.class, None);
        }
        if let Some(span) = self.span {
            span.ended(self.row, self.class, code, refusal);
        }
    }

    /// The answer to a watch has begun. Its span, if it is sampled, ends with the result.
    pub fn watch_begun(mut self) -> Option<WatchSpan> {
        let span = self.span.take().map(|span| WatchSpan {
            span,
            row: self.row,
            class: self.class,
            code: Some(self.code.load(Ordering::Relaxed)),
        });
        self.ended(None);
        span
    }
}

/// The span of a watch whose answer has begun.
pub struct WatchSpan {
    span: Box<RequestSpan>,
    row: Option<Row>,
    class: VerbClass,
    code: Option<u16>,
}

impl WatchSpan {
    pub fn ended(self) {
        self.span.ended(self.row, self.class, self.code, None);
    }
}

/// The span of a request, and where it goes at its end.
pub struct RequestSpan {
    tracer: Arc<Tracer>,
    /// Never contended: one task serves a request.
    open: Mutex<OpenSpan>,
}

impl RequestSpan {
    /// Begins a span if the request is sampled. `trusted`: its `traceparent` decides that. Then `header` tells the next
    /// server to continue it; otherwise its `traceparent` passes as it came. Boxed: few requests have one.
    pub fn begin(
        tracer: &Arc<Tracer>,
        trusted: bool,
        header: &mut Parts,
        path: &str,
    ) -> Option<Box<Self>> {
        let parent = TraceContext::of(&header.headers);
        let method = known(&header.method);
        let mut span = tracer.sample(parent, trusted, method)?;
        span.text("http.request.method", method);
        span.text("url.path", path);
        if parent.is_none() {
            header.headers.remove(TRACESTATE);
        }
        if let Some(value) = span.context.header() {
            // Without room for it the request would be refused as too large in any case.
            let _ = set(&mut header.headers, TRACEPARENT, value);
        }
        let (tracer, open) = (tracer.clone(), Mutex::new(span));
        Some(Box::new(Self { tracer, open }))
    }

    fn ended(self, row: Option<Row>, class: VerbClass, code: Option<u16>, refusal: Option<&str>) {
        let Self { tracer, open } = self;
        let mut span = open.into_inner().unwrap_or_else(PoisonError::into_inner);
        span.text("kube_interop_proxy.decision", decision(row));
        span.text("kube_interop_proxy.verb_class", class.name());
        if let Some(refusal) = refusal {
            span.text("kube_interop_proxy.refusal", refusal);
        }
        if let Some(code) = code {
            span.number("http.response.status_code", code.into());
        }
        let failed = code.is_some_and(|code| code >= 500);
        tracer.ended(span, failed);
    }
}

fn lock(span: &Mutex<OpenSpan>) -> MutexGuard<'_, OpenSpan> {
    span.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names standard methods. Clients choose any others.
fn known(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" | "CONNECT") => {
            known
        }
        _ => "other",
    }
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
            let mut digits = [0; 3];
            assert_eq!(code_value(code_index(code), &mut digits), value, "{code:?}");
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
        let row = Some(Row::Local);
        let meter = |class| RequestMeter::new(&metrics, Instant::now(), row, class, None);
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
}
