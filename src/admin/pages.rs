//! The operator's port: `/livez`, `/readyz`, `/metrics`, `/statusz`. Plain HTTP, loopback only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

use super::page;
use super::page::accept::{Form, form};
use super::page::host::is_by_address;
use super::status::Status;
use crate::relay::shared::Shared;
use crate::request::info::query_values;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Answer = (StatusCode, &'static str, String);

/// Answers on the admin port.
pub struct Pages {
    shared: Arc<Shared>,
    status: Status,
}

impl Pages {
    /// Reads from what the serving threads share.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            status: Status::new(shared.clone()),
            shared,
        }
    }

    async fn answer(&self, request: &RequestHeader) -> Answer {
        let query = request.uri.query();
        match request.uri.path() {
            "/livez" => self.livez(),
            "/readyz" => self.readyz(query_values(query, "verbose").next().is_some()),
            "/metrics" => match self.shared.metrics.render(self.status.gauges()) {
                Ok(text) => (StatusCode::OK, PROMETHEUS, text),
                Err(error) => (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    TEXT,
                    format!("{error}\n"),
                ),
            },
            "/statusz" => self.statusz(request).await,
            "/" => (
                StatusCode::OK,
                TEXT,
                "/livez\n/readyz?verbose\n/metrics\n/statusz\n/statusz?format=json\n".to_owned(),
            ),
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "404 page not found\n".to_owned(),
            ),
        }
    }

    async fn statusz(&self, request: &RequestHeader) -> Answer {
        if !is_by_address(request) {
            let text = "ask for it by an IP address or as localhost\n";
            return (StatusCode::MISDIRECTED_REQUEST, TEXT, text.to_owned());
        }
        let status = self.status.json().await;
        match form(request) {
            Form::Json => (StatusCode::OK, JSON, format!("{status:#}\n")),
            Form::Page => (StatusCode::OK, HTML, page::with(&status)),
        }
    }

    /// Alive as long as nothing has panicked that runs beside the requests: only a restart mends that.
    fn livez(&self) -> Answer {
        match self.shared.crippled.load(Ordering::Relaxed) {
            false => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            true => {
                let text = "[-]control failed: a task has panicked\nlivez check failed\n";
                (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text.to_owned())
            }
        }
    }

    /// In kube-apiserver's own form; what is missing is always named, the rest when asked for.
    fn readyz(&self, verbose: bool) -> Answer {
        let checks = self.status.checks();
        let ready = checks.iter().all(|check| check.missing.is_none());
        if ready && !verbose {
            return (StatusCode::OK, TEXT, "ok\n".to_owned());
        }
        let mut text: String = checks
            .iter()
            .map(|check| match &check.missing {
                None => format!("[+]{} ok\n", check.name),
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

#[async_trait]
impl ServeHttp for Pages {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let (status, content_type, body) = match request.method {
            Method::GET | Method::HEAD => self.answer(request).await,
            _ => (
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "only GET and HEAD\n".to_owned(),
            ),
        };
        let length = body.len();
        let body = if request.method == Method::HEAD {
            Vec::new()
        } else {
            body.into_bytes()
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
}
