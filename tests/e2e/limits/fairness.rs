//! A request that is left waiting or unread does not delay others, neither on its client's connection nor on a shared
//! upstream connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS_IN_DEFAULT, LONG, Single};
use testkit::double::{Double, DoubleOptions, Fault, v1_20};
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// What only B serves, in a namespace without faults.
const HPAS_ELSEWHERE: &str = "/apis/autoscaling/v1/namespaces/elsewhere/horizontalpodautoscalers";

/// With a connection and its TLS, at best, on a busy machine.
const SOON: Duration = Duration::from_secs(1);

/// The same kinds of request, served locally and through both proxies.
struct Road {
    watch: &'static str,
    /// Takes no byte of a body, and never answers.
    hang: &'static str,
    short: &'static str,
    upload: &'static str,
    download: &'static str,
}

const LOCAL: Road = Road {
    watch: "/api/v1/namespaces/quiet/pods?watch=true",
    hang: "/_double/hang",
    short: "/api/v1/namespaces/quiet/pods",
    upload: "/api/v1/namespaces/elsewhere/pods",
    download: "/_double/big?bytes=52428800",
};
const REROUTED: Road = Road {
    watch: "/apis/autoscaling/v1/namespaces/quiet/horizontalpodautoscalers?watch=true",
    hang: "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
    short: "/apis/autoscaling/v1/namespaces/quiet/horizontalpodautoscalers",
    upload: HPAS_ELSEWHERE,
    download: "/apis/autoscaling/v1/namespaces/big/horizontalpodautoscalers",
};

fn roads(cluster: &Cluster) -> [(Road, &Double); 2] {
    cluster.b.set_fault(HPAS_IN_DEFAULT, Some(Fault::Hang));
    cluster
        .b
        .set_fault(REROUTED.download, Some(Fault::Stream(50 << 20)));
    [(LOCAL, &cluster.a), (REROUTED, &cluster.b)]
}

/// An object that is larger than a window of 64 KiB.
fn large_object(name: &str) -> String {
    let note = "x".repeat(100_000);
    serde_json::json!({"metadata": {"name": name, "annotations": {"note": note}}}).to_string()
}

#[tokio::test]
async fn the_header_of_a_quiet_watch_comes_at_once() {
    let cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    for client in [admin.http1(), admin.http2()] {
        for road in [LOCAL, REROUTED] {
            let mut fastest = Duration::MAX;
            let mut watches = Vec::new();
            for _ in 0..10 {
                let started = Instant::now();
                watches.push(client.fresh().open(road.watch).await);
                fastest = fastest.min(started.elapsed());
            }
            // Nothing has happened yet, and nothing will: what held headers back would hold back all of them, for the 3 s
            // in which a 410 may follow.
            assert!(fastest < SOON, "{}: {fastest:?}", road.watch);
            for watch in &mut watches {
                assert_eq!(watch.status, 200);
                assert!(watch.is_quiet(Duration::from_millis(5)).await);
            }
        }
    }
}

#[tokio::test]
async fn three_hundred_watches_and_a_stalled_upload_hold_nobody_up() {
    let cluster = Cluster::new().await;
    for (road, double) in roads(&cluster) {
        let client = cluster.client().cert("admin").http2().timeout(LONG);
        let mut opening = JoinSet::new();
        // The connection is there before it is shared.
        assert_eq!(client.get(road.short).await.code(), 200);
        // Not more than 250 streams are allowed on one connection.
        let other = client.fresh();
        for number in 0..300 {
            let client = [&client, &other][number % 2].clone();
            opening.spawn(async move { client.open(road.watch).await });
        }
        let watches = opening.join_all().await;
        assert!(watches.iter().all(|watch| watch.status == 200));

        let hanging = client.clone();
        let stalled = tokio::spawn(async move {
            let body = vec![b'x'; 2 << 20];
            hanging.try_request("POST", road.hang, body).await
        });
        eventually("the upload has begun", LONG, async || {
            let seen = double.requests();
            seen.iter()
                .any(|seen| seen.method == "POST" && seen.path == road.hang)
        })
        .await;
        for number in 0..20 {
            let started = Instant::now();
            assert_eq!(client.get(road.short).await.code(), 200);
            let object = large_object(&format!("n{number}"));
            let created = client.request("POST", road.upload, object).await;
            assert_eq!(created.code(), 201, "{}", created.text());
            let took = started.elapsed();
            assert!(took < Duration::from_secs(5), "{}: {took:?}", road.short);
        }
        assert!(!stalled.is_finished(), "it still hangs");
        stalled.abort();
    }
}

/// How many of the double's requests for `path` came on each of its connections.
fn by_connection(double: &Double, path: &str) -> HashMap<u64, usize> {
    let mut counts = HashMap::new();
    for seen in double.requests().iter().filter(|seen| seen.path == path) {
        *counts.entry(seen.connection_id).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn stalled_downloads_hold_nobody_up_on_their_connection() {
    let cluster = Cluster::new().await;
    for (road, double) in roads(&cluster) {
        let admin = cluster.client().cert("admin").http2();
        // Clients are spread over the proxy's threads, and each thread has connections of its own.
        let mut stalled = Vec::new();
        let crowded = loop {
            assert!(stalled.len() < 200, "they never meet");
            let mut download = admin.fresh().open(road.download).await;
            let first = download.next_chunk(LONG).await.unwrap();
            assert!(first.is_some_and(|first| !first.is_empty()));
            stalled.push(download);
            let counts = by_connection(double, road.download);
            if let Some((connection, _)) = counts.iter().find(|(_, count)| **count >= 3) {
                break *connection;
            }
        };
        let mut beside = 0;
        for _ in 0..1000 {
            let client = admin.fresh();
            let started = Instant::now();
            assert_eq!(client.get(road.short).await.code(), 200);
            let download = client.get("/_double/big?bytes=1000000").await;
            assert_eq!(download.body.len(), 1_000_000);
            let took = started.elapsed();
            assert!(took < Duration::from_secs(5), "{}: {took:?}", road.short);
            beside = by_connection(double, road.short)
                .get(&crowded)
                .copied()
                .unwrap_or_default();
            if beside >= 3 {
                break;
            }
        }
        assert!(beside >= 3, "nobody used the stalled connection");
    }
}

/// One soon after the other, and each must get its answer while the others stay open.
async fn open_many(client: &Client, path: &'static str, count: usize) {
    let mut opening = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        // Not all before the first connection is there.
        tokio::time::sleep(Duration::from_millis(2)).await;
        opening.spawn(async move {
            let mut stream = client.open(path).await;
            let first = stream.next_chunk(LONG).await.unwrap();
            assert!(first.is_some_and(|first| !first.is_empty()));
            stream
        });
    }
    let open = timeout(LONG, opening.join_all()).await;
    assert_eq!(open.expect("all of them").len(), count);
}

/// Writes, one soon after the other; none may be refused for want of a stream.
async fn post_many(client: &Client, path: &'static str, count: usize) {
    let mut asking = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        tokio::time::sleep(Duration::from_millis(2)).await;
        asking.spawn(async move { client.request("POST", path, "a body").await });
    }
    for answer in asking.join_all().await {
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_server_that_allows_five_streams_is_given_more_connections() {
    let ground = Ground::new().await;
    let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
    options.max_streams = 5;
    // Requests come while it has not said yet how many it allows.
    options.settings_after = Duration::from_millis(200);
    let double = Double::start(options).await;
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let world = Single {
        double,
        proxy,
        ground,
    };
    let admin = world.client().cert("admin").http2().timeout(LONG);
    assert_eq!(admin.get("/version").await.code(), 200);
    // Cold: nothing is open yet for tokens, and the server's limit is not known.
    let cold = world.client().token("tok-admin").http2().timeout(LONG);
    for client in [&admin, &cold] {
        post_many(client, "/_double/slow?ms=500", 60).await;
        for path in [
            "/_double/ticks?ms=1000",
            "/api/v1/namespaces/default/pods/x/log?follow=true",
        ] {
            for _ in 0..3 {
                open_many(client, path, 60).await;
            }
        }
        assert_eq!(client.get("/version").await.code(), 200);
    }
    eventually("nothing is left of them", LONG, async || {
        world
            .proxy
            .metric("kube_interop_proxy_long_running_requests", &[])
            .await
            == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_freezes_is_noticed_on_connections_in_use() {
    let mut cluster = Cluster::new().await;
    cluster.b.set_fault(HPAS_IN_DEFAULT, Some(Fault::Hang));
    let admin = cluster.client().cert("admin").http2().timeout(LONG * 2);
    let mut watch = admin.open(REROUTED.watch).await;
    let asking = admin.clone();
    let get = tokio::spawn(async move { asking.get(HPAS_IN_DEFAULT).await });
    eventually("it is under way", LONG, async || {
        cluster.b.count(HPAS_IN_DEFAULT) == 1
    })
    .await;
    // Pings have come and gone meanwhile, and harmed nobody.
    assert!(watch.is_quiet(Duration::from_secs(12)).await);
    assert!(!get.is_finished());

    cluster.proxy_b.process().signal(Signal::Stop);
    let started = Instant::now();
    let answer = get.await.unwrap();
    assert_eq!(answer.code(), 503, "{}", answer.text());
    // Ten seconds to the next ping, thirty for its answer, six for another attempt; and a machine that is busy.
    assert!(started.elapsed() < LONG);
    assert!(!watch.is_quiet(LONG).await, "its client is to start again");
}
