//! Addresses that are no bare apiserver's: they lead to proxies, to others' servers, or nowhere.

use super::{NOWHERE, beside, peers, registry, until, until_said};
use testkit::balancer::Balancer;
use testkit::cluster::{Ground, HPAS, LONG};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::pki::Pki;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

#[tokio::test]
async fn an_address_that_leads_to_proxies_is_no_server() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let proxy_b = Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)).await;
    let (a, admin) = beside(&[], ground).await;
    let pki = &a.ground.pki;
    let each = |proxies: &[&Proxy]| {
        let servers = proxies.iter();
        servers
            .map(|proxy| (proxy.addr(), proxy.client(pki)))
            .collect::<Vec<_>>()
    };
    // To ourselves, and to any of both.
    for proxies in [&[&a.proxy][..], &[&proxy_b, &a.proxy]] {
        let balancer = Balancer::start(each(proxies)).await;
        eventually("all are ready", LONG, async || {
            balancer.ready() == proxies.len()
        })
        .await;
        registry(&a.ground).await.advertise(balancer.addr()).await;
        until_said(&a, balancer.addr(), "leads to a proxy").await;
        assert_eq!(
            (peers(&a, "bare").await, peers(&a, "target").await),
            (0.0, 1.0)
        );
        assert_eq!(admin.get(NOWHERE).await.code(), 404);
        assert_eq!(admin.get(HPAS).await.code(), 200);
    }
}

#[tokio::test]
async fn only_peers_are_told_that_a_proxy_answers() {
    let ground = Ground::new().await;
    let (a, _) = beside(&[], ground).await;
    let client = a.client();
    let peer = client
        .cert("front-proxy-client")
        .header("X-Remote-User", "system:apiserver");
    let peer = peer.header("X-Remote-Group", "system:masters");
    let name = "x-kube-interop-proxy-server-id";
    for path in ["/version", "/", "/apis", "/api/v1", "/readyz", NOWHERE] {
        assert_eq!(peer.get(path).await.header(name), "a", "{path}");
        for other in [
            client.clone(),
            client.cert("admin"),
            client.token("tok-admin"),
        ] {
            assert_eq!(other.get(path).await.header(name), "", "{path}");
        }
        let rerouted = peer.header("X-Kubernetes-APIServer-Rerouted", "true");
        assert_eq!(rerouted.get(path).await.header(name), "", "{path}");
    }
}

#[tokio::test]
async fn hostile_addresses_get_no_request_and_harm_nothing() {
    let ground = Ground::new().await;
    // Somebody else's certificate.
    let others = tempfile::tempdir().unwrap();
    let others = Pki::new(others.path());
    let thief = Double::start(DoubleOptions::new(others.dir(), v1_20())).await;
    let b = ground.double(v1_20()).await;
    let registry = registry(&ground).await;
    let garbage = [
        "",
        "x",
        "0.0.0.0",
        "169.254.169.254",
        "224.0.0.1",
        "fe80::1",
        "../../live/a",
    ];
    for key in garbage {
        registry.put(&registry.master_lease(key), "garbage").await;
    }
    let huge = "x".repeat(1 << 20);
    registry
        .put(&registry.master_lease(thief.addr().ip()), &huge)
        .await;
    let (a, admin) = beside(&[b.addr()], ground).await;
    until(&admin, HPAS, 200).await;
    until_said(&a, thief.addr(), "no apiserver answers").await;
    assert_eq!(
        thief.requests().len(),
        0,
        "no request before its certificate"
    );
    let undecodable = "kube_interop_proxy_etcd_undecodable_total";
    assert_eq!(a.proxy.metric(undecodable, &[]).await, 8.0);
    let status = a.proxy.statusz().await;
    let named = status["facts"]["undecodable"].as_array().unwrap();
    let keys: Vec<_> = named
        .iter()
        .map(|value| value["key"].as_str().unwrap())
        .collect();
    assert!(garbage.iter().all(|key| keys.contains(key)), "{keys:?}");
}

#[tokio::test]
async fn a_thousand_addresses_are_asked_one_after_the_other_and_harm_nothing() {
    let ground = Ground::new().await;
    let registry = registry(&ground).await;
    let b = ground.double(v1_20()).await;
    // Nobody listens there: 127.255 is no test's.
    for number in 0..1000 {
        let ip = format!("127.255.{}.{}", number / 250, number % 250 + 1);
        registry.put(&registry.master_lease(ip), "{}").await;
    }
    let (a, admin) = beside(&[b.addr()], ground).await;
    eventually("the first ones are asked", LONG, async || {
        let status = a.proxy.statusz().await;
        let said = status["facts"]["advertised"].to_string();
        said.contains("does not answer") && said.contains("there are too many")
    })
    .await;
    assert_eq!(admin.get("/api/v1/pods").await.code(), 200);
    // Any of those that are not asked may serve it.
    assert_eq!(admin.get(NOWHERE).await.code(), 503);
}
