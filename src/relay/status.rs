//! `metav1.Status`, byte for byte as kube-apiserver writes it. Pure.

use bytes::Bytes;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as protobuf;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;
use serde::Serialize;

use super::accept::Form;

/// What Kubernetes' protobuf form begins with.
const ENVELOPE: &[u8] = b"k8s\0";
const API_VERSION: &str = "v1";
const KIND: &str = "Status";
const FAILURE: &str = "Failure";

/// A failure, about no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// For people.
    pub message: &'static str,
    /// For programs.
    pub reason: &'static str,
    /// The HTTP status code.
    pub code: u16,
    /// When to try again, if at all.
    pub retry_after_seconds: Option<u32>,
}

impl Status {
    /// Its bytes.
    pub fn encode(&self, form: Form) -> Bytes {
        match form {
            Form::Json => self.json(),
            Form::Protobuf => self.protobuf(),
        }
    }

    fn json(&self) -> Bytes {
        let status = Json {
            kind: KIND,
            api_version: API_VERSION,
            metadata: Empty {},
            status: FAILURE,
            message: self.message,
            reason: self.reason,
            details: self.retry_after_seconds.map(|retry_after_seconds| Details {
                retry_after_seconds,
            }),
            code: self.code,
        };
        // Text and numbers can always be written.
        let mut body = serde_json::to_vec(&status).unwrap_or_default();
        body.push(b'\n');
        body.into()
    }

    /// Like Go's, it writes empty fields too.
    fn protobuf(&self) -> Bytes {
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
            status: Some(FAILURE.to_owned()),
            message: Some(self.message.to_owned()),
            reason: Some(self.reason.to_owned()),
            details: self.retry_after_seconds.map(details),
            code: Some(self.code.into()),
        };
        let unknown = Unknown {
            type_meta: Some(TypeMeta {
                api_version: Some(API_VERSION.to_owned()),
                kind: Some(KIND.to_owned()),
            }),
            raw: Some(status.encode_to_vec()),
            content_encoding: empty(),
            content_type: empty(),
        };
        [ENVELOPE, &unknown.encode_to_vec()].concat().into()
    }
}

/// The fields in Go's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Json {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Status = Status {
        message: "wait",
        reason: "ServiceUnavailable",
        code: 503,
        retry_after_seconds: Some(7),
    };

    #[test]
    fn json_is_written_as_go_writes_it() {
        let expected = concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"wait","#,
            r#""reason":"ServiceUnavailable","details":{"retryAfterSeconds":7},"code":503}"#,
            "\n"
        );
        assert_eq!(WAIT.encode(Form::Json), expected);
    }

    #[test]
    fn protobuf_has_the_envelope_and_says_the_same() {
        let bytes = WAIT.encode(Form::Protobuf);
        let unknown = Unknown::decode(bytes.strip_prefix(ENVELOPE).unwrap()).unwrap();
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
            ("Failure", "wait", "ServiceUnavailable", 503)
        );
        assert_eq!(status.details.unwrap().retry_after_seconds(), 7);
    }
}
