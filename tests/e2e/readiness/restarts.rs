//! Restarts of the local apiserver: detected at once whatever `probeInterval` is, and without false positives.

use std::time::Duration;

use testkit::client::Client;
use testkit::cluster::{LONG, Single, assert_refused};
use testkit::wait::{eventually, holds};

const PODS: &str = "/api/v1/pods";
/// Takes milliseconds; far below the minute until the next probe, and patient with a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A ready apiserver and a proxy that asks it again only after a minute.
async fn rarely_asked() -> (Single, Client) {
    let world = Single::with(|options| options.set("apiServer.probeInterval", "1m")).await;
    let asking = world
        .client()
        .cert("admin")
        .header("X-Kubernetes-If-Ready", "1");
    (world, asking)
}

async fn is_initialized(world: &Single) -> bool {
    world.proxy.statusz().await["server"]["initialized"] == true
}

#[tokio::test]
async fn a_restart_between_two_probes_is_seen_at_once() {
    let (mut world, asking) = rarely_asked().await;
    assert_eq!(asking.get(PODS).await.code(), 200);
    world.double.restart().await;
    eventually("the restart is seen", AT_ONCE, async || {
        !is_initialized(&world).await
    })
    .await;
    world.double.take_requests();
    assert_refused(&asking.get(PODS).await, "not initialized");
    assert_eq!(world.double.count(PODS), 0, "nothing reaches the new one");
}

#[tokio::test]
async fn so_is_one_of_an_apiserver_whose_readyz_failed() {
    let (mut world, asking) = rarely_asked().await;
    world.double.set_ready(false);
    world.double.go_away();
    eventually("the proxy has seen it", LONG, async || {
        !world.proxy.is_ready().await
    })
    .await;
    let answer = asking.get(PODS).await;
    assert_eq!(
        (answer.code(), answer.header("x-kubernetes-ready")),
        (200, "true")
    );
    world.double.restart().await;
    eventually("the restart is seen", AT_ONCE, async || {
        !is_initialized(&world).await
    })
    .await;
}

async fn is_asked_over_a_new_connection_and_stays_initialized(world: &Single) {
    eventually("it is asked over a new connection", LONG, async || {
        world.double.count("/readyz") > 0
    })
    .await;
    holds("initialized", Duration::from_millis(200), async || {
        is_initialized(world).await
    })
    .await;
}

#[tokio::test]
async fn connections_that_are_closed_while_readyz_fails_are_no_restart() {
    let (world, asking) = rarely_asked().await;
    world.double.set_ready(false);
    for round in 1..4 {
        world.double.take_requests();
        world.double.go_away();
        is_asked_over_a_new_connection_and_stays_initialized(&world).await;
        let answer = asking.get(PODS).await;
        assert_eq!(
            (answer.code(), answer.header("x-kubernetes-ready")),
            (200, "true"),
            "round {round}"
        );
    }
}

#[tokio::test]
async fn connections_that_are_cut_while_it_is_ready_are_no_restart() {
    let (world, asking) = rarely_asked().await;
    for round in 1..4 {
        world.double.take_requests();
        world.double.drop_connections();
        is_asked_over_a_new_connection_and_stays_initialized(&world).await;
        assert_eq!(asking.get(PODS).await.code(), 200, "round {round}");
    }
}

#[tokio::test]
async fn an_apiserver_that_ends_every_connection_is_not_asked_without_pause() {
    let world = Single::with(|options| options.set("apiServer.probeInterval", "1m")).await;
    world.double.take_requests();
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < end {
        world.double.drop_connections();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let asked = world.double.count("/readyz");
    assert!((1..30).contains(&asked), "{asked}");
}
