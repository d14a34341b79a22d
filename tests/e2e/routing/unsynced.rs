//! A proxy whose etcd never answers.

use testkit::addr::Loopback;
use testkit::cluster::{HPAS, assert_refused};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::pki::Pki;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

pub async fn without_etcd(
    unsynced: &str,
) -> (
    tempfile::TempDir,
    Pki,
    Double,
    Proxy,
    tokio::net::TcpListener,
) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let double = Double::start(DoubleOptions::new(pki.dir(), v1_20())).await;
    // Accepts connections and never says a word.
    let silent = tokio::net::TcpListener::bind(Loopback::new().socket(2379))
        .await
        .unwrap();
    let endpoint = format!("https://{}", silent.local_addr().unwrap());
    let options = ProxyOptions::new(
        testkit::cluster::binary(),
        dir.path(),
        &pki,
        double.addr(),
        &endpoint,
    )
    .set("rerouting.unsynced", unsynced);
    let proxy = Proxy::start(options.until(Until::Live)).await;
    eventually(
        "the apiserver is seen",
        testkit::cluster::LONG,
        async || proxy.statusz().await["server"]["initialized"] == true,
    )
    .await;
    (dir, pki, double, proxy, silent)
}

#[tokio::test]
async fn resources_and_their_discovery_are_refused_and_the_rest_is_served() {
    let (_dir, pki, double, proxy, _silent) = without_etcd("Reject").await;
    let admin = proxy.client(&pki).cert("admin");
    // A group that only peers serve would be missing in these documents, as if nobody served it.
    let documents = ["/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1"];
    for path in ["/api/v1/pods", HPAS].into_iter().chain(documents) {
        assert_refused(&admin.get(path).await, "not known yet");
    }
    assert_eq!(double.count("/api/v1/pods"), 0);
    for path in ["/version", "/openapi/v2"] {
        assert_eq!(admin.get(path).await.code(), 200, "{path}");
    }
    // Nobody can know that this server exists.
    assert_refused(&admin.get("/readyz").await, "[-]published failed");
    let readyz = proxy.admin_get("/readyz?verbose").await;
    assert_eq!(readyz.code(), 503);
    let text = readyz.text();
    assert!(text.contains("[-]etcd-synced failed"), "{text}");
    assert!(text.contains("[-]published failed"), "{text}");
    assert!(text.contains("[+]apiserver-initialized ok"), "{text}");
    assert_eq!(
        proxy.metric("kube_interop_proxy_etcd_synced", &[]).await,
        0.0
    );
}

#[tokio::test]
async fn serve_local_serves_what_the_local_server_has() {
    let (_dir, pki, _double, proxy, _silent) = without_etcd("ServeLocal").await;
    let admin = proxy.client(&pki).cert("admin");
    for path in ["/api/v1/pods", "/apis", "/api/v1"] {
        assert_eq!(admin.get(path).await.code(), 200, "{path}");
    }
    assert_refused(
        &admin.get("/apis/no.such.group/v1/things").await,
        "not known at the moment",
    );
}
