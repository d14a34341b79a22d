//! Proxies with a wrong address: 503, and exactly one hop.

use std::time::Duration;

use testkit::addr::Loopback;
use testkit::cluster::{Ground, HPAS, LONG, assert_refused, lists};
use testkit::double::{Double, v1_20};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::{eventually, holds};

async fn doubles() -> (Ground, Double, Double) {
    let ground = Ground::new().await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let b = ground.double(v1_20()).await;
    (ground, a, b)
}

fn advertising(options: ProxyOptions, serving: &Loopback, advertised: &Loopback) -> ProxyOptions {
    options
        .set(
            "serving.bindAddress",
            &format!("\"{}\"", serving.socket(6443)),
        )
        .set(
            "peer.advertiseAddress",
            &format!("\"{}\"", advertised.socket(6443)),
        )
        .until(Until::Ready)
}

#[tokio::test]
async fn two_proxies_that_advertise_each_others_address() {
    let (ground, a, b) = doubles().await;
    let (at_a, at_b) = (Loopback::new(), Loopback::new());
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(advertising(ground.proxy("a", a.addr()), &at_a, &at_b)),
        Proxy::start(advertising(ground.proxy("b", b.addr()), &at_b, &at_a)),
    );
    eventually("A takes itself for B", LONG, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let admin = testkit::client::Client::new(at_a.socket(6443), &ground.pki).cert("admin");
    let answer = admin.get(HPAS).await;
    assert_refused(&answer, "");
    assert_eq!(b.count(HPAS), 0);
    assert_eq!(a.count(HPAS), 1, "one hop, to A itself");
}

#[tokio::test]
async fn a_proxy_whose_address_is_taken_by_a_peer() {
    let (ground, a, b) = doubles().await;
    let (at_a, at_b) = (Loopback::new(), Loopback::new());
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(advertising(ground.proxy("a", a.addr()), &at_a, &at_a)),
        Proxy::start(advertising(ground.proxy("b", b.addr()), &at_b, &at_a)),
    );
    eventually("A knows B", LONG, async || {
        let status = proxy_a.statusz().await;
        status["peers"][0]["live"] == true && status["peers"][0]["resources"].is_number()
    })
    .await;
    let admin = testkit::client::Client::new(at_a.socket(6443), &ground.pki).cert("admin");
    assert_refused(&admin.get(HPAS).await, "can be reached");
    assert_eq!((a.count(HPAS), b.count(HPAS)), (0, 0), "no hop at all");
}

#[tokio::test]
async fn a_peer_that_is_not_who_it_should_be() {
    let (ground, a, b) = doubles().await;
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(
            ground
                .proxy("a", a.addr())
                .set("peer.serverName", "somebody.else.svc")
                .until(Until::Ready)
        ),
        Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
    );
    eventually("A knows B", LONG, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let answer = proxy_a.client(&ground.pki).cert("admin").get(HPAS).await;
    assert_refused(
        &answer,
        "Error while proxying request to destination apiserver",
    );
    assert_eq!(b.count(HPAS), 0);
}

#[tokio::test]
async fn a_proxy_with_a_peers_id_does_no_harm() {
    let (ground, a, b) = doubles().await;
    let (proxy_a, proxy_b) = tokio::join!(
        Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
    );
    eventually("A knows B", LONG, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let admin = proxy_a.client(&ground.pki).cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);

    // In front of a server that does not serve it.
    let mut twin = Proxy::start(ground.proxy("b", a.addr()).until(Until::Ready)).await;
    eventually("the twin says what is wrong", LONG, async || {
        twin.metric("kube_interop_proxy_duplicate_server_id", &[])
            .await
            == 1.0
    })
    .await;
    eventually(
        "and so does the one that was there first",
        LONG,
        async || {
            proxy_b
                .metric("kube_interop_proxy_duplicate_server_id", &[])
                .await
                == 1.0
        },
    )
    .await;
    // It knows that the other one is not itself.
    let at_twin = twin.client(&ground.pki).cert("admin").get(HPAS).await;
    assert_eq!(at_twin.code(), 200, "{}", at_twin.text());
    assert!(
        twin.log_tail().contains("claims this server ID"),
        "{}",
        twin.log_tail()
    );
    assert_eq!(
        twin.terminate().await.code(),
        Some(0),
        "and its stop takes nothing away"
    );
    // Longer than B's live key would last.
    holds(
        "B is reached all the time",
        Duration::from_secs(5),
        async || admin.get(HPAS).await.code() == 200,
    )
    .await;
}

#[tokio::test]
async fn keys_that_somebody_deletes_come_back() {
    let (ground, a, b) = doubles().await;
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
    );
    let knows = async || lists(&proxy_a.statusz().await, "b", "autoscaling");
    eventually("A knows B", LONG, knows).await;
    let mut etcd = ground.etcd.client().await;
    const OURS: &str = "/kube-interop-proxy/";
    eventually("both have a record and live", LONG, async || {
        ground.etcd.below(OURS).await.len() == 4
    })
    .await;
    let everything = etcd_client::DeleteOptions::new().with_prefix();
    let deleted = etcd.delete(OURS, Some(everything)).await.unwrap();
    assert_eq!(deleted.deleted(), 4);
    let at = deleted.header().unwrap().revision();
    eventually("all four keys are written anew", LONG, async || {
        let there = ground.etcd.below(OURS).await;
        there.len() == 4 && there.iter().all(|kv| kv.mod_revision() > at)
    })
    .await;
    eventually("A knows B again", LONG, knows).await;
}
