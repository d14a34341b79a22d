//! Tests of the test kit.

use std::time::Duration;

use testkit::client::Client;
use testkit::etcd::Etcd;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::pki::Pki;
use testkit::wait::eventually;

#[tokio::test]
async fn etcd_asks_for_client_certificates_and_keeps_its_data_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let mut etcd = Etcd::start(dir.path(), &pki).await;
    etcd.client()
        .await
        .put("/key", "value", None)
        .await
        .unwrap();
    etcd.restart().await;
    let kept = etcd.client().await.get("/key", None).await.unwrap();
    assert_eq!(kept.kvs()[0].value(), b"value");

    let addr = etcd
        .endpoint()
        .trim_start_matches("https://")
        .parse()
        .unwrap();
    let nobody = Client::new(addr, &pki)
        .trusting("etcd-ca")
        .server_name("localhost");
    assert!(nobody.try_get("/version").await.is_err());
    let somebody = nobody.cert("etcd-client");
    assert!(somebody.get("/version").await.text().contains("etcdserver"));
}

#[tokio::test]
async fn two_real_apiservers_on_one_etcd_serve_different_groups() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let etcd = Etcd::start(dir.path(), &pki).await;
    let with = KubeOptions::new(dir.path(), &pki, &etcd, "cp-a");
    let without = KubeOptions::new(dir.path(), &pki, &etcd, "cp-b")
        .without_group("autoscaling")
        .feature_gate("APIServerIdentity=true");
    let (with, mut without) = tokio::join!(
        KubeApiServer::start(with, &pki),
        KubeApiServer::start(without, &pki)
    );

    assert_eq!(with.admin().get("/apis/autoscaling/v1").await.code(), 200);
    let missing = without.admin().get("/apis/autoscaling/v1").await;
    assert_eq!(
        (missing.code(), missing.text().as_str()),
        (404, "404 page not found\n")
    );

    eventually("an identity lease", Duration::from_secs(10), async || {
        !etcd.below("/registry/leases/kube-system/").await.is_empty()
    })
    .await;

    without.restart().await;
    assert_eq!(
        without
            .admin()
            .get("/api/v1/namespaces/default")
            .await
            .code(),
        200
    );
}
