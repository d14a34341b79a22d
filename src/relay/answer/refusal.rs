//! Why the proxy answers itself, and the one place where that becomes an HTTP response. Pure.
//!
//! Each answer is a `metav1.Status` in the format that the client accepts, like kube-apiserver's own errors. It reveals
//! no addresses, paths or certificates.

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use pingora_http::ResponseHeader;

use super::format::StatusFormat;
use super::status::StatusObject;
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE, READY};

/// Why the proxy answers instead of an apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// KEP-3028: the client asks for an initialized apiserver, and it is not initialized.
    NotInitialized,
    /// A peer rerouted the request, and the local apiserver is not initialized.
    PeerNotInitialized,
    /// The local apiserver is shutting down and turns requests away, and no other server is left.
    Terminating,
    /// To a peer's proxy: nothing comes from the local apiserver.
    PeerFrozen,
    /// etcd was never read completely since the start.
    Unsynced,
    /// Only servers that cannot be reached serve the resource.
    Unreachable,
    /// To the document of one group version: no server that has it can be asked. Clients go on without it: those that
    /// would repeat the request ask for it before every command.
    NoDocument,
    /// A discovery document could not be merged. To ask again would not help.
    Unmerged,
    /// The connection or the request to the chosen server failed.
    Failed {
        /// A write that may have been executed. client-go repeats any request whose answer has `Retry-After`, so this
        /// one must not have it.
        maybe_executed: bool,
    },
    /// The server answered "no such resource", which is in doubt.
    DoubtfulNotFound,
    /// A peer asks whether the local apiserver knows a custom resource, and it does not.
    NotServed,
    /// An invalid client certificate, and no token.
    Unauthorized,
    /// To `/readyz`: the proxy is stopping, or the apiserver's `/readyz` is not 200.
    NotReady,
    /// To `/readyz`: it is not known whether the apiserver accepts the users that this proxy asserts.
    NotBelieved,
    /// To `/readyz`: peers cannot know yet what this server serves.
    NotPublished,
    /// A request target that Go's HTTP server would refuse.
    BadTarget,
    /// An invalid version is requested.
    BadVersion,
    /// A header that is too large, or too many large headers at the same time.
    HeaderTooLarge,
    /// An `Expect` other than `100-continue`.
    ExpectationFailed,
    /// The bytes are not an HTTP request.
    Unreadable,
}

/// What the answer to a request depends on.
#[derive(Debug, Clone)]
pub struct ResponseOptions {
    /// `X-Kubernetes-Ready`, for a client that asked.
    pub ready: Option<bool>,
    /// The request is HEAD: the answer has no body.
    pub head: bool,
    /// The request comes from a peer's proxy, which may try other servers.
    pub peer: bool,
    /// For a peer that may not know that a proxy answers ([`SERVER_ID`](crate::request::headers::SERVER_ID)).
    pub server_id: Option<HeaderValue>,
    /// The first `Accept` header.
    pub accept: Option<HeaderValue>,
}

impl ResponseOptions {
    pub fn of(
        request: &Parts,
        ready: Option<bool>,
        peer: bool,
        server_id: Option<HeaderValue>,
    ) -> Self {
        Self {
            ready,
            peer,
            server_id,
            head: request.method == Method::HEAD,
            accept: request.headers.get(ACCEPT).cloned(),
        }
    }
}

impl Refusal {
    pub const ALL: [Refusal; 21] = [
        Refusal::NotInitialized,
        Refusal::PeerNotInitialized,
        Refusal::Terminating,
        Refusal::PeerFrozen,
        Refusal::Unsynced,
        Refusal::Unreachable,
        Refusal::NoDocument,
        Refusal::Unmerged,
        Refusal::Failed {
            maybe_executed: false,
        },
        Refusal::Failed {
            maybe_executed: true,
        },
        Refusal::DoubtfulNotFound,
        Refusal::NotServed,
        Refusal::Unauthorized,
        Refusal::NotReady,
        Refusal::NotBelieved,
        Refusal::NotPublished,
        Refusal::BadTarget,
        Refusal::BadVersion,
        Refusal::HeaderTooLarge,
        Refusal::ExpectationFailed,
        Refusal::Unreadable,
    ];

    pub fn code(self) -> u16 {
        match self {
            Refusal::Unauthorized => 401,
            Refusal::BadTarget | Refusal::BadVersion | Refusal::Unreadable => 400,
            Refusal::ExpectationFailed => 417,
            Refusal::HeaderTooLarge => 431,
            _ => 503,
        }
    }

    /// Name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::NotInitialized => "not_initialized",
            Refusal::PeerNotInitialized => "peer_not_initialized",
            Refusal::Terminating => "terminating",
            Refusal::PeerFrozen => "peer_frozen",
            Refusal::Unsynced => "unsynced",
            Refusal::Unreachable => "unreachable",
            Refusal::NoDocument => "no_document",
            Refusal::Unmerged => "unmerged",
            Refusal::Failed {
                maybe_executed: false,
            } => "failed",
            Refusal::Failed {
                maybe_executed: true,
            } => "failed_maybe_executed",
            Refusal::DoubtfulNotFound => "doubtful_not_found",
            Refusal::NotServed => "not_served",
            Refusal::Unauthorized => "unauthorized",
            Refusal::NotReady => "not_ready",
            Refusal::NotBelieved => "not_believed",
            Refusal::NotPublished => "not_published",
            Refusal::BadTarget => "bad_target",
            Refusal::BadVersion => "bad_version",
            Refusal::HeaderTooLarge => "header_too_large",
            Refusal::ExpectationFailed => "expectation_failed",
            Refusal::Unreadable => "unreadable",
        }
    }

    /// Whether the request may have been executed and must not be sent again.
    pub fn forbids_repetition(self) -> bool {
        self == (Refusal::Failed {
            maybe_executed: true,
        })
    }

    pub fn message(self) -> &'static str {
        match self {
            Refusal::NotInitialized | Refusal::PeerNotInitialized => {
                "the apiserver is starting and not initialized yet"
            }
            Refusal::Terminating => "the apiserver is shutting down",
            Refusal::PeerFrozen => "the apiserver does not respond at the moment",
            Refusal::Unsynced => "the state of the cluster's apiservers is not known yet",
            Refusal::Unreachable => {
                "no apiserver that serves the requested resource can be reached at the moment"
            }
            Refusal::NoDocument => {
                "no apiserver that serves the requested group version can be reached at the moment"
            }
            Refusal::Unmerged => "the documents of the apiservers cannot be merged",
            Refusal::Failed { .. } => "Error while proxying request to destination apiserver",
            Refusal::DoubtfulNotFound | Refusal::NotServed => {
                "it is not known at the moment which apiserver serves the requested resource"
            }
            Refusal::Unauthorized => "Unauthorized",
            Refusal::NotReady => "not ready",
            Refusal::NotBelieved => "not ready: [-]requestheader failed: reason withheld",
            Refusal::NotPublished => "not ready: [-]published failed: reason withheld",
            Refusal::BadTarget => "malformed request target",
            Refusal::BadVersion => {
                "the compatibility version asked for is not one of the form major.minor"
            }
            Refusal::HeaderTooLarge => "the request's header is too large",
            Refusal::ExpectationFailed => "the header Expect is not 100-continue",
            Refusal::Unreadable => "malformed request",
        }
    }

    /// The value that tells a peer's proxy that nothing was executed: because of this resource, or for any request.
    fn not_executed(self) -> HeaderValue {
        match self {
            Refusal::DoubtfulNotFound | Refusal::NotServed => OF_RESOURCE,
            _ => HeaderValue::from_static("true"),
        }
    }

    fn reason(self) -> &'static str {
        match self.code() {
            401 => "Unauthorized",
            400 => "BadRequest",
            417 => "ExpectationFailed",
            431 => "RequestHeaderFieldsTooLarge",
            _ => "ServiceUnavailable",
        }
    }

    fn retry_after(self, seconds: u32) -> Option<u32> {
        let is_final = matches!(self, Refusal::NoDocument | Refusal::Unmerged);
        let retry = self.code() == 503 && !self.forbids_repetition() && !is_final;
        retry.then_some(seconds)
    }

    fn status(self, retry_after_seconds: u32) -> StatusObject {
        StatusObject {
            message: self.message(),
            reason: self.reason(),
            code: self.code(),
            retry_after_seconds: self.retry_after(retry_after_seconds),
        }
    }

    /// Header and body. `ready`: the value of `X-Kubernetes-Ready`, for a client that asked; `peer`: the answer is for
    /// a peer's proxy.
    pub fn response(
        self,
        retry_after_seconds: u32,
        ready: Option<bool>,
        form: StatusFormat,
        peer: bool,
    ) -> pingora_core::Result<(Box<ResponseHeader>, Bytes)> {
        let status = self.status(retry_after_seconds);
        let body = status.encode(form);
        let mut header = ResponseHeader::build_no_case(status.code, Some(6))?;
        header.insert_header(CONTENT_TYPE, form.media_type())?;
        header.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"))?;
        header.insert_header(CONTENT_LENGTH, body.len())?;
        if let Some(seconds) = status.retry_after_seconds {
            header.insert_header(RETRY_AFTER, seconds)?;
        }
        if peer && self.code() == 503 && !self.forbids_repetition() {
            header.insert_header(NOT_EXECUTED, self.not_executed())?;
        }
        if let Some(ready) = ready {
            header.insert_header(
                READY,
                HeaderValue::from_static(if ready { "true" } else { "false" }),
            )?;
        }
        Ok((Box::new(header), body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_may_have_been_executed_is_not_to_be_retried() {
        let (header, body) = Refusal::Failed {
            maybe_executed: true,
        }
        .response(5, None, StatusFormat::Json, false)
        .unwrap();
        assert_eq!(header.status, 503);
        assert!(!header.headers.contains_key(RETRY_AFTER));
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            status["message"],
            "Error while proxying request to destination apiserver"
        );
        assert!(status.get("details").is_none());
    }

    #[test]
    fn what_can_be_retried_says_when_in_header_and_status() {
        let (header, body) = Refusal::NotInitialized
            .response(7, Some(false), StatusFormat::Json, false)
            .unwrap();
        assert_eq!(header.headers[RETRY_AFTER], "7");
        assert_eq!(header.headers[READY], "false");
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&status["kind"], &status["code"]),
            (&"Status".into(), &503.into())
        );
        assert_eq!(status["reason"], "ServiceUnavailable");
        assert_eq!(status["details"]["retryAfterSeconds"], 7);
    }

    #[test]
    fn nobody_repeats_what_would_be_answered_the_same() {
        for refusal in [Refusal::NoDocument, Refusal::Unmerged] {
            let (header, body) = refusal
                .response(7, None, StatusFormat::Json, false)
                .unwrap();
            assert_eq!(header.status, 503);
            assert!(!header.headers.contains_key(RETRY_AFTER));
            let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(status.get("details").is_none(), "{status}");
        }
    }

    #[test]
    fn a_peer_is_told_whether_only_the_resource_is_concerned() {
        let said = |refusal: Refusal, peer| {
            let (header, _) = refusal.response(5, None, StatusFormat::Json, peer).unwrap();
            header.headers.get(NOT_EXECUTED).cloned()
        };
        let failed = |maybe_executed| Refusal::Failed { maybe_executed };
        for refusal in [Refusal::DoubtfulNotFound, Refusal::NotServed] {
            assert_eq!(said(refusal, true), Some(OF_RESOURCE), "{refusal:?}");
        }
        for refusal in [
            Refusal::PeerNotInitialized,
            Refusal::Terminating,
            failed(false),
        ] {
            assert_eq!(said(refusal, true).unwrap(), "true", "{refusal:?}");
            assert_eq!(said(refusal, false), None, "{refusal:?}");
        }
        assert_eq!(said(failed(true), true), None);
    }

    #[test]
    fn unauthorized_is_as_kube_apiserver_says_it() {
        let (header, body) = Refusal::Unauthorized
            .response(7, None, StatusFormat::Json, false)
            .unwrap();
        assert_eq!(header.status, 401);
        assert!(!header.headers.contains_key(RETRY_AFTER));
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&status["reason"], &status["message"]),
            (&"Unauthorized".into(), &"Unauthorized".into())
        );
    }
}
