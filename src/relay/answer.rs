//! The proxy's own answers: why it answers itself, and the one place where that becomes an HTTP response. Pure.
//!
//! Each answer is a `metav1.Status` in the format that the client accepts, byte for byte as kube-apiserver writes it. It
//! reveals no addresses, paths or certificates. The format is negotiated as kube-apiserver does for its errors: it has JSON,
//! YAML and protobuf, in this order of preference. A client that prefers YAML gets JSON, which is valid YAML. If the client
//! accepts no supported format, it gets JSON, too.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use k8s_pb::apimachinery::pkg::apis::meta::v1 as protobuf;
use pingora_http::ResponseHeader;

use crate::kube::envelope;
use crate::kube::media_type::{self, AcceptClause, trim};
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE, READY};
/// A format of a `Status` is one of events.
pub use crate::watches::frames::FrameFormat as StatusFormat;

/// Each refusal with its status code, its name for metrics and logs, and its message.
macro_rules! refusals {
    ($($(#[doc = $why:literal])+ $refusal:ident = $code:literal, $name:literal, $message:literal;)+) => {
        /// Why the proxy answers instead of an apiserver.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[doc = $why])+ $refusal,)+
        }

        impl Refusal {
            pub const ALL: [Refusal; [$($name),+].len()] = [$(Refusal::$refusal),+];

            pub fn code(self) -> u16 {
                [$($code),+][self as usize]
            }

            /// Name for metrics and logs.
            pub fn name(self) -> &'static str {
                [$($name),+][self as usize]
            }

            pub fn message(self) -> &'static str {
                [$($message),+][self as usize]
            }
        }
    };
}

refusals! {
    /// KEP-3028: the client asks for an initialized apiserver, and it is not initialized.
    NotInitialized = 503, "not_initialized", "the apiserver is starting and not initialized yet";
    /// A peer rerouted the request, and the local apiserver is not initialized.
    PeerNotInitialized = 503, "peer_not_initialized", "the apiserver is starting and not initialized yet";
    /// The local apiserver is shutting down and turns requests away, and no other server is left.
    Terminating = 503, "terminating", "the apiserver is shutting down";
    /// To a peer's proxy: nothing comes from the local apiserver.
    PeerFrozen = 503, "peer_frozen", "the apiserver does not respond at the moment";
    /// etcd was never read completely since the start.
    Unsynced = 503, "unsynced", "the state of the cluster's apiservers is not known yet";
    /// Only servers that cannot be reached serve the resource.
    Unreachable = 503, "unreachable",
        "no apiserver that serves the requested resource can be reached at the moment";
    /// To the document of one group version: no server that has it can be asked. Clients go on without it: those that
    /// would repeat the request ask for it before every command.
    NoDocument = 503, "no_document",
        "no apiserver that serves the requested group version can be reached at the moment";
    /// A discovery document could not be merged. To ask again would not help.
    Unmerged = 503, "unmerged", "the documents of the apiservers cannot be merged";
    /// The connection or the request to the chosen server failed.
    Failed = 503, "failed", "Error while proxying request to destination apiserver";
    /// So did that of a write, which may have been executed. client-go repeats any request whose answer has `Retry-After`, so
    /// this one must not have it.
    FailedMaybeExecuted = 503, "failed_maybe_executed", "Error while proxying request to destination apiserver";
    /// The server answered "no such resource", which is in doubt.
    DoubtfulNotFound = 503, "doubtful_not_found",
        "it is not known at the moment which apiserver serves the requested resource";
    /// A peer asks whether the local apiserver knows a custom resource, and it does not.
    NotServed = 503, "not_served", "it is not known at the moment which apiserver serves the requested resource";
    /// To a watch that ends: its client may still have what etcd has lost.
    HistoryLost = 410, "history_lost", "etcd was restored or replaced: the history of this watch is lost";
    /// An invalid client certificate, and no token.
    Unauthorized = 401, "unauthorized", "Unauthorized";
    /// To `/readyz`: the proxy is stopping, or the apiserver's `/readyz` is not 200.
    NotReady = 503, "not_ready", "not ready";
    /// To `/readyz`: the apiserver rejects this proxy's front-proxy credentials, or was not asked yet.
    CredentialsRejected = 503, "credentials_rejected",
        "not ready: [-]requestheader failed: reason withheld";
    /// To `/readyz`: peers cannot know yet what this server serves.
    NotPublished = 503, "not_published", "not ready: [-]published failed: reason withheld";
    /// A request target that Go's HTTP server would refuse.
    BadTarget = 400, "bad_target", "malformed request target";
    /// An invalid version is requested.
    BadVersion = 400, "bad_version", "the compatibility version asked for is not one of the form major.minor";
    /// A header that is too large, or too many large headers at the same time.
    HeaderTooLarge = 431, "header_too_large", "the request's header is too large";
    /// An `Expect` other than `100-continue`.
    ExpectationFailed = 417, "expectation_failed", "the header Expect is not 100-continue";
    /// The bytes are not an HTTP request.
    Unreadable = 400, "unreadable", "malformed request";
}

impl Refusal {
    /// `seconds`: 0 for a client that is not to wait.
    fn retry_after(self, seconds: u32) -> Option<u32> {
        let is_final = matches!(
            self,
            Refusal::NoDocument | Refusal::Unmerged | Refusal::FailedMaybeExecuted
        );
        (self.code() == 503 && !is_final && seconds > 0).then_some(seconds)
    }

    /// What tells a peer's proxy that nothing was executed: because of this resource, or for any request.
    fn not_executed(self) -> Option<HeaderValue> {
        match self {
            Refusal::FailedMaybeExecuted => None,
            Refusal::DoubtfulNotFound | Refusal::NotServed => Some(OF_RESOURCE),
            _ => (self.code() == 503).then_some(HeaderValue::from_static("true")),
        }
    }

    /// Header and body. `retry_after_seconds`: 0 for a client that is not to wait; `ready`: the value of `X-Kubernetes-Ready`, for a client that asked; `peer`: the answer is for
    /// a peer's proxy.
    pub fn response(
        self,
        retry_after_seconds: u32,
        ready: Option<bool>,
        format: StatusFormat,
        peer: bool,
    ) -> pingora_core::Result<(Box<ResponseHeader>, Bytes)> {
        let retry_after = self.retry_after(retry_after_seconds);
        let body = self.body(retry_after, format);
        let mut header = ResponseHeader::build_no_case(self.code(), Some(6))?;
        header.insert_header(CONTENT_TYPE, format.media_type())?;
        header.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"))?;
        header.insert_header(CONTENT_LENGTH, body.len())?;
        if let Some(seconds) = retry_after {
            header.insert_header(RETRY_AFTER, seconds)?;
        }
        if let Some(value) = self.not_executed().filter(|_| peer) {
            header.insert_header(NOT_EXECUTED, value)?;
        }
        if let Some(ready) = ready {
            header.insert_header(READY, ready.to_string())?;
        }
        Ok((Box::new(header), body))
    }

    /// The `Status`.
    pub fn body(self, retry_after: Option<u32>, format: StatusFormat) -> Bytes {
        match format {
            StatusFormat::Json => self.json(retry_after),
            StatusFormat::Protobuf => self.protobuf(retry_after),
        }
    }

    /// The status code's own text, in one word; of a watch that is too old kube-apiserver has another one.
    fn reason(self) -> String {
        if self == Refusal::HistoryLost {
            return "Expired".to_owned();
        }
        let status = StatusCode::from_u16(self.code()).unwrap_or_default();
        let text = status.canonical_reason().unwrap_or_default();
        text.replace(' ', "")
    }

    /// Nothing in it needs to be escaped.
    fn json(self, retry_after: Option<u32>) -> Bytes {
        let (message, reason, code) = (self.message(), self.reason(), self.code());
        let details = |seconds| format!(r#""details":{{"retryAfterSeconds":{seconds}}},"#);
        let details = retry_after.map(details).unwrap_or_default();
        let body = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","reason":"{reason}",{details}"code":{code}}}"#
        );
        (body + "\n").into()
    }

    /// Go writes empty fields, too.
    fn protobuf(self, retry_after: Option<u32>) -> Bytes {
        let empty = || Some(String::new());
        let details = |seconds| protobuf::StatusDetails {
            name: empty(),
            group: empty(),
            kind: empty(),
            uid: empty(),
            causes: Vec::new(),
            retry_after_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        };
        let status = protobuf::Status {
            metadata: Some(protobuf::ListMeta {
                self_link: empty(),
                resource_version: empty(),
                r#continue: empty(),
                remaining_item_count: None,
            }),
            status: Some("Failure".to_owned()),
            message: Some(self.message().to_owned()),
            reason: Some(self.reason()),
            details: retry_after.map(details),
            code: Some(self.code().into()),
        };
        envelope::wrap_object("v1", "Status", &status).into()
    }
}

impl StatusFormat {
    /// `accept`: the first `Accept` header of the request; kube-apiserver reads no other.
    pub fn accepted(accept: Option<&HeaderValue>) -> Self {
        let chosen = media_type::accepted(accept).iter().find_map(format);
        chosen.unwrap_or(StatusFormat::Json)
    }

    /// For `Content-Type`.
    pub fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            StatusFormat::Json => media_type::JSON,
            StatusFormat::Protobuf => media_type::PROTOBUF,
        })
    }
}

/// Whether discovery that came as `content_type` was asked for without what peers have (`profile=nopeer`): by the first
/// clause that it answers.
pub fn is_for_one_server(accept: Option<&HeaderValue>, content_type: &str) -> bool {
    let Some(given) = AcceptClause::read(content_type) else {
        return false;
    };
    let clauses = media_type::accepted(accept);
    let answered = clauses.iter().find(|clause| clause.is_answered_by(&given));
    answered.is_some_and(|clause| clause.value("profile") == "nopeer")
}

/// The format that answers an `Accept` clause, if there is one.
fn format(clause: &AcceptClause<'_>) -> Option<StatusFormat> {
    // A Status is no table, and no object of another version.
    let fits = clause.parameters().all(|(name, value)| match name {
        "as" | "g" | "v" => false,
        "stream" => matches!(trim(value), "" | "watch"),
        "sv" => trim(value).is_empty(),
        _ => true,
    });
    match (clause.kind, clause.sub) {
        _ if !fits => None,
        ("*", "*") | ("application", "*" | "json" | "yaml") => Some(StatusFormat::Json),
        ("application", "vnd.kubernetes.protobuf") => Some(StatusFormat::Protobuf),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_write_that_may_have_been_executed_is_not_to_be_retried() {
        let (header, body) = Refusal::FailedMaybeExecuted
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
        for refusal in [Refusal::DoubtfulNotFound, Refusal::NotServed] {
            assert_eq!(said(refusal, true), Some(OF_RESOURCE), "{refusal:?}");
        }
        for refusal in [
            Refusal::PeerNotInitialized,
            Refusal::Terminating,
            Refusal::Failed,
        ] {
            assert_eq!(said(refusal, true).unwrap(), "true", "{refusal:?}");
            assert_eq!(said(refusal, false), None, "{refusal:?}");
        }
        assert_eq!(said(Refusal::FailedMaybeExecuted, true), None);
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

    #[test]
    fn json_is_written_as_go_writes_it() {
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
            r#""message":"the apiserver is shutting down","reason":"ServiceUnavailable","#,
            r#""details":{"retryAfterSeconds":7},"code":503}"#,
            "\n"
        );
        assert_eq!(Refusal::Terminating.json(Some(7)), expected);
        for refusal in Refusal::ALL {
            let status: serde_json::Value = serde_json::from_slice(&refusal.json(None)).unwrap();
            assert_eq!(status["message"], refusal.message());
        }
    }

    #[test]
    fn reasons_are_those_of_kubernetes() {
        let reasons = [
            (Refusal::Unauthorized, "Unauthorized"),
            (Refusal::BadTarget, "BadRequest"),
            (Refusal::ExpectationFailed, "ExpectationFailed"),
            (Refusal::HeaderTooLarge, "RequestHeaderFieldsTooLarge"),
            (Refusal::Unsynced, "ServiceUnavailable"),
        ];
        for (refusal, reason) in reasons {
            assert_eq!(refusal.reason(), reason);
        }
    }

    #[test]
    fn protobuf_has_the_envelope_and_says_the_same() {
        let bytes = Refusal::Terminating.protobuf(Some(7));
        let unknown = envelope::unwrap(&bytes).unwrap();
        let kind = unknown.type_meta.as_ref().unwrap();
        assert_eq!((kind.api_version(), kind.kind()), ("v1", "Status"));
        let status = protobuf::Status::decode(unknown.raw()).unwrap();
        assert_eq!(
            (
                status.status(),
                status.message(),
                status.reason(),
                status.code()
            ),
            (
                "Failure",
                "the apiserver is shutting down",
                "ServiceUnavailable",
                503
            )
        );
        assert_eq!(status.details.unwrap().retry_after_seconds(), 7);
    }

    fn accepted(accept: &str) -> StatusFormat {
        StatusFormat::accepted(Some(&HeaderValue::from_str(accept).unwrap()))
    }

    #[test]
    fn without_the_header_it_is_json() {
        assert_eq!(StatusFormat::accepted(None), StatusFormat::Json);
        let odd = HeaderValue::from_bytes(b"application/vnd.kubernetes.protobuf\xff").unwrap();
        assert_eq!(StatusFormat::accepted(Some(&odd)), StatusFormat::Json);
    }

    #[test]
    fn protobuf_is_for_those_that_want_it_first() {
        for accept in [
            "application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf,application/json",
            "application/vnd.kubernetes.protobuf, */*",
            "application/vnd.kubernetes.protobuf;type=watch",
            "application/vnd.kubernetes.protobuf;stream=watch, application/json;stream=watch",
            "application/json;q=0.5, application/vnd.kubernetes.protobuf",
            "*/*, application/vnd.kubernetes.protobuf;q=0.1",
            "text/html, application/vnd.kubernetes.protobuf",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;q=0",
        ] {
            assert_eq!(accepted(accept), StatusFormat::Protobuf, "{accept}");
        }
    }

    #[test]
    fn everything_else_is_json() {
        for accept in [
            "",
            "*",
            "*/*",
            "application/*",
            "application/json",
            "application/json, application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;q=0.9, application/json",
            "application/vnd.kubernetes.protobuf;q=0.5, */*",
            "application/vnd.kubernetes.protobuf;q=x, application/json;q=0.1",
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1, application/json",
            "application/vnd.kubernetes.protobuf;stream=other",
            "application/vnd.kubernetes.protobuf;sv=v1",
            "application/vnd.kubernetes.protobuf/x",
            "application/yaml, application/vnd.kubernetes.protobuf",
            "Application/vnd.kubernetes.protobuf",
            "text/html",
            ",,;;=/",
        ] {
            assert_eq!(accepted(accept), StatusFormat::Json, "{accept}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_read(accept in "[a-z*/;,=. q0-9]{0,200}") {
            accepted(&accept);
        }
    }

    #[test]
    fn what_was_asked_for_without_peers_contents_is_told_by_the_clause_that_was_answered() {
        const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        const BETA: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let one = |accept: &str, given: &str| {
            is_for_one_server(Some(&HeaderValue::from_str(accept).unwrap()), given)
        };
        assert!(one(&format!("{V2};profile=nopeer,application/json"), V2));
        assert!(one(&format!("{V2};profile=nopeer,{V2}"), V2));
        assert!(!one(
            &format!("{V2};profile=nopeer,{BETA},application/json"),
            BETA
        ));
        assert!(!one(
            &format!("{V2};profile=nopeer,application/json"),
            "application/json"
        ));
        assert!(one("application/json;profile=nopeer", "application/json"));
        assert!(!one(&format!("{V2},{V2};profile=nopeer"), V2));
        assert!(!one("*/*", "application/json"));
        assert!(one("*/*;profile=nopeer", "application/yaml"));
        assert!(!is_for_one_server(None, "application/json"));
        assert!(!one("application/json;profile=nopeer", ""));
    }
}
