//! What is in the cluster from the beginning: users with rights in a namespace each, an object of each kind and a pod in
//! each namespace, and a node.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::Client;
use testkit::kube::KubeApiServer;
use testkit::wait::eventually;

use crate::clients::stream::{Kubelet, POD, PORT};
use crate::kinds::{ANCHOR, DEFINITIONS, KINDS, USERS, User, definition};
use crate::partly::{CRON_JOBS_BEFORE, cron_job};

const NODE: &str = "node";
const RBAC: &str = "rbac.authorization.k8s.io";
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns when every server knows of all of it.
pub async fn prepare(servers: &[KubeApiServer], kubelet: &Kubelet, upgrades: bool) {
    let admin = servers[0].admin();
    let with_cron_jobs = upgrades && servers[0].abilities().minor() < CRON_JOBS_BEFORE;
    let widgets = definition("soak.test", "widgets", "Widget");
    create(admin, DEFINITIONS, &widgets).await;
    create_node(admin, kubelet).await;
    for user in USERS {
        let namespace = user.namespace;
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        create(admin, "/api/v1/namespaces", &object).await;
        grant(admin, &user).await;
        for kind in &KINDS {
            let object = kind.object(&json!({"name": ANCHOR, "labels": {"owner": user.name}}));
            create_anywhere(servers, &kind.collection(namespace), &object).await;
        }
        if with_cron_jobs {
            let path = format!("/apis/batch/v1beta1/namespaces/{namespace}/cronjobs");
            create(admin, &path, &cron_job()).await;
        }
        let spec = json!({"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]});
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec});
        create(admin, &format!("/api/v1/namespaces/{namespace}/pods"), &pod).await;
    }
    let last = USERS[USERS.len() - 1].namespace;
    for server in servers {
        until_it_knows(server.admin(), last).await;
    }
}

async fn create_node(admin: &Client, kubelet: &Kubelet) {
    let address = json!({"type": "InternalIP", "address": kubelet.address.ip().to_string()});
    let status =
        json!({"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}}});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status});
    create(admin, "/api/v1/nodes", &node).await;
}

/// Everything in its own namespace.
async fn grant(admin: &Client, user: &User) {
    let path = |plural: &str| format!("/apis/{RBAC}/v1/namespaces/{}/{plural}", user.namespace);
    let version = format!("{RBAC}/v1");
    let mut resources: Vec<_> = KINDS.iter().map(|kind| kind.plural).collect();
    resources.push("pods/exec");
    let groups = ["", "autoscaling", "batch", "soak.test"];
    let rule = json!({"apiGroups": groups, "verbs": ["*"], "resources": resources});
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "own"}, "rules": [rule]});
    create(admin, &path("roles"), &role).await;
    let subject = json!({"apiGroup": RBAC, "kind": "User", "name": user.name});
    let role = json!({"apiGroup": RBAC, "kind": "Role", "name": "own"});
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "own"},
        "subjects": [subject], "roleRef": role});
    create(admin, &path("rolebindings"), &binding).await;
}

async fn until_it_knows(admin: &Client, namespace: &str) {
    let path = format!("/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings?resourceVersion=0");
    eventually("rights are known", PATIENCE, async || {
        admin.get(&path).await.text().contains("own")
    })
    .await;
    let path = format!("{}?resourceVersion=0", KINDS[3].collection(namespace));
    eventually("the definition is known", PATIENCE, async || {
        admin.get(&path).await.code() == 200
    })
    .await;
}

async fn create(admin: &Client, path: &str, object: &Value) {
    eventually("an object is created", PATIENCE, async || {
        let answer = admin.request("POST", path, object.to_string()).await;
        matches!(answer.code(), 201 | 409)
            .then_some(())
            .ok_or(answer.text())
    })
    .await;
}

/// At the first server that serves it.
async fn create_anywhere(servers: &[KubeApiServer], path: &str, object: &Value) {
    eventually("an object is created", PATIENCE, async || {
        for server in servers {
            let answer = server
                .admin()
                .request("POST", path, object.to_string())
                .await;
            if matches!(answer.code(), 201 | 409) {
                return true;
            }
        }
        false
    })
    .await;
}
