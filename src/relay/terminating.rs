//! Recognises an apiserver that is shutting down: it answers 429 to all requests but health and metrics
//! (`--shutdown-send-retry-after`), or, once its shutdown delay has passed, 503 to short requests.
//!
//! kube-apiserver sends this answer before it authenticates or executes anything, so another server can be tried
//! whatever the verb. Over HTTP/2 its `Connection: close` becomes a GOAWAY, which other requests may have caused. Only
//! its text tells it from other 429s and 503s (priority and fairness, quotas, evictions, webhooks), which are passed
//! on. An answer that passed priority and fairness names a priority level.
//!
//! The local apiserver is believed while its `/readyz` confirms the shutdown. A peer's proxy decides for its apiserver.
//! A native apiserver is believed by its text, unless the answer may come from a pod behind it.
//!
//! The answer is kept: the client gets it if no other server can be tried.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use super::client_session::ClientSession;
use super::upload::Upload;
use super::upstream_stream::UpstreamSession;
use crate::relay::exchange::Exchange;
use crate::relay::kept_answer::KeptAnswer;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::route::ServerKind;
use crate::routing::decide::NoSuchResource;

/// kube-apiserver's text, without the full stop that it has since 1.23.
const WORDS: &[u8] = b"The apiserver is shutting down, please try again later";
/// The message of the 503, in a `Status`.
const MESSAGE: &str = "apiserver is shutting down";
/// Longer bodies are not read.
const LIMIT: usize = 256;
/// Priority and fairness sets this header.
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
const READING: Duration = Duration::from_secs(1);
/// How long the first such answer waits for confirmation by `/readyz`.
const PATIENCE: Duration = Duration::from_secs(1);

impl Exchange<'_> {
    /// Whether the body of an answer is worth reading.
    pub(super) fn may_be_terminating(&self, response: &ResponseHeader) -> bool {
        let is_possible = match self.server_kind {
            ServerKind::Local => !self.info.is_proxied(),
            ServerKind::Native => self.no_such_resource != NoSuchResource::Pass,
            ServerKind::Peer => false,
        };
        is_possible && looks_like_it(response)
    }

    /// Reads an answer that may say that the apiserver is shutting down.
    pub(super) async fn check_terminating(
        &self,
        down: &mut ClientSession,
        mut up: UpstreamSession,
        response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Outcome, ExchangeFailure> {
        // kube-apiserver's own answer comes within the timeout.
        let prefix = self.read_prefix(&mut up, LIMIT, READING).await;
        let Some(prefix) = prefix else {
            return Ok(Outcome::Broken);
        };
        let head = *method == Method::HEAD;
        let said = prefix.complete && is_said(response.status, head, &prefix.body);
        if !said || !self.is_confirmed().await {
            let passing = self.pass(down, up, response, prefix, method, upload);
            return passing.await;
        }
        self.release(up, upload).await;
        let body = prefix.body.into();
        let answer = KeptAnswer { response, body };
        Err(ExchangeFailure::Terminating(Arc::new(answer)))
    }

    async fn is_confirmed(&self) -> bool {
        match self.server_kind {
            ServerKind::Local => self.shared.local.has_turned_away(PATIENCE).await,
            ServerKind::Native => true,
            ServerKind::Peer => false,
        }
    }
}

fn looks_like_it(response: &ResponseHeader) -> bool {
    let headers = &response.headers;
    let media_type: &[u8] = match response.status {
        StatusCode::TOO_MANY_REQUESTS => b"text/plain",
        StatusCode::SERVICE_UNAVAILABLE => b"application/json",
        _ => return false,
    };
    let is_its = |value: &HeaderValue| value.as_bytes().starts_with(media_type);
    headers.get(CONTENT_TYPE).is_some_and(is_its)
        && headers.contains_key(RETRY_AFTER)
        && !headers.contains_key(PRIORITY_LEVEL)
        && !headers.contains_key(CONTENT_ENCODING)
}

/// An answer to HEAD has no body: its header decides. HEAD may be sent twice.
fn is_said(code: StatusCode, head: bool, body: &[u8]) -> bool {
    if head && body.is_empty() {
        return true;
    }
    if code == StatusCode::SERVICE_UNAVAILABLE {
        return serde_json::from_slice(body).is_ok_and(|status: serde_json::Value| {
            status["kind"] == "Status"
                && status["message"] == MESSAGE
                && status["details"].is_null()
        });
    }
    let words = body.trim_ascii_end();
    let words = words.strip_suffix(b".").unwrap_or(words);
    words == WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, headers: &[(&'static str, &str)]) -> ResponseHeader {
        let mut response = ResponseHeader::build(code, None).unwrap();
        for (name, value) in headers {
            response.insert_header(*name, *value).unwrap();
        }
        response
    }

    const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");
    const LATER: (&str, &str) = ("retry-after", "5");

    #[test]
    fn only_a_plain_text_that_no_priority_level_has_seen_is_looked_at() {
        assert!(looks_like_it(&answer(429, &[TEXT, LATER])));
        let level = ("x-kubernetes-pf-prioritylevel-uid", "x");
        let json = ("content-type", "application/json");
        for other in [
            answer(503, &[TEXT, LATER]),
            answer(429, &[TEXT]),
            answer(429, &[LATER]),
            answer(429, &[json, LATER]),
            answer(429, &[TEXT, LATER, level]),
            answer(429, &[TEXT, LATER, ("content-encoding", "gzip")]),
        ] {
            assert!(!looks_like_it(&other), "{other:?}");
        }
    }

    #[test]
    fn the_words_are_kube_apiservers_and_nothing_else() {
        let code = StatusCode::TOO_MANY_REQUESTS;
        for words in [
            "The apiserver is shutting down, please try again later.\n",
            "The apiserver is shutting down, please try again later",
        ] {
            assert!(is_said(code, false, words.as_bytes()), "{words:?}");
        }
        for words in [
            "Too many requests, please try again later.\n",
            "x: The apiserver is shutting down, please try again later.\n",
            "The apiserver is shutting down, please try again later. Or not.\n",
            "",
        ] {
            assert!(!is_said(code, false, words.as_bytes()), "{words:?}");
        }
        assert!(is_said(code, true, b""));
    }

    #[test]
    fn the_503_is_a_status_with_just_its_message() {
        let said = |message: &str, more: &str| {
            let body = format!(
                r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}"{more}}}"#
            );
            is_said(StatusCode::SERVICE_UNAVAILABLE, false, body.as_bytes())
        };
        assert!(said(
            MESSAGE,
            r#","reason":"ServiceUnavailable","code":503"#
        ));
        assert!(!said("x: apiserver is shutting down", ""));
        assert!(!said(MESSAGE, r#","details":{"name":"x"}"#));
        assert!(looks_like_it(&answer(
            503,
            &[("content-type", "application/json"), ("retry-after", "1")]
        )));
    }
}
