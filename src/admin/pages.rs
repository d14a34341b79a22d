//! The operator's port: `/livez`, `/readyz`, `/metrics`, `/statusz`. Plain HTTP, loopback only.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::ACCEPT;
use http::{StatusCode, request};
use prometheus::Registry;

use super::metrics::Gauges;
use super::page;
use super::page::host::is_by_address;
use crate::kube::media_type;
use crate::metrics;
use crate::publish::metrics::IdentityMetrics;
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

/// Responds to requests on the admin port; `status` reads what `/statusz` and `/readyz` say.
pub struct Pages {
    pub shared: Arc<Shared>,
    pub certificates: Arc<CertificateMetrics>,
    pub reload: Arc<ReloadMetrics>,
    pub identity: IdentityMetrics,
    pub gauges: Gauges,
    pub registry: Registry,
}

impl Pages {
    pub(super) async fn answer(&self, request: request::Parts) -> AdminResponse {
        let query = request.uri.query();
        match request.uri.path() {
            "/livez" => self.livez(),
            "/readyz" => self.readyz(query, None),
            "/metrics" => self.metrics(),
            "/statusz" => self.statusz(&request).await,
            "/" => text(
                StatusCode::OK,
                "/livez\n/readyz?verbose\n/metrics\n/statusz\n/statusz?format=json",
            ),
            _ => not_found(),
        }
    }

    pub(super) fn metrics(&self) -> AdminResponse {
        self.gauges.set(&self.shared, &self.checks());
        match metrics::text(&self.registry) {
            Ok(text) => (StatusCode::OK, PROMETHEUS, text),
            Err(error) => internal_error(error),
        }
    }

    async fn statusz(&self, request: &request::Parts) -> AdminResponse {
        if !is_by_address(request) {
            let why = "ask for it by an IP address or as localhost";
            return text(StatusCode::MISDIRECTED_REQUEST, why);
        }
        let status = self.document().await;
        let (content_type, written) = match prefers_json(request) {
            true => (JSON, serde_json::to_string_pretty(&status)),
            false => (HTML, page::with(&status)),
        };
        match written {
            Ok(text) => (StatusCode::OK, content_type, text + "\n"),
            Err(error) => internal_error(error),
        }
    }

    /// 500 once a background task has panicked: only a restart helps.
    pub(super) fn livez(&self) -> AdminResponse {
        match self.shared.control_panicked.load(Ordering::Relaxed) {
            false => text(StatusCode::OK, "ok"),
            true => internal_error("[-]control failed: a task has panicked\nlivez check failed"),
        }
    }

    /// Text like that of kube-apiserver's `/readyz`: failed checks are always named, all checks with `?verbose`.
    /// `instead`: what is said instead of why a check fails.
    pub(super) fn readyz(&self, query: Option<&str>, instead: Option<&str>) -> AdminResponse {
        let verbose = query_values(query, "verbose").next().is_some();
        let checks = self.checks();
        let ready = checks.iter().all(|check| check.missing.is_none());
        if ready && !verbose {
            return text(StatusCode::OK, "ok");
        }
        let lines = checks.iter().map(|check| match &check.missing {
            None => format!("[+]{} ok\n", check.name),
            Some(why) => format!("[-]{} failed: {}\n", check.name, instead.unwrap_or(why)),
        });
        let (status, end) = match ready {
            true => (StatusCode::OK, "readyz check passed\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed\n"),
        };
        (status, TEXT, lines.collect::<String>() + end)
    }
}

/// A response of some words.
pub(super) fn text(status: StatusCode, text: impl Display) -> AdminResponse {
    (status, TEXT, format!("{text}\n"))
}

fn internal_error(error: impl Display) -> AdminResponse {
    text(StatusCode::INTERNAL_SERVER_ERROR, error)
}

pub(super) fn not_found() -> AdminResponse {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

/// `?format=` decides; else `Accept`, and in doubt it is the page.
fn prefers_json(request: &request::Parts) -> bool {
    let format = query_values(request.uri.query(), "format").next();
    match format.as_deref() {
        Some("json") => return true,
        Some("html") => return false,
        _ => {}
    }
    let clauses = media_type::accepted(request.headers.get(ACCEPT));
    let mut preferred = clauses.iter().map(|clause| (clause.kind, clause.sub));
    let known = preferred.find_map(|media_type| match media_type {
        ("application", "json" | "*") => Some(true),
        ("text", "html" | "*") | ("*", "*") => Some(false),
        _ => None,
    });
    known.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn is_json(path: &str, accept: &str) -> bool {
        let request = Request::get(path).header(ACCEPT, accept).body(()).unwrap();
        prefers_json(&request.into_parts().0)
    }

    #[test]
    fn accept_says_what_is_preferred_and_in_doubt_it_is_the_page() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            (browser, false),
            ("nonsense", false),
            ("application/json", true),
            ("application/json, */*", true),
            ("application/json, text/plain, */*", true),
            ("application/*", true),
            ("application/json;q=0.5, text/html;q=0.9", false),
            ("application/json; q=0.9, text/html; q=0.5", true),
        ] {
            assert_eq!(is_json("/statusz", accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn the_query_decides_whatever_is_accepted() {
        assert!(is_json("/statusz?format=json", "text/html"));
        assert!(!is_json("/statusz?format=html", "application/json"));
        assert!(is_json("/statusz?format=xml", "application/json"));
    }
}
