//! Kubernetes' protobuf envelope: `k8s\0`, then a `runtime.Unknown` around the object. Pure.

use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::{DecodeError, Message};

/// The first bytes of every object in protobuf.
pub const MAGIC: &[u8] = b"k8s\0";

/// The object is not in the envelope, or the envelope cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    #[error("not in Kubernetes' protobuf envelope")]
    Magic,
    #[error(transparent)]
    Protobuf(#[from] DecodeError),
}

/// The `runtime.Unknown` of an object; its `raw` is the object.
pub fn unwrap(body: &[u8]) -> Result<Unknown, EnvelopeError> {
    let unknown = body.strip_prefix(MAGIC).ok_or(EnvelopeError::Magic)?;
    Ok(Unknown::decode(unknown)?)
}

/// The bytes of a `runtime.Unknown`, or of a message with the same fields, in the envelope.
pub fn wrap(unknown: &impl Message) -> Vec<u8> {
    let mut body = Vec::with_capacity(MAGIC.len() + unknown.encoded_len());
    body.extend_from_slice(MAGIC);
    unknown.encode_raw(&mut body);
    body
}

/// Puts an object in the envelope. Like Go, writes empty fields too.
pub fn wrap_object(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    wrap(&Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(object.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    })
}

#[cfg(test)]
mod tests {
    use k8s_pb::apimachinery::pkg::apis::meta::v1::Status;

    use super::*;

    #[test]
    fn an_object_comes_back_out_of_its_envelope() {
        let status = Status {
            message: Some("gone".to_owned()),
            ..Status::default()
        };
        let body = wrap_object("v1", "Status", &status);
        let unknown = unwrap(&body).unwrap();
        assert_eq!(Status::decode(unknown.raw()).unwrap(), status);
        let type_meta = unknown.type_meta.as_ref().unwrap();
        assert_eq!(
            (type_meta.api_version(), type_meta.kind()),
            ("v1", "Status")
        );
        assert_eq!(wrap(&unknown), body);
    }

    #[test]
    fn other_bytes_are_an_error() {
        assert!(matches!(unwrap(b"{}"), Err(EnvelopeError::Magic)));
        assert!(matches!(
            unwrap(b"k8s\0\xff"),
            Err(EnvelopeError::Protobuf(_))
        ));
    }
}
