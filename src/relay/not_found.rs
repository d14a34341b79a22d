//! Telling "no such resource" from "no such object", in every form that kube-apiserver has for it.
//!
//! An unknown group is `404 page not found` in plain text; an unknown version, resource or subresource is a `Status`
//! without a name in its details, as JSON or protobuf; a missing object is a `Status` that names it.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Longest body looked at. kube-apiserver's own are below 1 KiB.
pub const LIMIT: usize = 16 << 10;

const TEXT: &[u8] = b"404 page not found";
const MESSAGE: &str = "the server could not find the requested resource";

/// Whether a 404 with these headers and this body means that the server does not know the resource.
pub fn is_no_such_resource(headers: &HeaderMap, body: &[u8]) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |value| value.as_bytes());
    if content_type.starts_with(b"application/json") {
        return serde_json::from_slice::<serde_json::Value>(body)
            .is_ok_and(|status| is_anonymous_status(&status));
    }
    if content_type.starts_with(b"application/vnd.kubernetes.protobuf") {
        // A Status about an object says `<resource> "<name>" not found`; only the other one has this message.
        return body.starts_with(b"k8s\0") && contains(body, MESSAGE.as_bytes());
    }
    body.trim_ascii() == TEXT
}

fn is_anonymous_status(status: &serde_json::Value) -> bool {
    let named = status["details"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    status["kind"] == "Status"
        && status["reason"] == "NotFound"
        && !named
        && status["message"] == MESSAGE
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ask(content_type: &'static str, body: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        is_no_such_resource(&headers, body)
    }

    #[test]
    fn an_unknown_group_is_plain_text() {
        assert!(ask("text/plain; charset=utf-8", b"404 page not found\n"));
        assert!(!ask(
            "text/plain; charset=utf-8",
            b"404 page not found, says a pod\n"
        ));
    }

    #[test]
    fn an_unknown_resource_is_a_status_without_a_name() {
        let body = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#;
        assert!(ask("application/json", body));
    }

    #[test]
    fn a_missing_object_is_named() {
        let body = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"x\" not found","reason":"NotFound","details":{"name":"x","kind":"pods"},"code":404}"#;
        assert!(!ask("application/json", body));
    }

    #[test]
    fn protobuf_is_told_apart_by_its_message() {
        let status = |message: &str| {
            [
                b"k8s\0".as_slice(),
                b"\x0a\x0c\x0a\x02v1",
                message.as_bytes(),
            ]
            .concat()
        };
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert!(ask(protobuf, &status(MESSAGE)));
        assert!(!ask(protobuf, &status("pods \"x\" not found")));
    }

    #[test]
    fn broken_bodies_are_nothing() {
        for body in [&b""[..], b"{", b"null", b"[]", b"\xff\xfe"] {
            assert!(!ask("application/json", body));
            assert!(!ask("application/vnd.kubernetes.protobuf", body));
        }
    }
}
