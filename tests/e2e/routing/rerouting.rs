//! Requests that the local apiserver cannot serve, served through a peer (KEP-4020).

use serde_json::json;

use testkit::cluster::{Cluster, HPAS, HPAS_IN_DEFAULT, LONG, REROUTED, assert_refused};
use testkit::double::ServedResource;
use testkit::wait::eventually;

#[tokio::test]
async fn what_only_the_peer_serves_is_served_through_it() {
    for cluster in [Cluster::new().await, Cluster::modern().await] {
        let direct = testkit::client::Client::new(cluster.a.addr(), &cluster.ground.pki);
        assert_eq!(direct.cert("admin").get(HPAS).await.code(), 404);

        let answer = cluster.client().cert("admin").get(HPAS).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
        assert_eq!(answer.json()["kind"], "HorizontalPodAutoscalerList");

        let labels = [
            ("code", "200"),
            ("group", "autoscaling"),
            ("version", "v1"),
            ("resource", "horizontalpodautoscalers"),
        ];
        let once = |count| count == 1.0;
        cluster.proxy_a.until_metric(REROUTED, &labels, once).await;
        assert_eq!(cluster.proxy_b.metric(REROUTED, &[]).await, 0.0);
    }
}

#[tokio::test]
async fn requests_are_served_where_the_resource_is() {
    let cluster = Cluster::new().await;
    what_both_serve_stays_local(&cluster).await;
    a_missing_object_of_a_rerouted_resource_is_a_404_that_names_it(&cluster).await;
    the_user_is_the_same_as_directly(&cluster).await;
    what_the_apiservers_see_of_the_hop_headers(&cluster).await;
    a_rerouted_request_is_never_rerouted_again(&cluster).await;
    what_nobody_serves_is_the_local_servers_own_404(&cluster).await;
    a_group_that_the_peer_gains_is_routed_to_it(&cluster).await;
}

async fn what_both_serve_stays_local(cluster: &Cluster) {
    let answer = cluster.client().cert("admin").get("/api/v1/pods").await;
    assert_eq!(answer.code(), 200);
    assert_eq!(cluster.a.count("/api/v1/pods"), 1);
    assert_eq!(cluster.b.count("/api/v1/pods"), 0);
    assert_eq!(cluster.proxy_a.metric(REROUTED, &[]).await, 0.0);
}

async fn the_user_is_the_same_as_directly(cluster: &Cluster) {
    cluster.b.allow("alice", HPAS);
    for (client, user, groups) in [
        (cluster.client().cert("alice"), "alice", vec!["devs", "qa"]),
        (
            cluster.client().token("tok-admin"),
            "token-admin",
            vec!["system:masters"],
        ),
    ] {
        cluster.b.take_requests();
        let answer = client.get(HPAS).await;
        assert_eq!(answer.code(), 200, "{user}: {}", answer.text());
        let seen = &cluster.b.requests()[..];
        let request = seen
            .iter()
            .find(|request| request.path == HPAS)
            .expect("at B");
        assert_eq!(request.user, user);
        for group in groups {
            assert!(
                request.groups.iter().any(|seen| seen == group),
                "{user}: {:?}",
                request.groups
            );
        }
    }
    let bob = cluster.client().token("tok-bob").get(HPAS).await;
    assert_eq!(bob.code(), 403, "{}", bob.text());
    assert!(bob.text().contains("bob"), "{}", bob.text());
    let nobody = cluster.client().get(HPAS).await;
    assert_eq!(nobody.code(), 403);
    assert!(
        nobody.text().contains("system:anonymous"),
        "{}",
        nobody.text()
    );
    let wrong = cluster.client().token("tok-wrong").get(HPAS).await;
    assert_eq!(wrong.code(), 401);
}

async fn what_the_apiservers_see_of_the_hop_headers(cluster: &Cluster) {
    cluster.a.take_requests();
    cluster.b.take_requests();
    let admin = cluster.client().cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);
    assert_eq!(admin.get("/api/v1/pods").await.code(), 200);
    let rerouted = cluster.b.requests();
    let rerouted = rerouted
        .iter()
        .find(|request| request.path == HPAS)
        .unwrap();
    assert_eq!(
        rerouted.header_values("x-kubernetes-peer-proxied"),
        ["true"]
    );
    assert!(
        !rerouted
            .headers
            .contains_key("x-kubernetes-apiserver-rerouted")
    );
    let local = cluster.a.requests();
    let local = local
        .iter()
        .find(|request| request.path == "/api/v1/pods")
        .unwrap();
    assert!(!local.headers.contains_key("x-kubernetes-peer-proxied"));
    assert!(
        !local
            .headers
            .contains_key("x-kubernetes-apiserver-rerouted")
    );
}

async fn a_rerouted_request_is_never_rerouted_again(cluster: &Cluster) {
    cluster.a.take_requests();
    let peer = cluster.client().cert("front-proxy-client");
    for header in [
        "X-Kubernetes-APIServer-Rerouted",
        "X-Kubernetes-Peer-Proxied",
    ] {
        cluster.b.take_requests();
        let answer = peer
            .header(header, "true")
            .header("X-Remote-User", "alice")
            .header("X-Remote-Group", "system:masters")
            .get(HPAS)
            .await;
        assert_refused(&answer, "not known at the moment");
        assert_eq!(cluster.b.count(HPAS), 0, "{header}");
        assert_eq!(cluster.a.count(HPAS), 1, "{header}");
        cluster.a.take_requests();
    }
}

#[tokio::test]
async fn a_client_cannot_forge_the_mark_of_a_rerouted_request() {
    let cluster = Cluster::new().await;
    for client in [
        cluster.client().cert("admin"),
        cluster.client().token("tok-admin"),
        cluster.client().cert("not-a-peer").token("tok-admin"),
    ] {
        let forged = client
            .header("X-Kubernetes-APIServer-Rerouted", "true")
            .header("X-Kubernetes-Peer-Proxied", "true");
        assert_eq!(forged.get(HPAS).await.code(), 200);
    }
}

#[tokio::test]
async fn the_peers_death_is_a_503_and_never_a_404() {
    let mut cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);

    cluster.proxy_b.kill();
    cluster.b.stop().await;
    let while_live = admin.get(HPAS).await;
    assert_refused(
        &while_live,
        "Error while proxying request to destination apiserver",
    );

    eventually("B's live key expires", LONG, async || {
        cluster.proxy_a.statusz().await["peers"][0]["live"] == false
    })
    .await;
    let afterwards = admin.get(HPAS).await;
    assert_refused(
        &afterwards,
        "no apiserver that serves the requested resource",
    );
    assert_eq!(admin.get("/api/v1/pods").await.code(), 200);
    assert_eq!(
        cluster.a.count(HPAS),
        0,
        "A is not asked for what it has not"
    );
}

#[tokio::test]
async fn a_write_that_may_have_been_executed_is_not_offered_for_a_retry() {
    let cluster = Cluster::new().await;
    cluster
        .b
        .set_fault(HPAS_IN_DEFAULT, Some(testkit::double::Fault::Reset));
    let admin = cluster.client().cert("admin");
    let answer = admin
        .request("POST", HPAS_IN_DEFAULT, r#"{"metadata":{"name":"x"}}"#)
        .await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert!(!answer.headers.contains_key("retry-after"));
    assert_eq!(cluster.b.count(HPAS_IN_DEFAULT), 1, "a write is sent once");
}

async fn what_nobody_serves_is_the_local_servers_own_404(cluster: &Cluster) {
    let admin = cluster.client().cert("admin");
    for path in [
        "/apis/no.such.group/v1/things",
        "/api/v1/nosuchthings",
        "/api/v1/namespaces/default/pods/x/nosuch",
    ] {
        let direct = testkit::client::Client::new(cluster.a.addr(), &cluster.ground.pki);
        let (through, direct) = (admin.get(path).await, direct.cert("admin").get(path).await);
        assert_eq!((through.code(), direct.code()), (404, 404), "{path}");
        assert_eq!(through.body, direct.body, "{path}");
    }
}

async fn a_missing_object_of_a_rerouted_resource_is_a_404_that_names_it(cluster: &Cluster) {
    let path = format!("{HPAS_IN_DEFAULT}/missing");
    let answer = cluster.client().cert("admin").get(&path).await;
    assert_eq!(answer.code(), 404);
    assert_eq!(answer.json()["details"]["name"], "missing");
    let (labels, once) = ([("code", "404")], |count| count == 1.0);
    cluster.proxy_a.until_metric(REROUTED, &labels, once).await;
}

#[tokio::test]
async fn a_false_404_of_the_peer_is_not_passed_on() {
    let cluster = Cluster::new().await;
    cluster.b.remove_group("autoscaling");
    let answer = cluster.client().cert("admin").get(HPAS).await;
    assert_refused(&answer, "not known at the moment");
    assert_eq!(cluster.b.count(HPAS), 1);
}

#[tokio::test]
async fn create_watch_and_delete_go_through_both_proxies() {
    let cluster = Cluster::new().await;
    for client in ["h2", "http/1.1"] {
        let admin = cluster.client().cert("admin");
        let admin = if client == "h2" {
            admin.http2()
        } else {
            admin.http1()
        };
        let watched = format!("{HPAS_IN_DEFAULT}?watch=true&allowWatchBookmarks=true");
        // Its header must be there while nothing has happened yet.
        let mut watch = admin.fresh().open(&watched).await;
        assert_eq!(watch.status, 200, "{client}");

        let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "default"}});
        let created = admin
            .request("POST", HPAS_IN_DEFAULT, object.to_string())
            .await;
        assert_eq!(created.code(), 201, "{}", created.text());
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!("web"))
        );

        let path = format!("{HPAS_IN_DEFAULT}/web");
        assert_eq!(admin.get(&path).await.code(), 200);
        assert_eq!(admin.request("DELETE", &path, "").await.code(), 200);
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["type"], "DELETED", "{client}");
        assert_eq!(
            cluster
                .proxy_a
                .metric("kube_interop_proxy_long_running_requests", &[])
                .await,
            1.0
        );

        drop(watch);
        eventually("the watch ends at both proxies", LONG, async || {
            cluster
                .proxy_a
                .metric("kube_interop_proxy_long_running_requests", &[])
                .await
                == 0.0
                && cluster
                    .proxy_b
                    .metric("kube_interop_proxy_long_running_requests", &[])
                    .await
                    == 0.0
        })
        .await;
    }
}

async fn a_group_that_the_peer_gains_is_routed_to_it(cluster: &Cluster) {
    cluster
        .b
        .add_resource(ServedResource::new("late.example", "v1", "things", "Thing"));
    cluster.until_a_knows("b", "late.example").await;
    let answer = cluster
        .client()
        .cert("admin")
        .get("/apis/late.example/v1/things")
        .await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
}
