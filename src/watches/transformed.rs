//! Watches that ask for tables or for metadata alone: their objects have another type than the resource. Pure.

use http::HeaderValue;

use super::bookmark::PARTIAL_METADATA;
use super::follower::ObjectType;
use super::frames::{FrameFormat, TABLE};
use crate::kube::media_type;

/// The type of a stream's objects if the client asked for another one than the resource's. `accept`: of the request;
/// `format`: of the answer.
pub fn object_type(accept: Option<&HeaderValue>, format: FrameFormat) -> Option<ObjectType> {
    let sub = match format {
        FrameFormat::Json => "json",
        FrameFormat::Protobuf => "vnd.kubernetes.protobuf",
        FrameFormat::Cbor => "cbor",
    };
    let clauses = media_type::accepted(accept);
    // kube-apiserver knows both kinds for all of its resources, so it takes the first clause.
    let answered = clauses.iter().find(|clause| {
        matches!(clause.kind, "application" | "*") && (clause.sub == sub || clause.sub == "*")
    })?;
    let (kind, version) = (answered.value("as"), answered.value("v"));
    let known = [TABLE, PARTIAL_METADATA].contains(&kind)
        && answered.value("g") == "meta.k8s.io"
        && ["v1", "v1beta1"].contains(&version);
    known.then(|| ObjectType {
        api_version: format!("meta.k8s.io/{version}"),
        kind: kind.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accept: &'static str, format: FrameFormat) -> Option<String> {
        let accept = HeaderValue::from_static(accept);
        let ObjectType { api_version, kind } = object_type(Some(&accept), format)?;
        Some(format!("{api_version} {kind}"))
    }

    #[test]
    fn the_first_clause_of_the_answer_s_format_counts() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
            application/json";
        assert_eq!(
            of(kubectl, FrameFormat::Json).unwrap(),
            "meta.k8s.io/v1 Table"
        );
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
            application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1,application/json";
        for (format, expected) in [
            (
                FrameFormat::Protobuf,
                "meta.k8s.io/v1 PartialObjectMetadata",
            ),
            (
                FrameFormat::Json,
                "meta.k8s.io/v1beta1 PartialObjectMetadata",
            ),
        ] {
            assert_eq!(of(metadata, format).unwrap(), expected);
        }
    }

    #[test]
    fn plain_objects_are_no_others() {
        for plain in [
            "application/json",
            "*/*",
            "application/vnd.kubernetes.protobuf;stream=watch,application/json",
            "application/json,application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v9;g=meta.k8s.io",
            "application/json;as=Other;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v1;g=example.test",
        ] {
            assert_eq!(of(plain, FrameFormat::Json), None, "{plain}");
        }
        assert_eq!(object_type(None, FrameFormat::Json), None);
    }
}
