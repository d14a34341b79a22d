//! A node without kubelet, and what stands in for it and for the scheduler: each pod is put there, is said to run, and is
//! removed when it has to go. Nothing runs.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::wait::eventually;

const NAME: &str = "nobody";
/// Between two looks at all pods.
const PACE: Duration = Duration::from_millis(500);

/// Ends when it is dropped.
pub struct Node {
    _task: JoinSet<()>,
}

impl Node {
    /// `client`: of the administrator.
    pub async fn start(client: Client) -> Self {
        eventually("the node is there", LONG, async || {
            let client = client.fresh();
            let created = client.try_request("POST", "/api/v1/nodes", node().to_string());
            // 409: from an earlier run.
            created
                .await
                .is_ok_and(|answer| matches!(answer.code(), 201 | 409))
        })
        .await;
        let mut task = JoinSet::new();
        task.spawn(run(client));
        Self { _task: task }
    }
}

async fn run(client: Client) {
    let patching = client.header("content-type", "application/merge-patch+json");
    loop {
        match client.try_get("/api/v1/pods").await {
            Ok(answer) if answer.code() == 200 => {
                for pod in answer.json()["items"].as_array().into_iter().flatten() {
                    if let Some(step) = Step::of(pod) {
                        let client = if step.method == "PATCH" {
                            &patching
                        } else {
                            &client
                        };
                        let body = step.body.to_string();
                        // Another look follows if it fails.
                        let answer = client.try_request(step.method, &step.path, body).await;
                        if answer.is_err() {
                            client.reconnect().await;
                        }
                    }
                }
            }
            _ => client.reconnect().await,
        }
        tokio::time::sleep(PACE).await;
    }
}

/// The next request for a pod.
#[derive(Debug, PartialEq)]
struct Step {
    method: &'static str,
    path: String,
    body: Value,
}

impl Step {
    fn of(pod: &Value) -> Option<Self> {
        let metadata = &pod["metadata"];
        let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let (method, suffix, body) = if !metadata["deletionTimestamp"].is_null() {
            let uid = json!({"uid": metadata["uid"]});
            (
                "DELETE",
                "",
                json!({"gracePeriodSeconds": 0, "preconditions": uid}),
            )
        } else if pod["spec"]["nodeName"].is_null() {
            let target = json!({"apiVersion": "v1", "kind": "Node", "name": NAME});
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
            ("POST", "/binding", binding)
        } else if phase == "Pending" && has_images(pod) {
            ("PATCH", "/status", json!({"status": running(pod)}))
        } else {
            return None;
        };
        Some(Self {
            method,
            path: path + suffix,
            body,
        })
    }
}

/// Tests that want a pod that never runs name an image that is not there.
fn has_images(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut images = containers.filter_map(|container| container["image"].as_str());
    images.all(|image| !image.ends_with(":404") && !image.contains("nonexistent"))
}

fn running(pod: &Value) -> Value {
    let since = &pod["metadata"]["creationTimestamp"];
    let ready = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": since});
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(ready);
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let statuses: Vec<_> = containers
        .map(|container| {
            json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": true,
                "started": true, "restartCount": 0, "state": {"running": {"startedAt": since}}})
        })
        .collect();
    let ip = address(pod["metadata"]["uid"].as_str().unwrap_or_default());
    json!({"phase": "Running", "startTime": since, "hostIP": "127.0.0.1", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": conditions, "containerStatuses": statuses})
}

/// An address of its own, as good as. Endpoints must not be on loopback, and nobody connects there.
fn address(uid: &str) -> String {
    let number = uid.bytes().fold(0_u16, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u16::from(byte))
    });
    let [high, low] = number.to_be_bytes();
    format!("10.1.{high}.{low}")
}

fn node() -> Value {
    let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": NAME});
    let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "nothing runs here"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": labels},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl Fn(&mut Value)) -> Value {
        let mut pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending"}});
        change(&mut pod);
        pod
    }

    #[test]
    fn a_pod_is_bound_then_runs_and_is_removed_when_it_has_to_go() {
        let path = "/api/v1/namespaces/n/pods/p";
        let step = Step::of(&pod(|_| {})).unwrap();
        assert_eq!(
            (step.method, step.path),
            ("POST", format!("{path}/binding"))
        );

        let bound = |pod: &mut Value| pod["spec"]["nodeName"] = NAME.into();
        let step = Step::of(&pod(bound)).unwrap();
        assert_eq!(
            (step.method, step.path),
            ("PATCH", format!("{path}/status"))
        );
        let statuses = &step.body["status"]["containerStatuses"];
        assert_eq!(
            (&statuses[0]["name"], &statuses[0]["ready"]),
            (&json!("c"), &json!(true))
        );

        let runs = |pod: &mut Value| {
            bound(pod);
            pod["status"]["phase"] = "Running".into();
        };
        assert_eq!(Step::of(&pod(runs)), None);

        let waits = |pod: &mut Value| {
            bound(pod);
            pod["spec"]["containers"][0]["image"] = "webserver:404".into();
        };
        assert_eq!(Step::of(&pod(waits)), None);

        let goes = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = "now".into();
        let step = Step::of(&pod(goes)).unwrap();
        assert_eq!((step.method, step.path.as_str()), ("DELETE", path));
    }
}
