//! Values that cannot be read, and what is said of them.

use super::*;

#[test]
fn what_cannot_be_read_says_why_and_not_what_it_contains() {
    let lease_type = ("coordination.k8s.io/v1", "Lease");
    let wrap =
        |content_type: &str, raw: &[u8]| enveloped(lease_type.0, lease_type.1, content_type, raw);
    let zipped = Unknown {
        content_encoding: Some("gzip".into()),
        ..Unknown::default()
    };
    let table: Vec<(Vec<u8>, &str)> = vec![
        (b"k8s:enc:aescbc:v1:key1:secret".into(), "it is encrypted"),
        (b"".into(), "it is not in a form that Kubernetes stores"),
        (
            b"secret".into(),
            "it is not in a form that Kubernetes stores",
        ),
        (
            b"[{\"secret\":1}]".into(),
            "it is not in a form that Kubernetes stores",
        ),
        (b"k8s\0".into(), "expected Lease, found \"\""),
        (b"k8s\0\x0a\x7fsecret".into(), "its protobuf cannot be read"),
        (b"k8s\0secret".into(), "its protobuf cannot be read"),
        (wrap("", b"secret"), "its protobuf cannot be read"),
        (wrap("", b"{}"), "its protobuf cannot be read"),
        (b"{\"secret\"".into(), "its JSON cannot be read"),
        (
            b"{\"metadata\":\"secret\"}".into(),
            "its JSON cannot be read",
        ),
        (
            b"{\"spec\":{\"renewTime\":\"secret\"}}".into(),
            "its JSON cannot be read",
        ),
        (
            wrap("application/json", b"secret"),
            "its JSON cannot be read",
        ),
        (wrap("application/json", b""), "its JSON cannot be read"),
        (
            wrap("text/secret", b"{}"),
            "contentType is missing or not usable",
        ),
        (
            [PROTOBUF, &zipped.encode_to_vec()].concat(),
            "contentEncoding is missing or not usable",
        ),
        (
            b"{\"kind\":\"Pod\",\"spec\":\"secret\"}".into(),
            "expected Lease, found \"coordination.k8s.io/v1 Pod\"",
        ),
        (
            b"{\"apiVersion\":\"v1\",\"kind\":\"Lease\"}".into(),
            "expected Lease, found \"v1 Lease\"",
        ),
        (
            enveloped("v1", "Secret", "", b"secret"),
            "expected Lease, found \"v1 Secret\"",
        ),
    ];
    for (value, expected) in table {
        assert_eq!(lease(&value).unwrap_err().to_string(), expected);
    }
    let long = enveloped("v1", &"\n".repeat(9000), "", b"");
    assert!(lease(&long).unwrap_err().to_string().len() < 300);
    let long = enveloped("v1", &"x".repeat(9000), "", b"");
    assert!(lease(&long).unwrap_err().to_string().len() < 300);
    let servers = |server: Value| {
        let value = json!({"status": {"storageVersions": [server]}});
        storage_version(value.to_string().as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(servers(json!({})), "apiServerID is missing or not usable");
    for version in ["", "/", "/v1", "apps/", "apps/v1/x"] {
        let server = json!({"apiServerID": "a", "servedVersions": [version]});
        assert_eq!(servers(server), "servedVersions is missing or not usable");
    }
}

#[test]
fn a_time_that_does_not_exist_is_refused() {
    let renewed = |seconds, nanos| {
        let spec = k8s_pb::api::coordination::v1::LeaseSpec {
            renew_time: Some(k8s_pb::apimachinery::pkg::apis::meta::v1::MicroTime {
                seconds,
                nanos,
            }),
            ..Default::default()
        };
        let stored = k8s_pb::api::coordination::v1::Lease {
            metadata: None,
            spec: Some(spec),
        };
        lease(&enveloped(
            "coordination.k8s.io/v1",
            "Lease",
            "",
            &stored.encode_to_vec(),
        ))
    };
    assert_eq!(renewed(None, Some(0)).unwrap().renewed, None);
    let expected = SystemTime::UNIX_EPOCH + Duration::new(5, 7);
    assert_eq!(renewed(Some(5), Some(7)).unwrap().renewed, Some(expected));
    for (seconds, nanos) in [(i64::MAX, 0), (i64::MIN, 0), (5, -1), (5, i32::MAX)] {
        let read = renewed(Some(seconds), Some(nanos));
        assert!(matches!(read, Err(Undecodable::Field("spec.renewTime"))));
    }
}
