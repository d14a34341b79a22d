use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use k8s_pb::apimachinery::pkg::runtime::Unknown;
use k8s_pb::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use super::*;
use crate::kube::envelope::MAGIC;
use crate::kube::requestheader::NameList;

mod properties;
mod refusals;

const OLD: &str = "kube-apiserver-v1.20.2";
const NEW: &str = "kube-apiserver-v1.36";
const A: &str = "apiserver-tqsyvnc7rs47fayzipsuqpfg4m";
const B: &str = "apiserver-imkgstwjs6opnbwk2ixluu6fiq";

fn data(release: &str, file: &str) -> Vec<u8> {
    let root = env!("CARGO_MANIFEST_DIR");
    std::fs::read(format!("{root}/tests/data/{release}/{file}")).unwrap()
}

/// What is below a prefix in a release's etcd, by the rest of the key.
fn stored(release: &str, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let text = String::from_utf8(data(release, "etcd.jsonl")).unwrap();
    let prefix = format!("/registry/{prefix}/");
    text.lines()
        .filter_map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let name = line["key"].as_str().unwrap().strip_prefix(&prefix)?;
            let value = line["value"].as_str().unwrap().as_bytes();
            let value = data_encoding::BASE64.decode(value).unwrap();
            Some((name.to_owned(), value))
        })
        .collect()
}

/// The items of an API list, by name, with the type that the list states for them.
fn listed(release: &str, file: &str) -> BTreeMap<String, Vec<u8>> {
    let mut list: Value = serde_json::from_slice(&data(release, file)).unwrap();
    let api_version = list["apiVersion"].take();
    let kind = list["kind"].take();
    let kind = kind.as_str().unwrap().strip_suffix("List").unwrap();
    let items = list["items"].as_array_mut().unwrap().iter_mut();
    items
        .map(|item| {
            item["apiVersion"] = api_version.clone();
            item["kind"] = kind.into();
            let name = item["metadata"]["name"].as_str().unwrap().to_owned();
            (name, serde_json::to_vec(item).unwrap())
        })
        .collect()
}

fn enveloped(api_version: &str, kind: &str, content_type: &str, raw: &[u8]) -> Vec<u8> {
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.into()),
            kind: Some(kind.into()),
        }),
        raw: Some(raw.to_vec()),
        content_encoding: None,
        content_type: Some(content_type.into()),
    };
    [MAGIC, &envelope.encode_to_vec()].concat()
}

fn at(rfc3339: &str) -> Option<SystemTime> {
    Some(OffsetDateTime::parse(rfc3339, &Rfc3339).unwrap().into())
}

/// The API gives microseconds, etcd nanoseconds.
fn to_micros(mut lease: Lease) -> Lease {
    lease.renewed = lease.renewed.map(|renewed| {
        let since = renewed.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        renewed - Duration::from_nanos(u64::from(since.subsec_nanos() % 1000))
    });
    lease
}

fn versions(server: &str, served: &[&str]) -> ServerVersions {
    ServerVersions {
        server: server.into(),
        served: served.iter().copied().map(str::to_owned).collect(),
    }
}

#[test]
fn storage_versions_say_which_server_serves_which_versions_since_1_28() {
    let all = stored(NEW, "storageversions");
    assert_eq!(all.len(), 59);
    let read = |name: &str| storage_version(&all[name]).unwrap();
    let (v1, hpa) = (["v1"], "autoscaling.horizontalpodautoscalers");
    assert_eq!(read("core.pods"), [versions(B, &v1), versions(A, &v1)]);
    assert_eq!(read(hpa), [versions(B, &["v1", "v2"])]);
    // Encoded as v1beta1 and decodable as v1alpha1, and neither of them served.
    let policies = "admissionregistration.k8s.io.mutatingadmissionpolicies";
    assert_eq!(read(policies), [versions(B, &v1), versions(A, &v1)]);
    let read: Vec<_> = all
        .values()
        .flat_map(|v| storage_version(v).unwrap())
        .collect();
    assert_eq!(read.len(), 117);
    assert_eq!(read.iter().map(|s| s.served.len()).sum::<usize>(), 118);
}

#[test]
fn storage_versions_of_old_servers_name_them_and_nothing_served() {
    let all = stored(OLD, "storageversions");
    assert_eq!(all.len(), 48);
    let read: Vec<_> = all
        .values()
        .flat_map(|v| storage_version(v).unwrap())
        .collect();
    assert_eq!(read.len(), 190);
    assert!(read.iter().all(|s| s.served.is_empty()));
    let pods = storage_version(&all["core.pods"]).unwrap();
    let first = "kube-apiserver-f51c4d82-4ff4-4ea6-839d-d3fddaae8ead";
    assert_eq!(pods[0], versions(first, &[]));
    assert_eq!(pods.len(), 4);
}

#[test]
fn the_name_of_a_storage_version_is_group_and_resource() {
    assert_eq!(stored_resource("core.pods"), Some(("", "pods")));
    assert_eq!(
        stored_resource("example.com.widgets"),
        Some(("example.com", "widgets"))
    );
    for name in ["", "pods", ".pods", "core.", "."] {
        assert_eq!(stored_resource(name), None, "{name}");
    }
    for release in [OLD, NEW] {
        for name in stored(release, "storageversions").keys() {
            assert!(stored_resource(name).is_some(), "{name}");
        }
    }
}

#[test]
fn leases_of_recent_servers_say_their_host_and_their_start() {
    let all = stored(NEW, "leases/kube-system");
    assert_eq!(all.len(), 2);
    assert_eq!(
        to_micros(lease(&all[A]).unwrap()),
        Lease {
            identity: true,
            published: false,
            hostname: Some("cp-a".into()),
            holder: Some(format!("{A}_1c787831-74c0-4f2f-8b47-a43c1aeaa11c")),
            duration: Some(Duration::from_secs(3600)),
            renewed: at("2026-11-21T07:57:04.223828Z"),
            uid: "667f1ad1-20ce-4ff1-bdf4-9d7c765cbea8".into(),
        }
    );
    assert_eq!(lease(&all[B]).unwrap().hostname.as_deref(), Some("cp-b"));
}

#[test]
fn leases_of_old_servers_are_v1beta1_and_have_no_host() {
    let all = stored(OLD, "leases/kube-system");
    assert_eq!(all.len(), 4);
    let name = "kube-apiserver-aa8aaf5a-5c95-49ff-bc42-f13099191875";
    assert_eq!(
        to_micros(lease(&all[name]).unwrap()),
        Lease {
            identity: true,
            published: false,
            hostname: None,
            holder: Some(name.into()),
            duration: Some(Duration::from_secs(3600)),
            renewed: at("2026-11-21T07:58:57.598391Z"),
            uid: "7fd2f933-b3e2-4fd0-9950-9ff59a95117f".into(),
        }
    );
    for (name, value) in &all {
        assert_eq!(lease(value).unwrap().holder.as_ref(), Some(name));
    }
}

#[test]
fn the_api_in_json_says_the_same_as_etcd_in_protobuf() {
    let mut compared = 0;
    for release in [OLD, NEW] {
        let etcd = stored(release, "leases/kube-system");
        for (name, json) in listed(release, "leases.json") {
            let protobuf = lease(&etcd[&name]).unwrap();
            assert_eq!(lease(&json).unwrap(), to_micros(protobuf), "{name}");
            compared += 1;
        }
        let etcd = stored(release, "storageversions");
        for (name, json) in listed(release, "storageversions.json") {
            let protobuf = storage_version(&etcd[&name]).unwrap();
            assert_eq!(storage_version(&json).unwrap(), protobuf, "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 4 + 2 + 48 + 59);
}

fn typed_lease(mut value: Value) -> Lease {
    value["apiVersion"] = "coordination.k8s.io/v1".into();
    value["kind"] = "Lease".into();
    lease(value.to_string().as_bytes()).unwrap()
}

#[test]
fn a_lease_that_a_proxy_keeps_is_told_from_a_servers_own() {
    let kept = |holder: &str, renewed: &str| {
        let value = json!({
            "metadata": {
                "labels": {
                    "app.kubernetes.io/managed-by": "kube-interop-proxy",
                    "k8s.io/component": "kube-scheduler"},
                "annotations": {"kube-interop-proxy/renewal": "a_1 2026-01-01T00:00:00.000001Z"}},
            "spec": {"holderIdentity": holder, "renewTime": renewed}});
        let read = typed_lease(value);
        assert!(!read.identity);
        read.published
    };
    assert!(kept("a_1", "2026-01-01T00:00:00.000001Z"));
    assert!(
        !kept("a_2", "2026-01-01T00:00:00.000001Z"),
        "another holder"
    );
    assert!(!kept("a_1", "2026-01-01T00:00:10.000000Z"), "renewed later");
    let label =
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "kube-interop-proxy"}}});
    let none = json!({"metadata": {}, "spec": {
        "holderIdentity": "", "leaseDurationSeconds": 0, "renewTime": null}});
    for value in [label, none] {
        let read = typed_lease(value);
        assert_eq!(
            (read.holder, read.duration, read.renewed),
            (None, None, None)
        );
        assert!(!read.published && !read.identity);
    }
}

#[test]
fn times_have_six_digits_after_the_point() {
    let time = OffsetDateTime::parse("2000-02-29T01:59:59.001234567+02:00", &Rfc3339).unwrap();
    assert_eq!(micro_time(time), "2000-02-28T23:59:59.001234Z");
}

#[test]
fn peer_endpoints_are_read_and_written_in_kube_apiservers_own_bytes() {
    let all = stored(NEW, "peerserverleases");
    assert_eq!(all.len(), 2);
    for (server, address, generation) in [(A, "127.0.0.1:26443", 18), (B, "127.0.0.1:26444", 1)] {
        let read = endpoints(&all[server]).unwrap();
        let address = address.parse().unwrap();
        let server = server.to_owned();
        assert_eq!(read, PeerEndpoint { server, address });
        assert_eq!(encode_endpoints(&read, generation), all[&read.server]);
    }
    assert_eq!(stored(OLD, "peerserverleases").len(), 0);
}

fn peer(subset: Value) -> Result<SocketAddr, Undecodable> {
    let value = json!({"apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"labels": {"apiserverIdentity": "a"}}, "subsets": [subset]});
    endpoints(value.to_string().as_bytes()).map(|peer| peer.address)
}

#[test]
fn the_port_named_https_counts_else_the_only_one() {
    let addresses = json!([{"ip": "::ffff:10.0.0.1"}, {"ip": "10.0.0.2"}]);
    let with = |ports: Value| peer(json!({"addresses": addresses, "ports": ports}));
    let both = json!([{"name": "http", "port": 80}, {"name": "https", "port": 6443}]);
    let expected: SocketAddr = "10.0.0.1:6443".parse().unwrap();
    assert_eq!(with(both).unwrap(), expected);
    assert_eq!(with(json!([{"port": 6443}])).unwrap(), expected);
    let bad = [
        json!([{"port": 1}, {"port": 2}]),
        json!([{"name": "https", "port": 0}, {"port": 2}]),
        json!([{"port": 65536}]),
        json!([{"port": -1}]),
        json!([]),
        json!(null),
    ];
    for ports in bad {
        assert!(matches!(
            with(ports),
            Err(Undecodable::Field("subsets.ports.port"))
        ));
    }
}

#[test]
fn what_an_apiserver_says_of_its_address_is_endpoints() {
    let leases = stored(OLD, "masterleases");
    assert!(is_endpoints(&leases["10.0.0.11"]).is_ok());
    for value in [&b""[..], b"garbage", b"k8s\0", b"k8s:enc:x", b"{}", b"[]"] {
        assert!(is_endpoints(value).is_err());
    }
}

#[test]
fn header_names_are_read_from_either_form() {
    let groups = r#"["X-Remote-Group","X-Auth-Group"]"#;
    let data = [
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", groups),
        ("client-ca-file", "-----BEGIN CERTIFICATE-----"),
    ];
    let data = data.map(|(field, text)| (field.to_owned(), text.to_owned()));
    let stored = k8s_pb::api::core::v1::ConfigMap {
        data: data.clone().into(),
        ..Default::default()
    };
    let protobuf = enveloped("v1", "ConfigMap", "", &stored.encode_to_vec());
    let data: serde_json::Map<_, _> = data
        .map(|(field, text)| (field, json!(text)))
        .into_iter()
        .collect();
    let json =
        |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data}).to_string();
    let plain = json(Value::Object(data)).into_bytes();
    for value in [&protobuf, &plain] {
        let names = header_names(value).unwrap();
        assert!(names.is_complete());
        let groups: Vec<_> = names.of(NameList::Group).collect();
        assert_eq!(groups, ["x-auth-group", "x-remote-group"]);
    }
    for data in [json!(null), json!({})] {
        assert!(!header_names(json(data).as_bytes()).unwrap().is_complete());
    }
    let garbage = json(json!({"requestheader-group-headers": "garbage"}));
    let refused = header_names(garbage.as_bytes());
    assert!(matches!(refused, Err(Undecodable::Names(_))));
    let encrypted = header_names(b"k8s:enc:aescbc:v1:key1:x");
    assert!(matches!(encrypted, Err(Undecodable::Encrypted)));
    for value in [&b""[..], b"garbage", b"k8s\0", b"{}", b"[]"] {
        assert!(header_names(value).is_err());
    }
}

#[test]
fn an_address_that_cannot_be_a_peers_is_refused() {
    let ips = [
        "",
        "nowhere",
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "ff02::1",
    ];
    for ip in ips {
        let read = peer(json!({"addresses": [{"ip": ip}], "ports": [{"port": 1}]}));
        let refused = matches!(read, Err(Undecodable::Field("subsets.addresses.ip")));
        assert!(refused, "{ip}");
    }
    let unnamed = json!({"apiVersion": "v1", "kind": "Endpoints", "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]});
    let read = endpoints(unnamed.to_string().as_bytes());
    assert!(matches!(
        read,
        Err(Undecodable::Field("metadata.labels.apiserverIdentity"))
    ));
    let nowhere = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"labels": {"apiserverIdentity": "a"}}});
    let read = endpoints(nowhere.to_string().as_bytes());
    assert!(matches!(read, Err(Undecodable::Field("subsets"))));
}

#[test]
fn only_an_api_service_with_a_service_is_aggregated() {
    for (release, total) in [(OLD, 35), (NEW, 24)] {
        let all = stored(release, "apiregistration.k8s.io/apiservices");
        assert_eq!(all.len(), total);
        let aggregated = all
            .iter()
            .filter(|(_, value)| is_aggregated(value).unwrap());
        let aggregated: Vec<_> = aggregated.map(|(name, _)| name.as_str()).collect();
        assert_eq!(aggregated, ["v1beta1.metrics.k8s.io"]);
        let version = "apiregistration.k8s.io/v1";
        for (name, value) in &all {
            let wrapped = enveloped(version, "APIService", "application/json", value);
            let expected = aggregated.contains(&name.as_str());
            assert_eq!(is_aggregated(&wrapped).unwrap(), expected, "{name}");
        }
    }
    let version = "apiregistration.k8s.io/v1beta1";
    let of = |spec: Value| json!({"apiVersion": version, "kind": "APIService", "spec": spec});
    for spec in [json!({"service": null}), json!({}), json!(null)] {
        let value = of(spec).to_string();
        assert!(!is_aggregated(value.as_bytes()).unwrap(), "{value}");
    }
    let protobuf = k8s_pb::kube_aggregator::pkg::apis::apiregistration::v1::APIServiceSpec {
        service: Some(Default::default()),
        ..Default::default()
    };
    let protobuf = APIService {
        spec: Some(protobuf),
        ..APIService::default()
    };
    let wrapped = enveloped(version, "APIService", "", &protobuf.encode_to_vec());
    assert!(is_aggregated(&wrapped).unwrap());
}

#[test]
fn a_definition_says_which_versions_it_serves() {
    for release in [OLD, NEW] {
        let stored = stored(release, "apiextensions.k8s.io/customresourcedefinitions");
        assert!(!stored.is_empty());
        for (name, value) in stored {
            let versions = served_versions(&value).unwrap();
            assert_eq!(
                versions.iter().map(|it| &**it).collect::<Vec<_>>(),
                ["v1"],
                "{name}"
            );
        }
    }
}

#[test]
fn a_definition_in_protobuf_says_the_same() {
    use k8s_pb::apiextensions_apiserver::pkg::apis::apiextensions::v1;
    let version = |name: &str, served| v1::CustomResourceDefinitionVersion {
        name: Some(name.to_owned()),
        served: Some(served),
        ..Default::default()
    };
    let definition = v1::CustomResourceDefinition {
        spec: Some(v1::CustomResourceDefinitionSpec {
            versions: vec![version("v1", true), version("v2", false)],
            ..Default::default()
        }),
        ..Default::default()
    };
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some("apiextensions.k8s.io/v1".to_owned()),
            kind: Some("CustomResourceDefinition".to_owned()),
        }),
        raw: Some(definition.encode_to_vec()),
        ..Default::default()
    };
    let value = [b"k8s\0".as_slice(), &unknown.encode_to_vec()].concat();
    assert_eq!(*served_versions(&value).unwrap(), [Box::from("v1")]);
}

#[test]
fn only_served_versions_count_and_not_too_many() {
    let definition = |spec: Value| {
        let value = json!({
            "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition", "spec": spec,
        });
        served_versions(value.to_string().as_bytes()).map(|versions| versions.to_vec())
    };
    let version = |name: String, served: bool| json!({"name": name, "served": served});
    let two = json!({"version": "v1", "versions": [version("v1".into(), true), version("v2".into(), false)]});
    assert_eq!(definition(two).unwrap(), [Box::from("v1")]);
    assert_eq!(
        definition(json!({"version": "v3"})).unwrap(),
        [Box::from("v3")]
    );
    let many: Vec<_> = (0..=MOST_VERSIONS)
        .map(|n| version(format!("v{n}"), true))
        .collect();
    assert!(definition(json!({"versions": many})).is_err());
    assert!(matches!(
        served_versions(b"k8s:enc:secretbox:"),
        Err(Undecodable::Encrypted)
    ));
}
