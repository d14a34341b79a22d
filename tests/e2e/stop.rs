//! SIGTERM.

use std::time::Duration;

use crate::cluster::{Cluster, Ground, LONG};
use crate::double::v1_20;
use crate::support::process::Signal;
use crate::support::proxy::{Proxy, Until};
use crate::support::wait::eventually;

async fn keys(ground: &Ground, prefix: &str) -> Vec<String> {
    let options = etcd_client::GetOptions::new()
        .with_prefix()
        .with_keys_only();
    let answer = ground
        .etcd
        .client()
        .await
        .get(prefix, Some(options))
        .await
        .unwrap();
    answer
        .kvs()
        .iter()
        .map(|kv| kv.key_str().unwrap().to_owned())
        .collect()
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
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let mut proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let client = proxy.client(&ground.pki).cert("admin");
    let running: Vec<_> = [client.http1(), client.http2()]
        .into_iter()
        .map(|client| tokio::spawn(async move { client.get("/_double/slow?ms=1500").await.code() }))
        .collect();
    eventually("both are at the apiserver", LONG, async || {
        double.count("/_double/slow") == 2
    })
    .await;
    proxy.process().signal(Signal::Term);
    eventually("no new connections", LONG, async || {
        client.fresh().try_get("/version").await.is_err()
    })
    .await;
    for request in running {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn during_the_delay_everything_is_served_but_readyz_fails() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let options = ground.proxy("a", double.addr()).set("shutdown.delay", "3s");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    proxy.process().signal(Signal::Term);
    eventually("/readyz fails", LONG, async || {
        admin
            .fresh()
            .try_get("/readyz")
            .await
            .is_ok_and(|answer| answer.code() == 503)
    })
    .await;
    assert_eq!(admin.fresh().get("/api/v1/pods").await.code(), 200);
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn watches_end_cleanly_within_the_drain() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let options = ground.proxy("a", double.addr()).set("shutdown.drain", "2s");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    let client = proxy.client(&ground.pki).cert("admin");
    let mut watches = Vec::new();
    for client in [client.http1(), client.http2()] {
        watches.push(client.open("/api/v1/pods?watch=true").await);
    }
    proxy.process().signal(Signal::Term);
    for watch in &mut watches {
        while let Some(piece) = watch.next_chunk(LONG).await.expect("a clean end") {
            assert!(piece.is_empty(), "{piece:?}");
        }
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let options = ground.proxy("a", double.addr()).set("shutdown.delay", "5m");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    let admin = proxy.client(&ground.pki);
    proxy.process().signal(Signal::Term);
    eventually("the first is seen", LONG, async || {
        admin
            .fresh()
            .try_get("/readyz")
            .await
            .is_ok_and(|answer| answer.code() == 503)
    })
    .await;
    proxy.process().signal(Signal::Term);
    let status = proxy.process().wait(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(1));
}
