//! The cost of following a watch, per event.
#![allow(missing_docs, reason = "criterion's macros make the items")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use k8s_pb::api::core::v1::ConfigMap;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{ObjectMeta, WatchEvent};
use k8s_pb::apimachinery::pkg::runtime::{RawExtension, TypeMeta, Unknown};
use kube_interop_proxy::watches::follower::Follower;
use kube_interop_proxy::watches::frames::FrameFormat;
use prost::Message;

/// An event with so many bytes of data, about as a Pod has them: many short fields.
fn json(size: usize) -> Bytes {
    let data: serde_json::Map<_, _> = (0..size / 40)
        .map(|index| (format!("key-{index:06}"), "a value of some length".into()))
        .collect();
    let metadata =
        serde_json::json!({"name": "x", "namespace": "default", "resourceVersion": "100"});
    let object = serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data});
    format!(
        "{}\n",
        serde_json::json!({"type": "ADDED", "object": object})
    )
    .into()
}

fn protobuf(size: usize) -> Bytes {
    let object = ConfigMap {
        metadata: Some(ObjectMeta {
            name: Some("x".to_owned()),
            namespace: Some("default".to_owned()),
            resource_version: Some("100".to_owned()),
            ..ObjectMeta::default()
        }),
        data: (0..size / 40)
            .map(|index| {
                (
                    format!("key-{index:06}"),
                    "a value of some length".to_owned(),
                )
            })
            .collect(),
        ..ConfigMap::default()
    };
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
        }),
        raw: Some(object.encode_to_vec()),
        ..Unknown::default()
    };
    let event = WatchEvent {
        r#type: Some("ADDED".to_owned()),
        object: Some(RawExtension {
            raw: Some([&b"k8s\0"[..], &envelope.encode_to_vec()].concat()),
        }),
    };
    let event = event.encode_to_vec();
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &event].concat().into()
}

fn follow(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("follow_watch");
    for size in [400, 4_000, 40_000] {
        for (name, format, frame) in [
            ("json", FrameFormat::Json, json(size)),
            ("protobuf", FrameFormat::Protobuf, protobuf(size)),
        ] {
            group.throughput(Throughput::Bytes(frame.len() as u64));
            let mut follower = Follower::new(format, None);
            group.bench_function(format!("{name}/{size}"), |bencher| {
                bencher.iter(|| follower.next(&mut black_box(&frame).clone()));
            });
            assert!(follower.object_type().is_some(), "the event was read");
        }
    }
    group.finish();
}

criterion_group!(benches, follow);
criterion_main!(benches);
