//! What requests see while settings change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::client::Client;
use testkit::cluster::Single;

use super::PODS;

/// Until told to stop: how often which answer came, as (status code, `X-Kubernetes-Ready`).
async fn ask(client: Client, stop: Arc<AtomicBool>) -> BTreeMap<(u16, String), usize> {
    let mut seen: BTreeMap<_, usize> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(PODS).await;
        let ready = answer.headers.get("x-kubernetes-ready");
        let ready = ready.map_or("", |value| value.to_str().unwrap()).to_owned();
        *seen.entry((answer.code(), ready)).or_default() += 1;
    }
    seen
}

/// With If-Ready and without versions a request that asks for both is told "ready"; with versions and without If-Ready it
/// is refused, because the version is none. A request that saw half of the change would be told "ready" and refused, or
/// neither.
#[tokio::test]
async fn no_request_sees_half_of_a_change() {
    let single = Single::with(|options| options.set("versionAwareness.enabled", "false")).await;
    let Single {
        double,
        mut proxy,
        ground,
    } = single;
    let client = proxy
        .client(&ground.pki)
        .cert("admin")
        .header("X-Kubernetes-If-Ready", "1")
        .header("X-Kubernetes-Compatibility-Version", "none");
    let stop = Arc::new(AtomicBool::new(false));
    let asking = |client: Client| tokio::spawn(ask(client, stop.clone()));
    let asking = [
        client.http1(),
        client.http2(),
        client.fresh(),
        client.fresh(),
    ]
    .map(asking);
    for round in 0..4 {
        let [if_ready, versions] = match round % 2 {
            0 => ["false", "true"],
            _ => ["true", "false"],
        };
        proxy.changed_config("ifReady.enabled", if_ready);
        proxy.reconfigure("versionAwareness.enabled", versions);
        proxy.until_setting("ifReady.enabled", if_ready).await;
    }
    stop.store(true, Ordering::Relaxed);
    let whole = [(200, "true".to_owned()), (400, String::new())];
    for seen in asking {
        let seen = seen.await.unwrap();
        assert_eq!(seen.keys().cloned().collect::<Vec<_>>(), whole, "{seen:?}");
    }
    let passed = double.requests();
    let passed: Vec<_> = passed.iter().filter(|it| it.path == PODS).collect();
    assert!(!passed.is_empty());
    for request in passed {
        assert!(!request.headers.contains_key("x-kubernetes-if-ready"));
    }
}
