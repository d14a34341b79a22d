//! SIGTERM.

use std::time::Duration;

use crate::cluster::{Cluster, Ground, LONG, Single};
use crate::support::process::Signal;
use crate::support::wait::eventually;

async fn keys(ground: &Ground, prefix: &str) -> Vec<String> {
    let there = ground.etcd.below(prefix).await;
    let key = |kv: &etcd_client::KeyValue| kv.key_str().unwrap().to_owned();
    there.iter().map(key).collect()
}

#[tokio::test]
async fn the_live_key_goes_away_and_the_record_stays() {
    let mut cluster = Cluster::new().await;
    assert_eq!(cluster.proxy_b.terminate().await.code(), Some(0));
    assert_eq!(
        keys(&cluster.ground, "/kube-interop-proxy/registry/live/").await,
        ["/kube-interop-proxy/registry/live/a"]
    );
    assert_eq!(
        keys(&cluster.ground, "/kube-interop-proxy/registry/servers/")
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn short_requests_finish_and_new_ones_are_not_taken() {
    let mut world = Single::new().await;
    let client = world.client().cert("admin");
    let running: Vec<_> = [client.http1(), client.http2()]
        .into_iter()
        .map(|client| tokio::spawn(async move { client.get("/_double/slow?ms=1500").await.code() }))
        .collect();
    eventually("both are at the apiserver", LONG, async || {
        world.double.count("/_double/slow") == 2
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    eventually("no new connections", LONG, async || {
        client.fresh().try_get("/version").await.is_err()
    })
    .await;
    for request in running {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn during_the_delay_everything_is_served_but_readyz_fails() {
    let mut world = Single::with(|options| options.set("shutdown.delay", "6s")).await;
    let admin = world.client().cert("admin");
    world.proxy.process().signal(Signal::Term);
    eventually("/readyz fails", LONG, async || {
        admin
            .fresh()
            .try_get("/readyz")
            .await
            .is_ok_and(|answer| answer.code() == 503)
    })
    .await;
    assert_eq!(admin.fresh().get("/api/v1/pods").await.code(), 200);
    let last = admin.http1().get("/api/v1/pods").await;
    assert_eq!(
        (last.code(), last.header("connection")),
        (200, "close"),
        "and asked to go elsewhere"
    );
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn watches_end_cleanly_within_the_drain() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "2s")).await;
    let client = world.client().cert("admin");
    let mut watches = Vec::new();
    for client in [client.http1(), client.http2()] {
        watches.push(client.open("/api/v1/pods?watch=true").await);
    }
    world.proxy.process().signal(Signal::Term);
    for watch in &mut watches {
        while let Some(piece) = watch.next_chunk(LONG).await.expect("a clean end") {
            assert!(piece.is_empty(), "{piece:?}");
        }
    }
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut world = Single::with(|options| options.set("shutdown.delay", "5m")).await;
    let admin = world.client();
    world.proxy.process().signal(Signal::Term);
    eventually("the first is seen", LONG, async || {
        admin
            .fresh()
            .try_get("/readyz")
            .await
            .is_ok_and(|answer| answer.code() == 503)
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    let status = world.proxy.process().wait(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(1));
}
