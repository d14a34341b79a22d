//! Time and memory of merging discovery when servers differ as much as possible.
//!
//! Ten servers list 500 groups of 10 versions of 20 resources, 100,000 resources each. Each server has some unique
//! groups, versions and resources. The memory is that of the whole process.
#![allow(
    clippy::expect_used,
    reason = "a benchmark: a failure is a panic with a message"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::header::ETAG;
use kube_interop_proxy::discovery::merge::merge;
use kube_interop_proxy::discovery::peer_union::union;
use kube_interop_proxy::kube::discovery::DiscoveryDocument;
use kube_interop_proxy::kube::discovery::documents::aggregated;
use kube_interop_proxy::kube::discovery::model::Document;
use kube_interop_proxy::kube::gvr::GroupVersion;
use kube_interop_proxy::relay::documents::{Cache, Entity, EntityKey, Variant};
use pingora_http::ResponseHeader;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SERVERS: usize = 10;
const GROUPS: usize = 500;
const VERSIONS: usize = 10;
const RESOURCES: usize = 20;
const REQUESTS: u32 = 100_000;
/// What Kubernetes 1.36 lists.
const USUAL: &[u8] = include_bytes!("../tests/data/kube-apiserver-v1.36/discovery/apis.v2.json");

fn main() {
    let documents: Vec<Document> = (1..=SERVERS)
        .map(|server| {
            let body = body(server);
            let label = format!("read {} MiB of server {server}", body.len() >> 20);
            timed(&label, || {
                let groups = aggregated(&body).expect("a document");
                Document { groups }
            })
        })
        .collect();
    let peers: Vec<_> = documents.iter().map(|document| (document, true)).collect();
    let others = timed("union of all", || union(&peers));

    let local = body(0);
    let groups = DiscoveryDocument::Groups;
    let merge = |document: &DiscoveryDocument, aggregated, body: Option<&[u8]>| {
        let content_type = match aggregated {
            true => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            false => "application/json",
        };
        merge(document, content_type, body, [(&others, false)]).expect("a document")
    };
    let merged = timed("merge, aggregated", || merge(&groups, true, Some(&local)));
    let merged = merged.expect("something to add");
    println!(
        "  {} MiB became {} MiB",
        local.len() >> 20,
        merged.len() >> 20
    );
    let nothing = timed("merge again, nothing to add", || {
        merge(&groups, true, Some(&merged))
    });
    assert_eq!(nothing, None);
    let listed = Document {
        groups: aggregated(&merged).expect("a document"),
    };
    let listed = listed.served().len();
    assert!(listed > others.served().len(), "{listed}");

    let list = br#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#;
    timed("merge, legacy list of groups", || {
        merge(&groups, false, Some(list))
    });
    let what = DiscoveryDocument::Resources(GroupVersion {
        group: "group-0".to_owned(),
        version: "v0".to_owned(),
    });
    timed("legacy document of a group version", || {
        merge(&what, false, None)
    });

    from_cache();
}

/// What a request costs whose document is there already, as a whole and as 304; the apiserver's part is not in it.
fn from_cache() {
    let accept = HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2");
    let key = EntityKey {
        document: DiscoveryDocument::Groups,
        content_type: accept.clone(),
        for_one: false,
        etag: Some(HeaderValue::from_static("\"local\"")),
        hash: Vec::new(),
    };
    let entity = Entity::new(key, Vec::new(), Some(USUAL.into()));
    let variant = Variant {
        accept: Some(accept),
        for_one: false,
    };
    let cache = Cache::default();
    cache.keep(1, &variant, &Arc::new(entity));
    let mut answer = ResponseHeader::build(200, None).expect("a header");
    let start = Instant::now();
    for _ in 0..REQUESTS {
        let entity = cache.accepted(1, &DiscoveryDocument::Groups, &variant);
        let entity = entity.expect("the document");
        entity.write(&mut answer, false).expect("a body");
    }
    let whole = start.elapsed() / REQUESTS;
    let known = [answer.headers[ETAG].clone()];
    let start = Instant::now();
    for _ in 0..REQUESTS {
        let entity = cache.accepted(1, &DiscoveryDocument::Groups, &variant);
        let entity = entity.expect("the document");
        assert!(entity.is_known(&known));
        entity.write_not_modified(&mut answer).expect("a header");
    }
    let not_modified = start.elapsed() / REQUESTS;
    println!("a request from the cache: {whole:.1?}; not modified: {not_modified:.1?}");
}

/// Does something, says how long that took and how much memory the process has had at most by then.
fn timed<T>(label: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    let took: Duration = start.elapsed();
    let [now, peak] = ["VmRSS:", "VmHWM:"].map(|field| memory(field) / 1024);
    println!("{label}: {took:.1?}; memory {now} MiB, at most {peak} MiB");
    done
}

/// In KiB.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a size")
}

/// What a server says. A tenth of the groups, versions and resources is its own, and no kind is there twice.
fn body(server: usize) -> Vec<u8> {
    let own = |index: usize, count: usize, name: &str| match index * 10 < count * 9 {
        true => format!("{name}-{index}"),
        false => format!("{name}-{index}-of-{server}"),
    };
    let mut body = Vec::from(br#"{"kind":"APIGroupDiscoveryList","items":["#);
    for group in 0..GROUPS {
        let versions: Vec<Value> = (0..VERSIONS)
            .map(|version| {
                let resources: Vec<Value> = (0..RESOURCES)
                    .map(|index| {
                        let kind = format!("Kind{index}OfVersion{version}OfGroup{group}");
                        resource(&own(index, RESOURCES, "resource"), &kind)
                    })
                    .collect();
                json!({"version": own(version, VERSIONS, "v"), "resources": resources, "freshness": "Current"})
            })
            .collect();
        let name = own(group, GROUPS, "group");
        let group = json!({"metadata": {"name": name}, "versions": versions});
        serde_json::to_writer(&mut body, &group).expect("text");
        body.push(b',');
    }
    body.pop();
    body.extend(b"]}");
    body
}

fn resource(name: &str, kind: &str) -> Value {
    let kind = json!({"group": "", "version": "", "kind": kind});
    json!({
        "resource": name,
        "responseKind": kind,
        "scope": "Namespaced",
        "singularResource": format!("{name}-singular"),
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "subresources": [
            {"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]},
        ],
    })
}
