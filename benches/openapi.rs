//! The cost of adding a peer's paths to an OpenAPI document, by the size of the documents.
#![allow(missing_docs, reason = "criterion's macros make the items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kube_interop_proxy::discovery::openapi::{OpenApiFormat, merge};
use prost::encoding::{bytes, string};

/// About as large as kube-apiserver's: 454 paths have 2.6 MB of JSON.
const PATH: usize = 6_000;
const DEFINITION: usize = 1_500;

/// Paths and definitions of a group, `count` of each.
fn entries(group: &str, count: usize) -> [Vec<(String, String)>; 2] {
    let described = |name: String, size: usize| {
        let text = r#"Some \"text\" about it. "#.repeat(size / 25);
        (name, format!(r#"{{"description":"{text}"}}"#))
    };
    let path = |number| described(format!("/apis/{group}/v1/things{number}"), PATH);
    let definition = |number| described(format!("io.example.{group}.v1.Thing{number}"), DEFINITION);
    [
        (0..count).map(path).collect(),
        (0..count).map(definition).collect(),
    ]
}

/// A document of two groups.
fn document(form: OpenApiFormat, sizes: [(&str, usize); 2]) -> Vec<u8> {
    let [one, other] = sizes.map(|(group, count)| entries(group, count));
    let [paths, definitions] = [0, 1].map(|part| [one[part].as_slice(), &other[part]].concat());
    match form {
        OpenApiFormat::V2Protobuf => {
            let mut out = Vec::new();
            for (part, number, entries) in [(8, 2, paths), (9, 1, definitions)] {
                let mut whole = Vec::new();
                for (name, text) in entries {
                    let mut entry = Vec::new();
                    string::encode(1, &name, &mut entry);
                    bytes::encode(2, &text.into_bytes(), &mut entry);
                    bytes::encode(number, &entry, &mut whole);
                }
                bytes::encode(part, &whole, &mut out);
            }
            out
        }
        OpenApiFormat::V2Json | OpenApiFormat::V3Index => {
            let [paths, definitions] = [paths, definitions].map(|entries| {
                let members = entries
                    .iter()
                    .map(|(name, text)| format!("\"{name}\":{text}"));
                members.collect::<Vec<_>>().join(",")
            });
            let document = format!(r#"{{"paths":{{{paths}}},"definitions":{{{definitions}}}}}"#);
            document.into_bytes()
        }
    }
}

fn add(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("merge_openapi");
    for (name, form) in [
        ("json", OpenApiFormat::V2Json),
        ("protobuf", OpenApiFormat::V2Protobuf),
    ] {
        for mebibytes in [1, 2, 5] {
            let count = mebibytes * (1 << 20) / (PATH + DEFINITION);
            let local = document(form, [("common", count), ("local", count / 20)]);
            let peer = document(form, [("common", count), ("peer", count / 20)]);
            group.throughput(Throughput::Bytes((local.len() + peer.len()) as u64));
            group.bench_function(format!("{name}/{mebibytes}MiB"), |bencher| {
                bencher.iter(|| merge(form, black_box(&local), &[black_box(&peer)], |_, _| true));
            });
            let merged = merge(form, &local, &[&peer], |_, _| true);
            assert!(
                matches!(merged, Ok(Some(merged)) if merged.len() > local.len()),
                "something was added"
            );
        }
    }
    group.finish();
}

criterion_group!(benches, add);
criterion_main!(benches);
