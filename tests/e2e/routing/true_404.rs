//! What no server serves is answered with the apiserver's own 404, whatever the verb, and costs no error budget.

use std::time::Duration;

use serde_json::json;

use testkit::client::Client;
use testkit::cluster::{Cluster, HPAS_IN_DEFAULT, LONG, Single, assert_refused};
use testkit::double::{Fault, ScriptedAnswer};
use testkit::kube::KubeApiServer;
use testkit::pair::Pair;
use testkit::proxy::Proxy;
use testkit::streaming::Response;
use testkit::wait::eventually;

use super::real_apiservers::LONGER;
use testkit::cluster::Ground;

const REFUSALS: &str = "kube_interop_proxy_refusals_total";
const FAILOVERS: &str = "kube_interop_proxy_failovers_total";
const VERBS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// They cannot be paths of a resource: of another scope, or longer than a subresource.
const IMPOSSIBLE: [&str; 13] = [
    "/api/v1/pods/x",
    "/api/v1/pods/x/status",
    "/api/v1/pods/x?watch=true",
    "/api/v1/watch/pods/x",
    "/api/v1/namespaces/default/nodes",
    "/api/v1/namespaces/default/nodes/x",
    "/api/v1/namespaces/default/namespaces/x",
    "/api/v1/watch/namespaces/default/nodes",
    "/api/v1/namespaces/default/pods/x/status/y",
    "/api/v1/nodes/x/status/y/z",
    "/apis/apps/v1/deployments/x/scale",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/clusterroles",
    "/apis/apps/v1/namespaces/default/deployments/x/scale/y",
];

/// They could be, and no apiserver has them: what can only be created is never read.
const UNSERVED: [&str; 5] = [
    "/apis/authentication.k8s.io/v1/tokenreviews/x",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x",
    "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews/x",
    "/api/v1/bindings",
    "/api/v1/watch/namespaces/default/pods/x/status",
];

#[track_caller]
fn assert_same(what: &str, through: &Response, direct: &Response) {
    assert_eq!(direct.code(), 404, "{what}: {}", direct.text());
    assert_eq!(
        (through.code(), through.text()),
        (404, direct.text()),
        "{what}"
    );
    let content_type = "content-type";
    assert_eq!(
        through.header(content_type),
        direct.header(content_type),
        "{what}"
    );
    assert_eq!(through.header(MARK), "", "{what}");
}

/// What counts in docs/slos.md.
async fn assert_no_budget_is_used(proxy: &Proxy) {
    for reason in [
        "unsynced",
        "unreachable",
        "failed",
        "failed_maybe_executed",
        "terminating",
    ] {
        let refused = proxy.metric(REFUSALS, &[("reason", reason)]).await;
        assert_eq!(refused, 0.0, "{reason}");
    }
}

async fn impossible_paths_are_404_at_once(proxy: &Proxy, through: &Client, direct: &Client) {
    let counted = async || {
        [
            proxy.metric(REFUSALS, &[]).await,
            proxy.metric(FAILOVERS, &[]).await,
        ]
    };
    let before = counted().await;
    for path in IMPOSSIBLE {
        for verb in VERBS {
            let said = direct.request(verb, path, "").await;
            let passed = through.request(verb, path, "").await;
            assert_same(&format!("{verb} {path}"), &passed, &said);
        }
    }
    assert_eq!(
        counted().await,
        before,
        "not one was refused, or asked of another server"
    );
}

/// Nothing but 503 with `Retry-After` until every server's discovery was read again, and 404 from then on.
async fn is_404_after_another_look(through: &Client, direct: &Client, path: &str) {
    let said = direct.get(path).await;
    eventually(&format!("{path} is a 404"), LONGER, async || {
        let answer = through.get(path).await;
        match answer.code() {
            503 => assert_refused(&answer, "not known at the moment"),
            _ => assert_same(path, &answer, &said),
        }
        answer.code() == 404
    })
    .await;
    for verb in VERBS {
        let (said, passed) = (
            direct.request(verb, path, "").await,
            through.request(verb, path, "").await,
        );
        assert_same(&format!("{verb} {path}"), &passed, &said);
    }
}

/// `proxy` has done nothing else yet.
pub async fn what_one_does_not_have_is_its_own_404(
    server: &KubeApiServer,
    proxy: &Proxy,
    ground: &Ground,
) {
    let through = proxy.client(&ground.pki).cert("admin");
    impossible_paths_are_404_at_once(proxy, &through, server.admin()).await;
    for path in UNSERVED {
        is_404_after_another_look(&through, server.admin(), path).await;
    }
    // Nor can anybody make it grow.
    let doubtful = [("reason", "doubtful_not_found")];
    let before = proxy.metric(REFUSALS, &doubtful).await;
    for path in UNSERVED.repeat(20) {
        assert_eq!(through.get(path).await.code(), 404, "{path}");
    }
    assert_eq!(proxy.metric(REFUSALS, &doubtful).await, before);
    assert_no_budget_is_used(proxy).await;
}

/// Only B serves autoscaling, and A's proxy has done nothing else yet.
pub async fn what_neither_of_two_has_is_their_404(pair: &Pair) {
    let Pair {
        a,
        b,
        proxy_a: proxy,
        ground,
        ..
    } = pair;
    let through = proxy.client(&ground.pki).cert("admin");
    impossible_paths_are_404_at_once(proxy, &through, a.admin()).await;
    for path in UNSERVED {
        is_404_after_another_look(&through, a.admin(), path).await;
    }
    // Only B has the resource, and so knows its scope.
    for path in [
        "/apis/autoscaling/v1/horizontalpodautoscalers/x".to_owned(),
        format!("{HPAS_IN_DEFAULT}/x/status/y"),
    ] {
        for verb in VERBS {
            let (said, passed) = (
                b.admin().request(verb, &path, "").await,
                through.request(verb, &path, "").await,
            );
            assert_same(&format!("{verb} {path}"), &passed, &said);
        }
    }
    assert_no_budget_is_used(proxy).await;
    // What is there is still there.
    assert_eq!(through.get(HPAS_IN_DEFAULT).await.code(), 200);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "no"}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let made = through.request("POST", reviews, review.to_string()).await;
    assert_eq!(made.code(), 201, "{}", made.text());
}

/// What the proxy of a peer says of a 404 that is not in doubt.
const MARK: &str = "x-kube-interop-proxy-not-executed";

pub fn denied() -> Option<Fault> {
    let answer = ScriptedAnswer::new(404)
        .header("content-type", "text/plain; charset=utf-8")
        .header(MARK, "resource")
        .body("404 page not found\n");
    Some(Fault::Answer(Box::new(answer)))
}

/// Asks for a while: nothing but 503.
async fn stays_in_doubt(client: &Client) {
    for _ in 0..20 {
        assert_refused(&client.get(HPAS_IN_DEFAULT).await, "");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn until_404(client: &Client) {
    eventually("it is a 404", LONG, async || {
        let answer = client.get(HPAS_IN_DEFAULT).await;
        assert!(matches!(answer.code(), 404 | 503), "{}", answer.text());
        assert_eq!(answer.header(MARK), "", "it is for proxies only");
        answer.code() == 404
    })
    .await;
}

#[tokio::test]
async fn what_is_listed_and_denied_is_a_404_only_after_another_look() {
    let world = Single::new().await;
    let [client, _] = world.admins();
    let unreadable = || Some(Fault::Status(500, None));
    world.double.set_fault("/version", unreadable());
    world.double.set_fault(HPAS_IN_DEFAULT, denied());
    stays_in_doubt(&client).await;
    world.double.set_fault("/version", None);
    until_404(&client).await;
    // Another form of path is another question.
    world.double.set_fault("/version", unreadable());
    let named = format!("{HPAS_IN_DEFAULT}/x");
    assert_refused(&client.get(&named).await, "not known");
    assert_eq!(client.get(HPAS_IN_DEFAULT).await.code(), 404);
}

#[tokio::test]
async fn what_one_server_denies_is_a_404_only_when_all_that_list_it_deny_it() {
    let cluster = Cluster::new().await;
    let client = cluster.client().cert("admin");
    // Its apiserver, too, says that it is not in doubt.
    cluster
        .b
        .set_fault("/version", Some(Fault::Status(500, None)));
    cluster.b.set_fault(HPAS_IN_DEFAULT, denied());
    stays_in_doubt(&client).await;
    cluster.b.set_fault("/version", None);
    until_404(&client).await;
    // A has it too, from now on.
    cluster.a.change_preset(|_| testkit::double::v1_20());
    eventually("A serves it", LONG, async || {
        client.get(HPAS_IN_DEFAULT).await.code() == 200
    })
    .await;
    cluster.a.set_fault(HPAS_IN_DEFAULT, denied());
    until_404(&client).await;
    cluster.b.set_fault(HPAS_IN_DEFAULT, None);
    assert_eq!(client.get(HPAS_IN_DEFAULT).await.code(), 200);
    cluster.b.set_fault(HPAS_IN_DEFAULT, Some(Fault::Reset));
    assert_refused(&client.get(HPAS_IN_DEFAULT).await, "Error while proxying");
}
