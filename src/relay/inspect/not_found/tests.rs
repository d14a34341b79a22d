use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderValue;
use k8s_pb::apimachinery::pkg::runtime::TypeMeta;

use super::*;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CBOR_TYPE: &str = "application/cbor";

fn ask(content_type: &'static str, body: &[u8]) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    is_no_such_resource(&headers, body, false)
}

/// A `Status` in each form, with its content type.
fn in_each_form(message: &str, name: &str) -> Vec<(&'static str, Vec<u8>)> {
    let details = match name {
        "" => serde_json::json!({}),
        name => serde_json::json!({"name": name, "kind": "things"}),
    };
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "NotFound", "details": details, "code": 404});
    let yaml = serde_yaml::to_string(&status).unwrap();
    vec![
        (JSON, status.to_string().into_bytes()),
        (YAML, yaml.into_bytes()),
        (PROTOBUF, protobuf(message, name, true)),
        (CBOR_TYPE, cbor(message, name)),
    ]
}

/// `full`: Go writes empty fields too, others leave them out.
fn protobuf(message: &str, name: &str, full: bool) -> Vec<u8> {
    let text = |value: &str| (full || !value.is_empty()).then(|| value.to_owned());
    let status = super::protobuf::Status {
        message: text(message),
        details: Some(super::protobuf::StatusDetails {
            name: text(name),
            ..Default::default()
        }),
        ..Default::default()
    };
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: text("v1"),
            kind: text("Status"),
        }),
        raw: Some(status.encode_to_vec()),
        ..Default::default()
    };
    [b"k8s\0".as_slice(), &unknown.encode_to_vec()].concat()
}

/// As much of a map as matters; strings are byte strings, as kube-apiserver writes them.
fn cbor(message: &str, name: &str) -> Vec<u8> {
    let string = |value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        let head = match length {
            0..24 => vec![0x40 | length],
            _ => vec![0x58, length],
        };
        [head, value.as_bytes().to_vec()].concat()
    };
    [
        CBOR.to_vec(),
        vec![0xa2],
        string("details"),
        vec![0xa1],
        string("name"),
        string(name),
        string("message"),
        string(message),
    ]
    .concat()
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
    for (content_type, body) in in_each_form(MESSAGE, "") {
        assert!(ask(content_type, &body), "{content_type}");
    }
    assert!(ask(PROTOBUF, &protobuf(MESSAGE, "", false)));
    assert!(ask(
        "Application/JSON;charset=utf-8",
        br#"{"kind":"Status","message":"the server could not find the requested resource"}"#
    ));
}

#[test]
fn a_missing_object_is_named() {
    for (content_type, body) in in_each_form("things \"x\" not found", "x") {
        assert!(!ask(content_type, &body), "{content_type}");
    }
}

#[test]
fn an_object_may_have_the_message_for_its_name() {
    let message = format!("clusterroles \"{MESSAGE}\" not found");
    for (content_type, body) in in_each_form(&message, MESSAGE) {
        assert!(!ask(content_type, &body), "{content_type}");
    }
}

#[test]
fn what_a_kubelet_has_not_is_about_its_pod() {
    let message = format!("{MESSAGE} ( pods/log x)");
    for (content_type, body) in in_each_form(&message, "x") {
        assert!(!ask(content_type, &body), "{content_type}");
    }
    let unnamed = protobuf(&format!("{MESSAGE} (get things.example.com)"), "", true);
    assert!(ask(PROTOBUF, &unnamed));
}

#[test]
fn what_a_webhook_says_passes() {
    for (content_type, body) in in_each_form("admission webhook \"x\" denied the request", "") {
        assert!(!ask(content_type, &body), "{content_type}");
    }
}

#[test]
fn gzip_is_looked_into() {
    let pack = |body: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let ask = |content_type, encoding, body: &[u8]| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        is_no_such_resource(&headers, body, false)
    };
    for (content_type, body) in in_each_form(MESSAGE, "") {
        assert!(ask(content_type, "gzip", &pack(&body)), "{content_type}");
        assert!(ask(content_type, "identity", &body), "{content_type}");
    }
    for (content_type, body) in in_each_form("things \"x\" not found", "x") {
        let packed = pack(&body);
        assert!(!ask(content_type, "GZIP", &packed), "{content_type}");
        assert!(ask(content_type, "gzip", &packed[..packed.len() / 2]));
        assert!(ask(content_type, "br", &packed));
    }
    // A little that becomes a lot is not unpacked to its end.
    assert!(!ask(
        "text/x",
        "gzip",
        &pack(&vec![b'x'; 100 * STATUS_LIMIT])
    ));
}

#[test]
fn what_says_nothing_proves_nothing() {
    for body in [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"k8s\0",
        b"k8s\0\xff",
    ] {
        for content_type in [JSON, YAML, PROTOBUF, CBOR_TYPE] {
            assert!(ask(content_type, body), "{content_type} {body:?}");
        }
    }
    for content_type in ["text/plain", "application/octet-stream", ""] {
        assert!(ask(content_type, b""));
        assert!(ask(content_type, b" \n"));
    }
}

#[test]
fn a_write_is_sent_elsewhere_only_after_just_what_kube_apiserver_says() {
    let exactly = |content_type: &'static str, body: &[u8]| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        is_no_such_resource(&headers, body, true)
    };
    assert!(exactly(
        "text/plain; charset=utf-8",
        b"404 page not found\n"
    ));
    for (content_type, body) in in_each_form(MESSAGE, "") {
        assert!(exactly(content_type, &body), "{content_type}");
    }
    let longer = format!("{MESSAGE} (post things.example.com)");
    for (content_type, body) in in_each_form(&longer, "") {
        assert!(!exactly(content_type, &body), "{content_type}");
    }
    let of_kind = br#"{"kind":"Status","message":"the server could not find the requested resource","details":{"kind":"things"}}"#;
    assert!(!exactly(JSON, of_kind));
    for body in [&b""[..], b"{", b"{}", MESSAGE.as_bytes()] {
        for content_type in [JSON, YAML, PROTOBUF, CBOR_TYPE, "text/plain"] {
            assert!(!exactly(content_type, body), "{content_type} {body:?}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        for content_type in [JSON, YAML, PROTOBUF, CBOR_TYPE, "text/plain"] {
            ask(content_type, &body);
            ask(content_type, &[b"k8s\0", body.as_slice()].concat());
        }
    }
}
