//! Telling "no such resource" from "no such object", in every form that kube-apiserver has for it.
//!
//! An unknown group is `404 page not found` in plain text; an unknown version, resource or subresource is a `Status`
//! without a name in its details, as JSON, YAML, protobuf or CBOR; a missing object is a `Status` that names it. An
//! answer that says nothing proves nothing.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Longest body looked at. kube-apiserver's own are below 1 KiB.
pub const LIMIT: usize = 16 << 10;

const TEXT: &[u8] = b"404 page not found";
const MESSAGE: &str = "the server could not find the requested resource";

/// Whether a 404 with these headers and this body may mean that the server does not know the resource.
pub fn is_no_such_resource(headers: &HeaderMap, body: &[u8]) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |value| value.as_bytes());
    let media_type = content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    match media_type {
        // JSON is YAML, but reading it as such is slow.
        b"application/json" => {
            serde_json::from_slice(body).map_or(true, |status| is_anonymous(&status))
        }
        b"application/yaml" => {
            serde_yaml::from_slice(body).map_or(true, |status| is_anonymous(&status))
        }
        // In the binary forms strings stand as they are. A Status about an object says `<resource> "<name>" not found`.
        _ => {
            body.trim_ascii().is_empty()
                || body.trim_ascii() == TEXT
                || contains(body, MESSAGE.as_bytes())
        }
    }
}

/// Whether a `Status` is about no object. Webhooks answer 404 in words of their own; those are not the apiserver's.
fn is_anonymous(status: &serde_json::Value) -> bool {
    let named = status["details"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    let told = status["kind"] == "Status" && status["message"].is_string();
    !told || (!named && status["message"] == MESSAGE)
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
    fn yaml_is_read_like_json() {
        let status = |message: &str, name: &str| {
            format!(
                "apiVersion: v1\ncode: 404\ndetails: {{{name}}}\nkind: Status\nmessage: {message}\nmetadata: {{}}\n\
                 reason: NotFound\nstatus: Failure\n"
            )
        };
        assert!(ask("application/yaml", status(MESSAGE, "").as_bytes()));
        assert!(!ask(
            "application/yaml",
            status("pods \"x\" not found", "name: x").as_bytes()
        ));
    }

    #[test]
    fn cbor_is_told_apart_by_its_message() {
        assert!(ask(
            "application/cbor",
            &[b"\xd9\xd9\xf7", MESSAGE.as_bytes()].concat()
        ));
    }

    #[test]
    fn what_a_webhook_says_passes() {
        let body = br#"{"kind":"Status","message":"admission webhook \"x\" denied the request","code":404}"#;
        assert!(!ask("application/json", body));
    }

    #[test]
    fn what_says_nothing_proves_nothing() {
        for body in [&b""[..], b"{", b"null", b"[]", b"{}", b"\xff\xfe"] {
            assert!(ask("application/json", body), "{body:?}");
            assert!(ask("application/yaml", body), "{body:?}");
        }
        for content_type in [
            "text/plain",
            "application/vnd.kubernetes.protobuf",
            "application/octet-stream",
            "",
        ] {
            assert!(ask(content_type, b""));
            assert!(ask(content_type, b" \n"));
        }
    }
}
