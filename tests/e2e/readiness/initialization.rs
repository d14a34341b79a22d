//! A real kube-apiserver v1.20.2 that is killed and restarted under load. Before it is initialized it knows no roles
//! and no custom resources. Clients that sent the header, and with `Always` all clients, never see its answers from
//! that time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kubectl::Kubectl;
use testkit::node::Node;
use testkit::process::Process;
use testkit::steady::Steady;
use testkit::streaming::Response;
use testkit::wait::eventually;

const LONGER: Duration = Duration::from_secs(120);
/// Some answers of each client fall into each step of a start.
const EVERY: Duration = Duration::from_millis(100);
const MOST: usize = 20_000;
const NAMESPACES: &str = "/api/v1/namespaces";
const WIDGETS: &str = "/apis/example.test/v1/widgets";
const TOLD: &str = "x-kubernetes-ready";
/// Ten times this is what client-go waits: longer than a start takes.
const RETRY_AFTER: &str = "6";

/// With roles that let alice list namespaces, and a custom resource. Retries within the patience of client-go.
async fn prepared() -> Node {
    let options = Node::options().proxy(|options| {
        options
            .set("apiServer.probeInterval", "500ms")
            .set("ifReady.retryAfterSeconds", RETRY_AFTER)
    });
    let node = options.start_on(Ground::new().await).await;
    prepare(&node).await;
    node
}

fn client_of(node: &Node, name: &str) -> Client {
    node.client().cert(name).timeout(LONG)
}

fn kubectl(node: &Node) -> Kubectl {
    let pki = &node.ground.pki;
    Kubectl::new(node.proxy.addr(), pki, node.ground.dir.path()).cert(pki, "admin")
}

async fn prepare(node: &Node) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}});
    let widgets = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.test"},
        "spec": {"group": "example.test", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (path, object) in [
        (format!("{rbac}/clusterroles"), role),
        (format!("{rbac}/clusterrolebindings"), binding),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            widgets,
        ),
    ] {
        let admin = node.server.admin();
        let answer = admin.request("POST", &path, object.to_string()).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    }
    for (name, path) in [("alice", NAMESPACES), ("admin", WIDGETS)] {
        let client = client_of(node, name);
        eventually("roles and definitions are in force", LONG, async || {
            let answer = client.get(path).await;
            (answer.code() == 200).then_some(()).ok_or(answer.text())
        })
        .await;
    }
}

/// Asks for what an apiserver answers wrongly before it is initialized. The answers to be had: 200, and our 503.
fn load(node: &Node, asking: bool) -> Vec<Steady> {
    let mut load = Vec::new();
    for (name, path) in [
        ("alice", NAMESPACES),
        ("admin", WIDGETS),
        ("admin", "/apis"),
    ] {
        let client = client_of(node, name);
        let client = match asking {
            true => client.header("X-Kubernetes-If-Ready", "1"),
            false => client,
        };
        for client in [client.http1(), client.http2()] {
            load.push(Steady::start(path, EVERY, MOST, move || {
                let client = client.clone();
                async move { judge(&client, path, asking).await }
            }));
        }
    }
    load
}

/// Killed in the middle of the load, seen to be gone, started again, and initialized.
async fn die_and_come_back(node: &mut Node) {
    let probing = client_of(node, "admin").header("X-Kubernetes-If-Ready", "1");
    node.server.kill();
    eventually("it is seen to be gone", LONG, async || {
        probing.get(NAMESPACES).await.header(TOLD) == "false"
    })
    .await;
    node.server.start_again();
    eventually("it is initialized again", LONGER, async || {
        let answer = probing.get(NAMESPACES).await;
        (answer.code(), answer.header(TOLD)) == (200, "true")
    })
    .await;
}

async fn create_widget(kubectl: &Kubectl, name: &str) {
    let widget =
        json!({"apiVersion": "example.test/v1", "kind": "Widget", "metadata": {"name": name}});
    let created = kubectl
        .output_with_input(&["create", "-f", "-"], &widget.to_string())
        .await;
    assert!(created.success, "{}", created.stderr);
}

/// One answer: 200, or our 503 that says when to come back; and whether it is ready only to those that ask. Later versions
/// may turn it away themselves.
async fn judge(client: &Client, path: &str, asking: bool) -> Result<(), String> {
    let answer = client
        .try_open("GET", path, "")
        .await
        .map_err(|error| format!("{error:#}"))?;
    let began = (answer.status.as_u16(), answer.header(TOLD).to_owned());
    let answer = match answer.collect().await {
        Ok(answer) => answer,
        // Killed in the middle of an answer, which nothing can mend.
        Err(_) if began == (200, if asking { "true" } else { "" }.to_owned()) => return Ok(()),
        Err(error) => return Err(format!("{began:?}: {error:#}")),
    };
    let told = answer.header(TOLD);
    let turned_away = is_turned_away(&answer);
    let fine = match answer.code() {
        200 => told == if asking { "true" } else { "" },
        _ if turned_away => told == if asking { "true" } else { "" },
        503 => {
            answer.header("retry-after") == RETRY_AFTER
                && told.is_empty() != asking
                && answer.json()["kind"] == "Status"
        }
        _ => false,
    };
    let said = || format!("{} {told:?} {}", answer.status, answer.text());
    fine.then_some(()).ok_or_else(said)
}

/// What an initialized apiserver of a later version may say, and client-go asks again: that it is ending, or that what it
/// keeps of this resource is being read. Nobody else could answer.
fn is_turned_away(answer: &Response) -> bool {
    let said = ["apiserver is shutting down", "storage is (re)initializing"];
    matches!(answer.code(), 429 | 503)
        && !answer.header("retry-after").is_empty()
        && said.contains(&answer.json()["message"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn who_asks_never_sees_an_answer_from_before_initialization_and_with_always_nobody() {
    let mut node = prepared().await;
    who_asks_never_sees_one(&mut node).await;
    let (enforce, always) = ("ifReady.enforce", "Always");
    node.proxy.reconfigure(enforce, always);
    node.proxy.until_setting(enforce, always).await;
    with_always_nobody_sees_one_and_clients_of_kubernetes_recover(&mut node).await;
}

async fn who_asks_never_sees_one(node: &mut Node) {
    let asking = load(node, true);
    // Those that did not ask are served by what there is.
    let codes = Arc::new(Mutex::new(BTreeSet::new()));
    let client = client_of(node, "admin");
    let seen = codes.clone();
    let others = Steady::start("without asking", EVERY, MOST, move || {
        let (client, seen) = (client.clone(), seen.clone());
        async move {
            let answer = client
                .try_open("GET", WIDGETS, "")
                .await
                .map_err(|error| format!("{error:#}"))?;
            seen.lock().unwrap().insert(answer.status.as_u16());
            let silent = !answer.headers.contains_key(TOLD);
            silent
                .then_some(())
                .ok_or_else(|| format!("{:?}", answer.headers))
        }
    });
    die_and_come_back(node).await;
    // And one that ends in good order.
    node.server.restart().await;
    let probing = client_of(node, "admin").header("X-Kubernetes-If-Ready", "1");
    eventually("it is initialized again", LONGER, async || {
        probing.get(NAMESPACES).await.code() == 200
    })
    .await;
    for steady in asking {
        steady.stop().await;
    }
    others.stop().await;
    let codes = codes.lock().unwrap();
    assert!(codes.contains(&200) && codes.contains(&503), "{codes:?}");
}

async fn with_always_nobody_sees_one_and_clients_of_kubernetes_recover(node: &mut Node) {
    let kubectl = kubectl(node);
    create_widget(&kubectl, "held").await;
    let load: Vec<_> = [true, false]
        .into_iter()
        .flat_map(|asking| load(node, asking))
        .collect();
    // Watches when the apiserver dies, and is to go on afterwards.
    let waiting = {
        let kubectl = kubectl.clone();
        tokio::spawn(async move {
            let wait = ["wait", "--for=delete", "widget/held", "--timeout=5m"];
            kubectl.output(&wait).await
        })
    };
    let watched = || async { node.server.watches(&["widgets"]).await > 0 };
    eventually("kubectl waits", LONG, watched).await;
    node.server.kill();
    eventually("it is seen to be gone", LONG, async || {
        client_of(node, "admin").get(WIDGETS).await.code() == 503
    })
    .await;
    // Begun while nobody is there.
    let log = node.ground.dir.path().join("watching.log");
    let mut watching = kubectl.command(&["get", "widgets", "-w", "-o", "name"]);
    let _watching = Process::spawn("kubectl", &mut watching, &log).ok().unwrap();
    let getting = {
        let kubectl = kubectl.clone();
        tokio::spawn(async move { kubectl.output(&["get", "widgets,namespaces"]).await })
    };
    let lines = || std::fs::read_to_string(&log).unwrap();
    node.server.start_again();

    let got = getting.await.unwrap();
    assert!(got.success && got.stdout.contains("kube-system"), "{got:?}");
    eventually("kubectl get -w shows what is there", LONGER, async || {
        let lines = lines();
        lines.contains("/held").then_some(()).ok_or(lines)
    })
    .await;
    create_widget(&kubectl, "later").await;
    eventually("and what comes", LONG, async || {
        let lines = lines();
        lines.contains("/later").then_some(()).ok_or(lines)
    })
    .await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    kubectl.run(&["delete", "widget", "held"]).await;
    let waited = waiting.await.unwrap();
    assert!(waited.success, "{waited:?}");
    for steady in load {
        steady.stop().await;
    }
}
