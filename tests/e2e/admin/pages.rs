//! The operator's port.

use testkit::cluster::Cluster;

#[tokio::test]
async fn pages_say_what_is_the_case() {
    let cluster = Cluster::new().await;
    assert_eq!(cluster.proxy_a.admin_get("/livez").await.text(), "ok\n");
    assert_eq!(cluster.proxy_a.admin_get("/readyz").await.text(), "ok\n");
    let verbose = cluster.proxy_a.admin_get("/readyz?verbose").await.text();
    assert!(
        verbose.contains("[+]etcd-synced ok") && verbose.ends_with("readyz check passed\n"),
        "{verbose}"
    );
    assert_eq!(cluster.proxy_a.admin_get("/nosuch").await.code(), 404);

    let status = cluster.proxy_a.statusz().await;
    assert_eq!(status["server"]["id"], "a");
    assert_eq!(status["server"]["ready"], true);
    assert_eq!(status["etcd"]["synced"], true);
    assert_eq!(status["peers"][0]["id"], "b");
    assert_eq!(status["peers"][0]["target"], true);

    let metrics = cluster.proxy_a.admin_get("/metrics").await;
    assert!(
        metrics
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    for name in [
        "kube_interop_proxy_build_info",
        "kube_interop_proxy_etcd_state_age_seconds",
        "kube_interop_proxy_own_duration_seconds",
    ] {
        assert!(metrics.text().contains(name), "{name}");
    }
}

#[tokio::test]
async fn labels_do_not_grow_with_what_clients_ask_for() {
    let cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    let lines = async || {
        cluster
            .proxy_a
            .admin_get("/metrics")
            .await
            .text()
            .lines()
            .count()
    };
    admin.get("/apis/invented0/v1/things").await;
    admin.request("METHOD0", "/api/v1/pods", "").await;
    let before = lines().await;
    for index in 1..50 {
        admin.get(&format!("/apis/invented{index}/v1/things")).await;
        admin
            .request(&format!("METHOD{index}"), "/api/v1/pods", "")
            .await;
    }
    let after = lines().await;
    assert!(after <= before + 4, "{before} lines became {after}");
}
