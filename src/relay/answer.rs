//! Answers that the proxy gives itself: the one place where a refusal becomes an HTTP response.
//!
//! Each is a `metav1.Status` in the form that the client accepts, as kube-apiserver's own errors are, and says nothing of
//! the inside: no address, no path, no certificate.

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use pingora_core::protocols::http::ServerSession;
use pingora_http::{RequestHeader, ResponseHeader};

use super::accept::Form;
use super::status::Status;
use crate::request::headers::{NOT_EXECUTED, READY};

/// Why the proxy answers instead of an apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// KEP-3028: asked to answer only when initialized, and it is not.
    NotInitialized,
    /// Rerouted here, and the apiserver here is not initialized.
    PeerNotInitialized,
    /// etcd's state was never complete since start.
    Unsynced,
    /// Only servers that cannot be reached now serve the resource.
    Unreachable,
    /// The connection or the request to the chosen server failed. `executed`: a write that may have been carried out.
    Failed {
        /// client-go repeats any verb whose answer carries `Retry-After`: a write that may have been done must not.
        maybe_executed: bool,
    },
    /// The server asked says "no such resource", which is not known to be true.
    DoubtfulNotFound,
    /// A client certificate that proves nothing, and no token.
    Unauthorized,
    /// The proxy is stopping, or the apiserver's `/readyz` is not 200: asked by a load balancer.
    NotReady,
    /// It is not known that the apiserver takes this proxy's word about users: asked by a load balancer.
    NotBelieved,
    /// A request target that Go's HTTP server would refuse.
    BadTarget,
    /// A version asked for that is none.
    BadVersion,
    /// More header fields than a peer's proxy would take.
    HeaderTooLarge,
    /// What came cannot be read as a request.
    Unreadable,
}

/// How a client wants to be answered.
#[derive(Debug, Clone)]
pub struct Manner {
    /// `X-Kubernetes-Ready`, for a client that asked.
    pub tell: Option<bool>,
    /// The request is HEAD: an answer has no body.
    pub head: bool,
    /// It is told to a peer's proxy, which may ask others.
    pub peer: bool,
    /// The first `Accept` header.
    pub accept: Option<HeaderValue>,
}

impl Manner {
    /// As `request` wants it.
    pub fn of(request: &RequestHeader, tell: Option<bool>, peer: bool) -> Self {
        Self {
            tell,
            peer,
            head: request.method == Method::HEAD,
            accept: request.headers.get(ACCEPT).cloned(),
        }
    }
}

impl Refusal {
    /// HTTP status code.
    pub fn code(self) -> u16 {
        match self {
            Refusal::Unauthorized => 401,
            Refusal::BadTarget | Refusal::BadVersion | Refusal::Unreadable => 400,
            Refusal::HeaderTooLarge => 431,
            _ => 503,
        }
    }

    /// Name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::NotInitialized => "not_initialized",
            Refusal::PeerNotInitialized => "peer_not_initialized",
            Refusal::Unsynced => "unsynced",
            Refusal::Unreachable => "unreachable",
            Refusal::Failed {
                maybe_executed: false,
            } => "failed",
            Refusal::Failed {
                maybe_executed: true,
            } => "failed_maybe_executed",
            Refusal::DoubtfulNotFound => "doubtful_not_found",
            Refusal::Unauthorized => "unauthorized",
            Refusal::NotReady => "not_ready",
            Refusal::NotBelieved => "not_believed",
            Refusal::BadTarget => "bad_target",
            Refusal::BadVersion => "bad_version",
            Refusal::HeaderTooLarge => "header_too_large",
            Refusal::Unreadable => "unreadable",
        }
    }

    /// Whether the request may have been executed, and must not be sent again.
    pub fn forbids_repetition(self) -> bool {
        self == (Refusal::Failed {
            maybe_executed: true,
        })
    }

    /// What the client is told.
    pub fn message(self) -> &'static str {
        match self {
            Refusal::NotInitialized | Refusal::PeerNotInitialized => {
                "the apiserver is starting and not initialized yet"
            }
            Refusal::Unsynced => "the state of the cluster's apiservers is not known yet",
            Refusal::Unreachable => {
                "no apiserver that serves the requested resource can be reached at the moment"
            }
            Refusal::Failed { .. } => "Error while proxying request to destination apiserver",
            Refusal::DoubtfulNotFound => {
                "it is not known at the moment which apiserver serves the requested resource"
            }
            Refusal::Unauthorized => "Unauthorized",
            Refusal::NotReady => "not ready",
            Refusal::NotBelieved => "not ready: [-]requestheader failed: reason withheld",
            Refusal::BadTarget => "malformed request target",
            Refusal::BadVersion => {
                "the compatibility version asked for is not one of the form major.minor"
            }
            Refusal::HeaderTooLarge => "the request's header is too large",
            Refusal::Unreadable => "malformed request",
        }
    }

    fn reason(self) -> &'static str {
        match self.code() {
            401 => "Unauthorized",
            400 => "BadRequest",
            431 => "RequestHeaderFieldsTooLarge",
            _ => "ServiceUnavailable",
        }
    }

    fn retry_after(self, seconds: u32) -> Option<u32> {
        let retry = self.code() == 503 && !self.forbids_repetition();
        retry.then_some(seconds)
    }

    fn status(self, retry_after_seconds: u32) -> Status {
        Status {
            message: self.message(),
            reason: self.reason(),
            code: self.code(),
            retry_after_seconds: self.retry_after(retry_after_seconds),
        }
    }

    /// Header and body; `ready`: the value of `X-Kubernetes-Ready`, for a client that asked; `peer`: told to a peer's
    /// proxy, which may ask others.
    pub fn response(
        self,
        retry_after_seconds: u32,
        ready: Option<bool>,
        form: Form,
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
            header.insert_header(NOT_EXECUTED, HeaderValue::from_static("true"))?;
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

/// Refuses a request; its session may take another one afterwards.
pub async fn refuse(
    down: &mut ServerSession,
    refusal: Refusal,
    retry_after_seconds: u32,
    manner: &Manner,
) -> pingora_core::Result<()> {
    let form = Form::accepted(manner.accept.as_ref());
    // An apiserver that went down meanwhile is not what the client was promised.
    let tell = manner
        .tell
        .map(|tell| tell && refusal != Refusal::NotInitialized);
    let (header, body) = refusal.response(retry_after_seconds, tell, form, manner.peer)?;
    if let ServerSession::H2(session) = down
        && manner.head
    {
        return session.write_response_header(header, true);
    }
    down.write_response_header(header).await?;
    if !manner.head {
        down.write_response_body(body, true).await?;
    }
    Ok(())
}

/// Refuses what could not be read, as far as anybody listens; the connection is to be closed.
pub async fn refuse_unreadable(down: &mut ServerSession) -> pingora_core::Result<()> {
    let (header, body) = Refusal::Unreadable.response(0, None, Form::Json, false)?;
    down.write_error_response(*header, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_may_have_been_executed_is_not_to_be_retried() {
        let (header, body) = Refusal::Failed {
            maybe_executed: true,
        }
        .response(5, None, Form::Json, false)
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
            .response(7, Some(false), Form::Json, false)
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
    fn unauthorized_is_as_kube_apiserver_says_it() {
        let (header, body) = Refusal::Unauthorized
            .response(7, None, Form::Json, false)
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
