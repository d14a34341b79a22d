//! The operator's port: `/livez`, `/readyz`, `/metrics`, `/statusz`. Plain HTTP, loopback only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

use prometheus::Registry;

use super::metrics::Gauges;
use super::page;
use super::page::accept::{StatusFormat, preferred_format};
use super::page::host::is_by_address;
use super::status::StatusReader;
use crate::metrics;
use crate::publish::metrics::LeaseMetrics;
use crate::relay::shared::Shared;
use crate::reload::metrics::ReloadMetrics;
use crate::request::info::query_values;
use crate::tls::metrics::CertificateMetrics;

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Status, content type, body.
pub(super) type AdminResponse = (StatusCode, &'static str, String);

/// Whether `/readyz` says why a check fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasons {
    Told,
    /// As kube-apiserver does it: anyone may ask.
    Withheld,
}

/// Responds to requests on the admin port.
pub struct Pages {
    shared: Arc<Shared>,
    status: StatusReader,
    registry: Registry,
    gauges: Gauges,
}

impl Pages {
    pub fn new(
        shared: Arc<Shared>,
        registry: Registry,
        certificates: Arc<CertificateMetrics>,
        reload: Arc<ReloadMetrics>,
        lease: LeaseMetrics,
    ) -> Result<Self, prometheus::Error> {
        Ok(Self {
            status: StatusReader::new(shared.clone(), certificates, reload, lease),
            shared,
            gauges: Gauges::new(&registry)?,
            registry,
        })
    }

    async fn answer(&self, request: &RequestHeader) -> AdminResponse {
        let query = request.uri.query();
        match request.uri.path() {
            "/livez" => self.livez(),
            "/readyz" => self.readyz(query, Reasons::Told),
            "/metrics" => self.metrics(),
            "/statusz" => self.statusz(request).await,
            "/" => (
                StatusCode::OK,
                TEXT,
                "/livez\n/readyz?verbose\n/metrics\n/statusz\n/statusz?format=json\n".to_owned(),
            ),
            _ => not_found(),
        }
    }

    pub(super) fn metrics(&self) -> AdminResponse {
        let checks = self.status.checks();
        self.gauges.set(&self.shared, &checks);
        match metrics::text(&self.registry) {
            Ok(text) => (StatusCode::OK, PROMETHEUS, text),
            Err(error) => internal_error(error),
        }
    }

    async fn statusz(&self, request: &RequestHeader) -> AdminResponse {
        if !is_by_address(request) {
            let text = "ask for it by an IP address or as localhost\n";
            return (StatusCode::MISDIRECTED_REQUEST, TEXT, text.to_owned());
        }
        let status = self.status.document().await;
        let (content_type, text) = match preferred_format(request) {
            StatusFormat::Json => (JSON, serde_json::to_string_pretty(&status)),
            StatusFormat::Page => (HTML, page::with(&status)),
        };
        match text {
            Ok(text) if content_type == JSON => (StatusCode::OK, JSON, text + "\n"),
            Ok(text) => (StatusCode::OK, content_type, text),
            Err(error) => internal_error(error),
        }
    }

    /// 500 once a background task has panicked: only a restart helps.
    pub(super) fn livez(&self) -> AdminResponse {
        match self.shared.control_panicked.load(Ordering::Relaxed) {
            false => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            true => {
                let text = "[-]control failed: a task has panicked\nlivez check failed\n";
                (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text.to_owned())
            }
        }
    }

    /// The same text as kube-apiserver's `/readyz`: failed checks are always named, all checks with `?verbose`.
    pub(super) fn readyz(&self, query: Option<&str>, reasons: Reasons) -> AdminResponse {
        let verbose = query_values(query, "verbose").next().is_some();
        let checks = self.status.checks();
        let ready = checks.iter().all(|check| check.missing.is_none());
        if ready && !verbose {
            return (StatusCode::OK, TEXT, "ok\n".to_owned());
        }
        let mut text: String = checks
            .iter()
            .map(|check| match &check.missing {
                None => format!("[+]{} ok\n", check.name),
                Some(_) if reasons == Reasons::Withheld => {
                    format!("[-]{} failed: reason withheld\n", check.name)
                }
                Some(missing) => format!("[-]{} failed: {missing}\n", check.name),
            })
            .collect();
        text.push_str(if ready {
            "readyz check passed\n"
        } else {
            "readyz check failed\n"
        });
        (
            if ready {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            },
            TEXT,
            text,
        )
    }
}

fn internal_error(error: impl std::fmt::Display) -> AdminResponse {
    let text = format!("{error}\n");
    (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text)
}

pub(super) fn not_found() -> AdminResponse {
    let text = "404 page not found\n".to_owned();
    (StatusCode::NOT_FOUND, TEXT, text)
}

/// The whole response to a request with this method; `answer` is asked if it is a GET or HEAD.
pub(super) async fn respond(
    method: &Method,
    answer: impl AsyncFnOnce() -> AdminResponse,
) -> Response<Vec<u8>> {
    let (status, content_type, body) = match *method {
        Method::GET | Method::HEAD => answer().await,
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET and HEAD\n".to_owned(),
        ),
    };
    let length = body.len();
    let body = match *method {
        Method::HEAD => Vec::new(),
        _ => body.into_bytes(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page::protect(headers);
    response
}

#[async_trait]
impl ServeHttp for Pages {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        respond(&request.method, async || self.answer(request).await).await
    }
}
