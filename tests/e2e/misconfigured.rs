//! Proxies that lead to the wrong place: 503, and exactly one hop.

use crate::cluster::{Ground, HPAS, LONG, assert_refused, lists};
use crate::double::{Double, v1_20};
use crate::support::addr::Loopback;
use crate::support::proxy::{Proxy, ProxyOptions, Until};
use crate::support::wait::eventually;

struct World {
    ground: Ground,
    a: Double,
    b: Double,
}

async fn world() -> World {
    let ground = Ground::new().await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let b = ground.double(v1_20()).await;
    World { ground, a, b }
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
    let World { ground, a, b } = world().await;
    let (at_a, at_b) = (Loopback::new(), Loopback::new());
    let (proxy_a, _proxy_b) = tokio::join!(
        Proxy::start(advertising(ground.proxy("a", a.addr()), &at_a, &at_b)),
        Proxy::start(advertising(ground.proxy("b", b.addr()), &at_b, &at_a)),
    );
    eventually("A takes itself for B", LONG, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let admin = crate::support::client::Client::new(at_a.socket(6443), &ground.pki).cert("admin");
    let answer = admin.get(HPAS).await;
    assert_refused(&answer, "");
    assert_eq!(b.count(HPAS), 0);
    assert_eq!(a.count(HPAS), 1, "one hop, to A itself");
}

#[tokio::test]
async fn a_proxy_whose_address_is_taken_by_a_peer() {
    let World { ground, a, b } = world().await;
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
    let admin = crate::support::client::Client::new(at_a.socket(6443), &ground.pki).cert("admin");
    assert_refused(&admin.get(HPAS).await, "can be reached");
    assert_eq!((a.count(HPAS), b.count(HPAS)), (0, 0), "no hop at all");
}

#[tokio::test]
async fn a_peer_that_is_not_who_it_should_be() {
    let World { ground, a, b } = world().await;
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
