//! The proxy's own work per request: parsing, lookup, decision.
#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "criterion's macros make the items, and a benchmark may fail"
)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue, Method, header};
use kube_interop_proxy::config::settings::Settings;
use kube_interop_proxy::config::{Enforce, IfReadyConfig, IfReadyMode, parse};
use kube_interop_proxy::kube::gvr::{Custom, Definition, Gvr, GvrRef, Pair, ServedSet};
use kube_interop_proxy::local::state::LocalState;
use kube_interop_proxy::relay::plan::is_held_back;
use kube_interop_proxy::request::headers::IF_READY;
use kube_interop_proxy::request::info::{self, RequestInfo, Target};
use kube_interop_proxy::routing::decide::{LocalServer, RoutingInput, decide};
use kube_interop_proxy::routing::table::{Server, ServerKind, Snapshot};

const PATHS: [(&str, &str); 4] = [
    ("get", "/api/v1/namespaces/default/configmaps/x"),
    ("list", "/apis/apps/v1/deployments"),
    (
        "subresource",
        "/apis/group-7.example.com/v1/namespaces/default/things/a/status",
    ),
    ("escaped", "/api/v1/namespaces/default/configmaps/a%3Ab"),
];

fn gvr(group: &str, resource: &str) -> Gvr {
    Gvr {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
    }
}

/// 60 groups of 20 resources on each of 7 servers, and 10,000 custom resources.
fn snapshot() -> Snapshot {
    let served: ServedSet = (0..60)
        .flat_map(|group| {
            (0..20)
                .map(move |resource| gvr(&format!("group-{group}"), &format!("things{resource}")))
        })
        .chain([gvr("", "configmaps"), gvr("apps", "deployments")])
        .collect();
    let served = Arc::new(served);
    let servers = (0..7)
        .map(|index| Server {
            id: format!("server-{index}").into(),
            endpoint: ([10, 0, 0, index], 6443).into(),
            kind: ServerKind::Proxied,
            live: true,
            initialized: true,
            target: true,
            ready: true,
            known: true,
            binary_version: None,
            version: None,
            history_start: None,
            history_void: false,
            draining: false,
            served: Some(served.clone()),
        })
        .collect();
    let definition = Definition {
        versions: Some([Box::from("v1")].into()),
        revision: 0,
    };
    let custom = Custom {
        definitions: (0..10_000)
            .map(|index| {
                let name = Pair(
                    format!("group-{}.example.com", index % 100),
                    format!("things{index}"),
                );
                (name, definition.clone())
            })
            .collect(),
        aggregated: [Pair("metrics.k8s.io".to_owned(), "v1beta1".to_owned())]
            .into_iter()
            .collect(),
    };
    Snapshot::new(true, servers, Some(&served), Arc::new(custom))
}

fn resource<'a>(info: &'a RequestInfo<'_>) -> Option<GvrRef<'a>> {
    match &info.target {
        Target::Resource(resource) => Some(resource.into()),
        _ => None,
    }
}

fn request_path(criterion: &mut Criterion) {
    let snapshot = snapshot();
    let config = parse(include_str!("../config.example.yaml")).expect("a configuration");
    let settings = Settings::of(&config);
    let local = LocalServer {
        epoch: 0,
        initialized: true,
        history_start: 1,
    };
    for (name, path) in PATHS {
        criterion.bench_function(&format!("read/{name}"), |bencher| {
            bencher.iter(|| info::read(&Method::GET, black_box(path), None).long_running);
        });
        criterion.bench_function(&format!("read_and_decide/{name}"), |bencher| {
            bencher.iter(|| {
                let info = info::read(&Method::GET, black_box(path), None);
                let question = RoutingInput {
                    resource: resource(&info),
                    rerouted: false,
                    resume: None,
                    wanted: None,
                };
                decide(question, &settings, local, &snapshot, || false).row
            });
        });
    }
}

/// `X-Kubernetes-If-Ready` (KEP-3028): what looking for the header and at the server's state costs a request.
fn if_ready(criterion: &mut Criterion) {
    let value = HeaderValue::from_static;
    let plain: HeaderMap = [
        (header::ACCEPT, value("application/json")),
        (header::ACCEPT_ENCODING, value("gzip")),
        (header::AUTHORIZATION, value("Bearer x")),
        (header::HOST, value("10.0.0.11:6443")),
        (header::USER_AGENT, value("kubelet/v1.20.2")),
    ]
    .into_iter()
    .collect();
    let mut asks = plain.clone();
    asks.insert(IF_READY, value("true"));
    let config = |enforce| IfReadyConfig {
        enabled: true,
        mode: IfReadyMode::Retry,
        enforce,
        retry_after_seconds: 5,
        retry_after_jitter_seconds: 0,
    };
    let (starting, started) = (LocalState::default(), LocalState::default());
    started.answered(true, started.epoch());
    for (name, headers, enforce, local) in [
        ("not_asked", &plain, Enforce::OptIn, &started),
        ("asked", &asks, Enforce::OptIn, &started),
        ("always", &plain, Enforce::Always, &started),
        ("refused", &asks, Enforce::OptIn, &starting),
    ] {
        let config = config(enforce);
        let path = PATHS[0].1;
        criterion.bench_function(&format!("if_ready/{name}"), |bencher| {
            bencher.iter(|| {
                let asked = black_box(headers).contains_key(IF_READY);
                is_held_back(&config, black_box(path), asked, local.is_initialized())
            });
        });
    }
}

fn compile(criterion: &mut Criterion) {
    criterion.bench_function("compile_snapshot", |bencher| bencher.iter(snapshot));
}

criterion_group!(benches, request_path, if_ready, compile);
criterion_main!(benches);
