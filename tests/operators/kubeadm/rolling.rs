//! The patched pod with etcd: kubectl works before, during and after the rollout, and after the rollback.

use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::node::{NODE, Node, Pod, run};
use super::{manifest, patched, yaml};
use testkit::cluster::LONG;
use testkit::wait::eventually;

const BETWEEN_CALLS: Duration = Duration::from_millis(50);

/// One call of kubectl.
struct Call {
    begun: Instant,
    ended: Instant,
    failure: Option<String>,
}

/// Somebody who asks all the time, and takes down what came of it.
struct Observer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Call>>,
}

impl Observer {
    fn start(node: &Arc<Node>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (node, stopped) = (Arc::clone(node), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut calls = Vec::new();
            while !stopped.load(Ordering::Relaxed) && calls.len() < 10_000 {
                let begun = Instant::now();
                let said = node.kubectl(&["get", "namespace", "default", "-o", "name"]);
                let said = said.await;
                let failure = (!said.success).then_some(said.err);
                let ended = Instant::now();
                calls.push(Call {
                    begun,
                    ended,
                    failure,
                });
                // kubectl is a tenth of a second of a processor, which other tests need too.
                tokio::time::sleep(BETWEEN_CALLS).await;
            }
            calls
        });
        Self { stop, task }
    }

    async fn calls(self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Changes one pod for another as kubelet does, while somebody asks: nothing fails but between the moment when the old
/// one was told to stop and the one when the new one is ready.
async fn change(node: &Arc<Node>, mut old: Pod, new: &Value) -> Pod {
    let observer = Observer::start(node);
    works(node, 3).await;
    let stopped = Instant::now();
    old.terminate();
    old.ended().await;
    let gap = Instant::now();
    let mut running = node.start(new);
    node.until_ready(new, &mut running).await;
    let ready = Instant::now();
    works(node, 10).await;
    let calls = observer.calls().await;
    let failed: Vec<_> = calls.iter().filter(|call| call.failure.is_some()).collect();
    for call in &failed {
        let why = call.failure.as_deref().unwrap_or_default();
        assert!(
            call.ended >= stopped && call.begun <= ready,
            "outside of the restart: {why}"
        );
    }
    let silent = match (failed.first(), failed.last()) {
        (Some(first), Some(last)) => last.ended - first.begun,
        _ => Duration::ZERO,
    };
    println!(
        "{} of {} calls failed, over {silent:.1?}; stopping took {:.1?}, starting {:.1?}",
        failed.len(),
        calls.len(),
        gap - stopped,
        ready - gap,
    );
    running
}

/// So many calls in a row succeed.
async fn works(node: &Node, times: usize) {
    for _ in 0..times {
        let said = node.kubectl(&["get", "namespace", "default", "-o", "name"]);
        let said = said.await;
        assert_eq!(said.out, "namespace/default\n", "{}", said.err);
    }
}

/// The requests that the proxy sent to the apiserver beside it.
async fn local_requests(node: &Node) -> u64 {
    let metrics = node.admin("/metrics").await.out;
    let lines = metrics.lines();
    let name = "kube_interop_proxy_requests_total{";
    let ours = lines.filter(|line| line.starts_with(name) && line.contains("decision=\"local\""));
    let counts = ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_before_during_and_after_the_proxy() {
    let node = Arc::new(Node::new().await);
    let (bare, with_proxy) = (yaml(&manifest("v1.20")), patched("v1.20"));
    let mut running = node.start(&bare);
    node.until_ready(&bare, &mut running).await;
    let made = node.kubectl(&["create", "configmap", "before"]).await;
    assert!(made.success, "{}", made.err);

    comes_too_early(&node, &with_proxy).await;
    let running = change(&node, running, &with_proxy).await;
    let before = local_requests(&node).await;
    works(&node, 5).await;
    let through = local_requests(&node).await - before;
    assert!(through >= 5, "{through} requests went through the proxy");
    let made = node.kubectl(&["create", "configmap", "during"]).await;
    assert!(made.success, "{}", made.err);
    leads_to_the_proxy(&node).await;

    let _running = change(&node, running, &bare).await;
    let there = ["get", "configmaps", "before", "during", "-o", "name"];
    let there = node.kubectl(&there).await;
    assert_eq!(
        there.out, "configmap/before\nconfigmap/during\n",
        "{}",
        there.err
    );
    assert!(!node.admin("/livez").await.success, "the proxy is gone");
    let direct = run(node.curl(&["https://127.0.0.11:6443/version"])).await;
    assert!(direct.success, "{}", direct.err);
}

/// While the apiserver still has the node's address the proxy waits, and is in nobody's way.
async fn comes_too_early(node: &Node, pod: &Value) {
    let mut alone = pod.clone();
    let containers = alone["spec"]["containers"].as_array_mut().unwrap();
    containers.retain(|container| container["name"] == "kube-interop-proxy");
    let mut early = node.start(&alone);
    let log = node.path("../../kube-interop-proxy.log");
    eventually("it waits", LONG, async || {
        let said = std::fs::read_to_string(&log).unwrap();
        said.contains("waiting a minute for kube-apiserver")
            .then_some(())
            .ok_or(said)
    })
    .await;
    works(node, 1).await;
    early.terminate();
    let ends = early.ended().await;
    assert!(ends.iter().all(|it| it.success()), "{ends:?}");
}

/// What the apiserver makes the Endpoints of the `kubernetes` Service of is the node's address, although it listens on
/// loopback; the port is `--secure-port`, which is the proxy's too. The Endpoints themselves cannot be written here:
/// the API refuses loopback addresses in them.
async fn leads_to_the_proxy(node: &Node) {
    let prefix = "/registry/masterleases/";
    let said = node
        .etcdctl(&["get", "--prefix", "--keys-only", prefix])
        .await;
    let keys: Vec<_> = said.out.split_whitespace().collect();
    assert_eq!(keys, [format!("{prefix}{NODE}")]);
}

/// An upload whose first part is on its way.
fn begin_upload(node: &Node, name: &str) -> Child {
    let url = format!("https://{NODE}:6443/api/v1/namespaces/default/configmaps");
    let mut curl = node.curl(&["--request", "POST", "--upload-file", "-", "--no-buffer"]);
    curl.args(["--header", "content-type: application/json"]);
    curl.args(["--write-out", "\n%{http_code}", &url]);
    curl.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut curl = curl.stderr(Stdio::piped()).spawn().unwrap();
    let begun = format!("{{\"metadata\": {{\"name\": \"{name}\"}},");
    let stdin = curl.stdin.as_mut().unwrap();
    stdin.write_all(begun.as_bytes()).unwrap();
    curl
}

async fn end_upload(mut curl: Child) -> String {
    curl.stdin
        .take()
        .unwrap()
        .write_all(b"\"data\": {\"a\": \"b\"}}")
        .unwrap();
    let end = tokio::task::spawn_blocking(move || curl.wait_with_output());
    let output = end.await.unwrap().unwrap();
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_ends_well_when_both_are_told_to_stop() {
    let node = Arc::new(Node::new().await);
    let pod = patched("v1.20");
    let mut running = node.start(&pod);
    node.until_ready(&pod, &mut running).await;
    let before = local_requests(&node).await;
    let upload = begin_upload(&node, "late");
    let watch = format!("https://{NODE}:6443/api/v1/namespaces/default/configmaps?watch=true");
    let watch = tokio::spawn(run(node.curl(&["--no-buffer", &watch])));
    eventually("both are under way", LONG, async || {
        // The watch has its header; the upload is counted when its answer begins.
        let uploads = node.admin("/metrics").await.out;
        local_requests(&node).await > before
            && uploads.contains("\nkube_interop_proxy_requests_in_flight 1\n")
    })
    .await;
    running.terminate();
    eventually("the drain has begun", LONG, async || {
        let metrics = node.admin("/metrics").await.out;
        watch.is_finished() || metrics.contains("kube_interop_proxy_drain_left 1\n")
    })
    .await;
    let version = format!("https://{NODE}:6443/version");
    let let_in = run(node.curl(&[&version])).await;
    assert!(let_in.success, "{}", let_in.err);
    let said = end_upload(upload).await;
    assert!(said.ends_with("\n201"), "{said}");
    let watched = watch.await.unwrap();
    assert!(watched.success, "a clean end: {}", watched.err);
    let ends = running.ended().await;
    assert!(
        ends.iter().all(std::process::ExitStatus::success),
        "{ends:?}"
    );
}
