//! What kube-apiserver keeps in etcd: the bytes as a value, and as the object in an envelope of each type.
#![no_main]

use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use kube_interop_proxy::cluster::codec::{
    encode_endpoints, endpoints, header_names, is_aggregated, is_endpoints, lease, served_versions,
    storage_version, stored_resource,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    read(data);
    for content_type in ["", "application/json"] {
        let _ = lease(&enveloped(
            "coordination.k8s.io/v1",
            "Lease",
            content_type,
            data,
        ));
        let version = "internal.apiserver.k8s.io/v1alpha1";
        let _ = storage_version(&enveloped(version, "StorageVersion", content_type, data));
        let version = "apiregistration.k8s.io/v1";
        let _ = is_aggregated(&enveloped(version, "APIService", content_type, data));
        read_endpoints(&enveloped("v1", "Endpoints", content_type, data));
        let _ = header_names(&enveloped("v1", "ConfigMap", content_type, data));
    }
    if let Ok(name) = std::str::from_utf8(data)
        && let Some((group, resource)) = stored_resource(name)
    {
        let group = if group.is_empty() { "core" } else { group };
        assert_eq!(format!("{group}.{resource}"), name);
    }
});

fn read(value: &[u8]) {
    let _ = lease(value);
    let _ = storage_version(value);
    let _ = is_aggregated(value);
    let _ = served_versions(value);
    let _ = header_names(value);
    read_endpoints(value);
}

/// What can be read can be written, and is read again as the same.
fn read_endpoints(value: &[u8]) {
    if let Ok(endpoint) = endpoints(value) {
        let written = encode_endpoints(&endpoint, 1);
        assert_eq!(endpoints(&written).expect("own value"), endpoint);
    }
    let _ = is_endpoints(value);
}

fn enveloped(api_version: &str, kind: &str, content_type: &str, raw: &[u8]) -> Vec<u8> {
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(raw.to_vec()),
        content_encoding: None,
        content_type: Some(content_type.to_owned()),
    };
    [&b"k8s\0"[..], &envelope.encode_to_vec()].concat()
}
