//! Recognises answers by which an apiserver turns a request away that another server may answer:
//!
//! | answer | requests | counts |
//! |---|---|---|
//! | 429 in plain text (`--shutdown-send-retry-after`), or 503 once the shutdown delay has passed: it is shutting down | all | of the local apiserver while its `/readyz` confirms it; of a native one by its text |
//! | 429 "storage is (re)initializing", since 1.31, while it builds a watch cache | lists and watches | by its text |
//! | 500 or 504 | reads | of the local apiserver while its `/readyz` names etcd and a peer says that it is ready |
//!
//! The first is sent before kube-apiserver authenticates or executes anything, so another server can be tried whatever
//! the verb. Over HTTP/2 its `Connection: close` becomes a GOAWAY, which other requests may have caused. Only its text tells
//! it from other 429s and 503s (priority and fairness, quotas, evictions, webhooks), which are passed on. An answer that
//! passed priority and fairness names a priority level.
//!
//! A peer's proxy decides for its apiserver, but for the second: that it passes on, and the proxy that was asked first
//! tries others. Answers that come through an apiserver, from a pod or an aggregated API, turn nothing away.
//!
//! Pure: whoever asks reads the body, has the local apiserver's state confirm the verdict, and keeps the answer for its
//! client, in case no other server can be tried.

use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use super::Asking;
use super::not_found::contains;
use crate::kube::gvr::GvrRef;
use crate::request::info::Verb;
use crate::routing::decide::NoSuchResource;
use crate::routing::table::{ServerKind, Snapshot};

/// kube-apiserver's text, without the full stop that it has since 1.23.
const WORDS: &[u8] = b"The apiserver is shutting down, please try again later";
/// The message of the 503, in a `Status`.
const MESSAGE: &str = "apiserver is shutting down";
/// In the message of the 429, in any format.
const INITIALIZING: &[u8] = b"storage is (re)initializing";
/// Longer bodies are passed on.
pub const LIMIT: usize = 4096;
/// Priority and fairness sets this header.
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// Time for the body: kube-apiserver's own answer comes at once.
pub const READING: Duration = Duration::from_secs(1);
/// How long an answer waits for confirmation by `/readyz`, whose check of etcd takes 2 s.
pub const PATIENCE: Duration = Duration::from_millis(2500);

/// Why a request was turned away, as its answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The apiserver is shutting down. The local one's `/readyz` has to confirm it.
    ShutsDown,
    /// A read cannot be answered before a watch cache is built.
    Initializes,
    /// A read failed. The local apiserver's `/readyz` has to say that it lacks etcd.
    LacksEtcd,
}

/// Whether the body of an answer is worth reading.
pub fn may_be(asking: &Asking<'_>, snapshot: &Snapshot, response: &ResponseHeader) -> bool {
    // The status comes first: that of most answers rules out all three.
    let is_possible = may_shut_down(asking, response)
        || may_initialize(asking, response)
        || may_lack_etcd(asking, snapshot, response);
    is_possible && is_apiservers_own(asking, snapshot)
}

/// What an answer says with its whole body. For one that [`may_be`] of that kind.
pub fn reason(
    asking: &Asking<'_>,
    snapshot: &Snapshot,
    response: &ResponseHeader,
    body: &[u8],
) -> Option<Reason> {
    let head = *asking.method == Method::HEAD;
    if may_shut_down(asking, response) && says_shutdown(response.status, head, body) {
        Some(Reason::ShutsDown)
    } else if may_initialize(asking, response) && contains(body, INITIALIZING) {
        Some(Reason::Initializes)
    } else {
        may_lack_etcd(asking, snapshot, response).then_some(Reason::LacksEtcd)
    }
}

/// Whether nobody behind the apiserver can have given the answer.
pub(super) fn is_apiservers_own(asking: &Asking<'_>, snapshot: &Snapshot) -> bool {
    let aggregated = |gvr: GvrRef<'_>| snapshot.custom.is_aggregated(gvr.group, gvr.version);
    !asking.info.is_proxied() && !asking.info.gvr().is_some_and(aggregated)
}

fn may_shut_down(asking: &Asking<'_>, response: &ResponseHeader) -> bool {
    let is_possible = match asking.server_kind {
        ServerKind::Local => true,
        ServerKind::Native | ServerKind::Bare => asking.no_such_resource != NoSuchResource::Pass,
        ServerKind::Proxied => false,
    };
    is_possible && looks_like_shutdown(response)
}

fn may_initialize(asking: &Asking<'_>, response: &ResponseHeader) -> bool {
    response.status == StatusCode::TOO_MANY_REQUESTS
        && matches!(asking.info.verb, Verb::List | Verb::Watch)
        && !asking.for_peer
}

fn may_lack_etcd(asking: &Asking<'_>, snapshot: &Snapshot, response: &ResponseHeader) -> bool {
    matches!(
        response.status,
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::GATEWAY_TIMEOUT
    ) && asking.server_kind == ServerKind::Local
        && matches!(asking.info.verb, Verb::Get | Verb::List)
        && !asking.for_peer
        && snapshot.has_ready_target()
}

fn looks_like_shutdown(response: &ResponseHeader) -> bool {
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
fn says_shutdown(code: StatusCode, head: bool, body: &[u8]) -> bool {
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
        assert!(looks_like_shutdown(&answer(429, &[TEXT, LATER])));
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
            assert!(!looks_like_shutdown(&other), "{other:?}");
        }
    }

    #[test]
    fn the_words_are_kube_apiservers_and_nothing_else() {
        let code = StatusCode::TOO_MANY_REQUESTS;
        for words in [
            "The apiserver is shutting down, please try again later.\n",
            "The apiserver is shutting down, please try again later",
        ] {
            assert!(says_shutdown(code, false, words.as_bytes()), "{words:?}");
        }
        for words in [
            "Too many requests, please try again later.\n",
            "x: The apiserver is shutting down, please try again later.\n",
            "The apiserver is shutting down, please try again later. Or not.\n",
            "",
        ] {
            assert!(!says_shutdown(code, false, words.as_bytes()), "{words:?}");
        }
        assert!(says_shutdown(code, true, b""));
    }

    #[test]
    fn the_503_is_a_status_with_just_its_message() {
        let said = |message: &str, more: &str| {
            let body = format!(
                r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}"{more}}}"#
            );
            says_shutdown(StatusCode::SERVICE_UNAVAILABLE, false, body.as_bytes())
        };
        assert!(said(
            MESSAGE,
            r#","reason":"ServiceUnavailable","code":503"#
        ));
        assert!(!said("x: apiserver is shutting down", ""));
        assert!(!said(MESSAGE, r#","details":{"name":"x"}"#));
        assert!(looks_like_shutdown(&answer(
            503,
            &[("content-type", "application/json"), ("retry-after", "1")]
        )));
    }
}
