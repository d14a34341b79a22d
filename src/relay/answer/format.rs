//! Negotiates the format of a `Status`, as kube-apiserver does for its errors. Pure.
//!
//! kube-apiserver has JSON, YAML and protobuf, in this order of preference. A client that prefers YAML gets JSON, which
//! is valid YAML. If the client accepts no supported format, it gets JSON, too.

use http::HeaderValue;

use crate::kube::media_type::{self, AcceptClause, trim};

/// A format of a `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFormat {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
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
    use super::*;

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
