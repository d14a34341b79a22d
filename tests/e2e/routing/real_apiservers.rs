//! What is asked of one real kube-apiserver, and of two on one etcd: A without the autoscaling group, B with it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{custom_resources, false_404, refusals, true_404};
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, HPAS_IN_DEFAULT, LONG, REROUTED, assert_refused};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::kubectl::Kubectl;
use testkit::pair::Pair;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

pub const LONGER: Duration = Duration::from_secs(90);

pub fn without_autoscaling(options: KubeOptions) -> KubeOptions {
    options.without_group("autoscaling")
}

/// Only B serves autoscaling.
async fn pair() -> Pair {
    Pair::options()
        .without_group_at_a("autoscaling")
        .start()
        .await
}

/// Lets only alice and bob read HorizontalPodAutoscalers.
async fn grant(admin: &Client) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "hpa"},
        "rules": [{"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["get", "list"]}]});
    let subject =
        |name: &str| json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "hpa"}, "subjects": [subject("alice"), subject("bob")],
        "roleRef": {"kind": "ClusterRole", "name": "hpa", "apiGroup": "rbac.authorization.k8s.io"}});
    for (path, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
        let answer = admin.request("POST", &path, object.to_string()).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    }
}

#[tokio::test]
async fn beside_one_apiserver_404s_and_refusals_are_its_own() {
    let ground = Ground::bootstrapped().await;
    let options = ground.kube("cp-a").without_group("autoscaling");
    let server = KubeApiServer::start(options, &ground.pki).await;
    let proxy = Proxy::start(ground.proxy("a", server.addr()).until(Until::Ready)).await;
    true_404::what_one_does_not_have_is_its_own_404(&server, &proxy, &ground).await;
    refusals::form_and_bytes_are_those_of_a_real_kube_apiserver(&server, &proxy, &ground).await;
    drop(proxy);
    false_404::the_words_of_a_real_apiserver_are_understood(&server, &ground).await;
}

#[tokio::test]
async fn the_main_job() {
    let mut pair = pair().await;
    true_404::what_neither_of_two_has_is_their_404(&pair).await;
    while_all_live(&pair).await;
    custom_resources::new_definitions_are_never_denied_once_one_apiserver_serves_them(&mut pair)
        .await;
    through_deaths_and_restarts(pair).await;
}

async fn while_all_live(pair: &Pair) {
    let Pair {
        a,
        b,
        proxy_a,
        ground,
        ..
    } = pair;
    // What discovery says in a mixed cluster (B came first): the legacy group list has lost what B serves.
    assert!(
        !b.admin()
            .get("/apis")
            .await
            .text()
            .contains("\"autoscaling\"")
    );
    assert!(
        b.admin()
            .get("/")
            .await
            .text()
            .contains("/apis/autoscaling/v1")
    );
    assert_eq!(b.admin().get(HPAS).await.code(), 200);
    assert_eq!(a.admin().get(HPAS).await.code(), 404);

    let labels = [
        ("code", "200"),
        ("group", "autoscaling"),
        ("version", "v1"),
        ("resource", "horizontalpodautoscalers"),
    ];
    let before = proxy_a.metric(REROUTED, &labels).await;
    users_are_who_they_are_directly_against_b(pair).await;
    objects_can_be_created_watched_and_deleted(pair).await;
    let twice = |count| count >= before + 2.0;
    proxy_a.until_metric(REROUTED, &labels, twice).await;
    local_requests_are_as_without_a_proxy(a, proxy_a, ground).await;
}

async fn users_are_who_they_are_directly_against_b(pair: &Pair) {
    let Pair {
        b, proxy_a, ground, ..
    } = pair;
    grant(b.admin()).await;
    let dir = ground.dir.path();
    let kubectl = |addr| Kubectl::new(addr, &ground.pki, dir);
    for (name, through, direct, allowed) in [
        (
            "alice",
            kubectl(proxy_a.addr()).cert(&ground.pki, "alice"),
            kubectl(b.addr()).cert(&ground.pki, "alice"),
            true,
        ),
        (
            "bob",
            kubectl(proxy_a.addr()).token("tok-bob"),
            kubectl(b.addr()).token("tok-bob"),
            true,
        ),
        (
            "kubernetes-admin",
            kubectl(proxy_a.addr()).cert(&ground.pki, "admin"),
            kubectl(b.addr()).cert(&ground.pki, "admin"),
            true,
        ),
        (
            "anonymous",
            kubectl(proxy_a.addr()),
            kubectl(b.addr()),
            false,
        ),
    ] {
        // RBAC of a moment ago is effective when it is seen directly.
        eventually(&format!("{name} directly"), LONG, async || {
            direct.output(&["get", "--raw", HPAS]).await.success == allowed
        })
        .await;
        let through = through.output(&["get", "--raw", HPAS]).await;
        assert_eq!(through.success, allowed, "{name}: {}", through.stderr);
        if allowed {
            let list: Value = serde_json::from_str(&through.stdout).unwrap();
            assert_eq!(list["kind"], "HorizontalPodAutoscalerList", "{name}");
        }
    }
    let denied = proxy_a
        .client(&ground.pki)
        .cert("alice")
        .get("/api/v1/secrets")
        .await;
    assert_eq!(denied.code(), 403);
    assert!(denied.text().contains("alice"), "{}", denied.text());
}

async fn objects_can_be_created_watched_and_deleted(pair: &Pair) {
    let Pair {
        proxy_a, ground, ..
    } = pair;
    let admin = proxy_a.client(&ground.pki).cert("admin");
    let mut watch = admin
        .fresh()
        .open(&format!("{HPAS_IN_DEFAULT}?watch=true"))
        .await;
    assert_eq!(watch.status, 200);

    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}}});
    let kubectl =
        Kubectl::new(proxy_a.addr(), &ground.pki, ground.dir.path()).cert(&ground.pki, "admin");
    let created = kubectl
        .output_with_input(
            &["create", "--raw", HPAS_IN_DEFAULT, "-f", "-"],
            &object.to_string(),
        )
        .await;
    assert!(created.success, "{}", created.stderr);
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("web"))
    );

    kubectl
        .run(&["delete", "--raw", &format!("{HPAS_IN_DEFAULT}/web")])
        .await;
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["type"], "DELETED");
}

async fn local_requests_are_as_without_a_proxy(
    a: &KubeApiServer,
    proxy_a: &Proxy,
    ground: &Ground,
) {
    let through = proxy_a.client(&ground.pki).cert("admin");
    for path in [
        "/api/v1/namespaces/default",
        "/apis/apps/v1",
        "/version",
        "/api/v1/namespaces/default/pods/missing",
        "/apis/nosuch.example/v1/things",
        "/api/v1/nosuchthings",
        "/nosuch",
    ] {
        let (through, direct) = (through.get(path).await, a.admin().get(path).await);
        assert_eq!(
            (through.code(), &through.body),
            (direct.code(), &direct.body),
            "{path}"
        );
    }
}

async fn through_deaths_and_restarts(mut pair: Pair) {
    let admin = pair.proxy_a.client(&pair.ground.pki).cert("admin");
    let asking = admin.header("X-Kubernetes-If-Ready", "1");
    // It was frozen.
    eventually("B can be asked", LONG, async || {
        let target = pair.proxy_a.statusz().await["peers"][0]["target"] == true;
        target && admin.get(HPAS).await.code() == 200
    })
    .await;

    pair.b.kill();
    let answer = admin.get(HPAS).await;
    assert_refused(&answer, "");
    eventually(
        "B's proxy tells that its apiserver is gone",
        LONG,
        async || pair.proxy_a.statusz().await["peers"][0]["target"] == false,
    )
    .await;
    assert_refused(&admin.get(HPAS).await, "can be reached");

    pair.a.kill();
    eventually("A is seen to be gone", LONG, async || {
        asking
            .get("/api/v1/namespaces")
            .await
            .header("x-kubernetes-ready")
            == "false"
    })
    .await;
    pair.a.start_again();
    // No answer from before its initialization: each is a 503 of ours, or of an initialized apiserver.
    eventually("A is initialized again", LONGER, async || {
        let answer = asking.get("/api/v1/namespaces").await;
        match (answer.code(), answer.header("x-kubernetes-ready")) {
            (200, "true") => Ok(()),
            (503, "false") => Err("not yet"),
            other => panic!("{other:?}: {}", answer.text()),
        }
    })
    .await;
}
