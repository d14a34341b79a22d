//! Values that cannot be decoded, and their error messages.

use super::*;

#[test]
fn what_cannot_be_read_says_why_and_not_what_it_contains() {
    let lease_type = ("coordination.k8s.io/v1", "Lease");
    let wrap =
        |content_type: &str, raw: &[u8]| enveloped(lease_type.0, lease_type.1, content_type, raw);
    let of = |field: &str| {
        let (version, kind) = lease_type;
        format!(r#"{{"apiVersion":"{version}","kind":"{kind}",{field}}}"#).into_bytes()
    };
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
        (
            b"{\"secret\"".into(),
            "its JSON cannot be read at line 1, column 9",
        ),
        (
            of(r#""metadata":"secret""#),
            "its JSON cannot be read at line 1, column 73",
        ),
        (
            of(r#""spec":{"renewTime":"secret"}"#),
            "its JSON cannot be read at line 1, column 83",
        ),
        // In UTC it is the year 10000.
        (
            of(r#""spec":{"holderIdentity":"a","renewTime":"9999-12-31T23:59:59-12:00"}"#),
            "its JSON cannot be read at line 1, column 123",
        ),
        (
            wrap("application/json", b"secret"),
            "its JSON cannot be read at line 1, column 1",
        ),
        (
            wrap("application/json", b""),
            "its JSON cannot be read at line 1, column 0",
        ),
        (
            wrap("text/secret", b"{}"),
            "contentType is missing or not usable",
        ),
        (
            [MAGIC, &zipped.encode_to_vec()].concat(),
            "contentEncoding is missing or not usable",
        ),
        (
            b"{\"kind\":\"Pod\",\"spec\":\"secret\"}".into(),
            "expected Lease, found \"Pod\"",
        ),
        (b"{}".into(), "expected Lease, found \"\""),
        (
            b"{\"kind\":\"Lease\"}".into(),
            "expected Lease, found \"Lease\"",
        ),
        (
            b"{\"apiVersion\":\"coordination.k8s.io/v1\"}".into(),
            "expected Lease, found \"coordination.k8s.io/v1\"",
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
}

fn stored_by(server: Value) -> Result<Vec<ServerVersions>, Undecodable> {
    let value = json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
        "status": {"storageVersions": [server]}});
    storage_version(value.to_string().as_bytes())
}

#[test]
fn a_served_version_that_is_none_hides_no_other() {
    let unnamed = stored_by(json!({})).unwrap_err();
    assert_eq!(unnamed.to_string(), "apiServerID is missing or not usable");
    for bad in ["", "/", "/v1", "apps/", "apps/v1/x"] {
        let served = json!({"apiServerID": "a", "servedVersions": ["apps/v1", bad, "v2"]});
        let expected = versions("a", &["v1", "v2"]);
        assert_eq!(stored_by(served).unwrap(), [expected], "{bad}");
    }
}

#[test]
fn of_a_storage_version_no_more_is_kept_than_servers_write() {
    let longest = format!("{}/{}", "g".repeat(253), "v".repeat(63));
    let repeated = vec!["v1"; 9999];
    let many = (0..9999).map(|n| format!("v{n}"));
    let served: Vec<_> = [&*longest, &format!("{longest}v")]
        .into_iter()
        .chain(repeated)
        .map(str::to_owned)
        .chain(many)
        .collect();
    let read = stored_by(json!({"apiServerID": "a", "servedVersions": served})).unwrap();
    assert_eq!(read[0].served.len(), 16);
    assert_eq!(read[0].served[..3], ["v0", "v1", "v10"]);
    let servers: Vec<_> = (0..9999)
        .map(|n| json!({"apiServerID": format!("a{n}"), "servedVersions": served[..3]}))
        .collect();
    let value = json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
        "status": {"storageVersions": servers}});
    let read = storage_version(value.to_string().as_bytes()).unwrap();
    assert!((20..100).contains(&read.len()), "{}", read.len());
    assert_eq!(read[19].server, "a19");
    assert!(read.capacity() < 100, "{}", read.capacity());
}

#[test]
fn an_array_is_no_object() {
    type Refuses = fn(&[u8]) -> bool;
    let unreadable: [(&str, &str, Refuses); 4] = [
        ("apiregistration.k8s.io/v1", "APIService", |value| {
            matches!(is_aggregated(value), Err(Undecodable::Json(_)))
        }),
        ("coordination.k8s.io/v1", "Lease", |value| {
            matches!(lease(value), Err(Undecodable::Json(_)))
        }),
        (
            "internal.apiserver.k8s.io/v1alpha1",
            "StorageVersion",
            |value| matches!(storage_version(value), Err(Undecodable::Json(_))),
        ),
        ("v1", "Endpoints", |value| {
            matches!(endpoints(value), Err(Undecodable::Json(_)))
        }),
    ];
    for (api_version, kind, refuses) in unreadable {
        let array = format!(r#"["{api_version}","{kind}",{{}}]"#);
        let wrapped = enveloped(api_version, kind, "application/json", array.as_bytes());
        assert!(refuses(&wrapped), "{kind}");
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
