//! The span of a sampled request ([`crate::otlp`]): what was asked, which servers were tried, and how it ended.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::request::Parts;

use super::recent::known;
use crate::otlp::Tracer;
use crate::otlp::context::{TRACEPARENT, TraceContext};
use crate::otlp::span::OpenSpan;
use crate::request::headers::set;

/// Goes with `traceparent`, and means nothing without it.
const TRACESTATE: &str = "tracestate";

/// An open span.
pub struct RequestSpan<'a> {
    tracer: &'a Tracer,
    /// Never contended: one task serves a request.
    state: Mutex<State>,
}

struct State {
    span: OpenSpan,
    attempts: i64,
    /// The server that was tried last.
    target: Option<SocketAddr>,
    code: Option<u16>,
}

impl<'a> RequestSpan<'a> {
    /// Begins a span if the request is sampled. `trusted`: its `traceparent` decides that. Then `header` tells the next
    /// server to continue it; otherwise its `traceparent` passes as it came. Boxed: few requests have one.
    pub fn begin(
        tracer: &'a Tracer,
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
        Some(Box::new(Self {
            tracer,
            state: Mutex::new(State {
                span,
                attempts: 0,
                target: None,
                code: None,
            }),
        }))
    }

    /// The request is sent to this server.
    pub fn attempt(&self, server: SocketAddr) {
        let mut state = self.lock();
        state.attempts += 1;
        state.target = Some(server);
        state
            .span
            .event("attempt", "server.address", &server.to_string());
    }

    /// The server of the last attempt could not answer.
    pub fn attempt_failed(&self, reason: &str) {
        self.lock().span.event("attempt failed", "reason", reason);
    }

    /// The answer begins.
    pub fn answered(&self, code: u16) {
        self.lock().code = Some(code);
    }

    /// The request has ended. `decision`, `class`: as in the metrics; `refusal`: why the proxy answered itself.
    pub fn ended(self, decision: &str, class: &str, refusal: Option<&str>) {
        let state = self.state.into_inner();
        let State {
            mut span,
            attempts,
            target,
            code,
        } = state.unwrap_or_else(PoisonError::into_inner);
        span.text("kube_interop_proxy.decision", decision);
        span.text("kube_interop_proxy.verb_class", class);
        span.number("kube_interop_proxy.attempts", attempts);
        if let Some(target) = target {
            span.text("kube_interop_proxy.target", &target.to_string());
        }
        if let Some(refusal) = refusal {
            span.text("kube_interop_proxy.refusal", refusal);
        }
        if let Some(code) = code {
            span.number("http.response.status_code", code.into());
        }
        self.tracer
            .ended(span, code.is_some_and(|code| code >= 500));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
