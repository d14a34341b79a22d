//! `metav1.Status`, byte for byte as kube-apiserver writes it. Pure.

use bytes::Bytes;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as protobuf;
use serde::Serialize;

use super::format::StatusFormat;
use crate::kube::envelope;

const API_VERSION: &str = "v1";
const KIND: &str = "Status";
const FAILURE: &str = "Failure";

/// A failure without details of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusObject {
    pub message: &'static str,
    pub reason: &'static str,
    pub code: u16,
    pub retry_after_seconds: Option<u32>,
}

impl StatusObject {
    pub(super) fn encode(&self, form: StatusFormat) -> Bytes {
        match form {
            StatusFormat::Json => self.json(),
            StatusFormat::Protobuf => self.protobuf(),
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
        // Strings and numbers can always be serialised.
        let mut body = serde_json::to_vec(&status).unwrap_or_default();
        body.push(b'\n');
        body.into()
    }

    /// Go writes empty fields, too.
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
        envelope::wrap_object(API_VERSION, KIND, &status).into()
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
    use prost::Message;

    use super::*;

    const WAIT: StatusObject = StatusObject {
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
        assert_eq!(WAIT.encode(StatusFormat::Json), expected);
    }

    #[test]
    fn protobuf_has_the_envelope_and_says_the_same() {
        let bytes = WAIT.encode(StatusFormat::Protobuf);
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
            ("Failure", "wait", "ServiceUnavailable", 503)
        );
        assert_eq!(status.details.unwrap().retry_after_seconds(), 7);
    }
}
