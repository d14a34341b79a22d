//! Clients that know only this node's address: they are let in and answered while the proxy drains.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::sigterm::until_it_drains;
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{Cluster, LONG, Single, patient};
use testkit::double::{Phase, v1_20};
use testkit::process::Signal;
use testkit::streaming::Streaming;
use testkit::wait::{eventually, holds};

const PODS: &str = "/api/v1/namespaces/default/pods";
const WATCH: &str = "/api/v1/pods?watch=true";
/// Only B serves it.
const PEERS_WATCH: &str = "/apis/autoscaling/v1/horizontalpodautoscalers?watch=true";

/// A request that keeps a draining proxy for as long as it drains.
async fn hang(world: &Single) -> tokio::task::JoinHandle<anyhow::Result<Streaming>> {
    let client = world.client().cert("admin").timeout(LONG);
    let hanging = tokio::spawn(async move { client.try_open("GET", "/_double/hang", "").await });
    eventually("it hangs", LONG, async || {
        world.double.count("/_double/hang") == 1
    })
    .await;
    hanging
}

#[tokio::test]
async fn new_connections_get_one_answer_each() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "1m")).await;
    let _hanging = hang(&world).await;
    let client = world.client().cert("admin");
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;

    let answer = client.fresh().http1().get(PODS).await;
    assert_eq!((answer.code(), answer.header("connection")), (200, "close"));
    let mut http1 = client.connect_raw(&["http/1.1"]).await.unwrap();
    let request = format!("GET {PODS} HTTP/1.1\r\nHost: x\r\n\r\n");
    http1.write_all(request.repeat(2).as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, http1.read_to_end(&mut answers))
        .await
        .expect("an end");
    let answers = String::from_utf8_lossy(&answers).into_owned();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");

    let tls = client.connect_raw(&["h2"]).await.unwrap();
    let (sender, connection) = h2::client::handshake(tls).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = |path: &str| {
        http::Request::get(format!("https://x{path}"))
            .body(())
            .unwrap()
    };
    let mut sender = sender.ready().await.unwrap();
    // Requests that were sent before GOAWAY was read are answered.
    let sent: Vec<_> = (0..3)
        .map(|_| sender.send_request(request(PODS), true).unwrap().0)
        .collect();
    for answer in sent {
        assert_eq!(answer.await.unwrap().status(), 200);
    }
    eventually("GOAWAY", LONG, async || {
        sender.clone().ready().await.is_err()
    })
    .await;
    let end = tokio::time::timeout(LONG, connection).await;
    // What this side still has to write (an acknowledgement) may come too late: everything was read.
    let _ = end.expect("an end").unwrap();

    let unready = client.fresh().get("/readyz").await;
    assert_eq!(unready.code(), 503);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});
    let written = client.fresh().request("POST", PODS, pod.to_string()).await;
    assert_eq!(written.code(), 201, "{}", written.text());
    world.proxy.process().signal(Signal::Term);
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(1));
}

#[tokio::test]
async fn a_connection_that_is_opened_before_the_drain_may_still_send_its_first_request() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "1m")).await;
    let _hanging = hang(&world).await;
    let client = world.client().cert("admin");
    let mut opened = client.connect_raw(&["http/1.1"]).await.unwrap();
    let http2 = client.connect_raw(&["h2"]).await.unwrap();
    let (sender, connection) = h2::client::handshake(http2).await.unwrap();
    let connection = tokio::spawn(connection);
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    let request = format!("GET {PODS} HTTP/1.1\r\nHost: x\r\n\r\n");
    opened.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, opened.read_to_end(&mut answer))
        .await
        .expect("an end");
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");

    let mut sender = sender.ready().await.expect("no GOAWAY before the answer");
    let request = http::Request::get(format!("https://x{PODS}"));
    let request = request.body(()).unwrap();
    let (answer, _) = sender.send_request(request, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
    let end = tokio::time::timeout(LONG, connection).await;
    // What this side still has to write (an acknowledgement) may come too late.
    let _ = end.expect("an end").unwrap();
}

#[tokio::test]
async fn a_watch_that_comes_during_the_drain_is_served_until_its_end() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "5s")).await;
    let _hanging = hang(&world).await;
    let client = world.client().cert("admin");
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    let begun = Instant::now();
    let mut watches = Vec::new();
    for client in [client.http1(), client.http2()] {
        watches.push(client.open(WATCH).await);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});
    let written = client.fresh().request("POST", PODS, pod.to_string()).await;
    assert_eq!(written.code(), 201, "{}", written.text());
    for watch in &mut watches {
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["type"], "ADDED");
        while let Some(piece) = watch.next_chunk(LONG).await.expect("a clean end") {
            assert!(piece.is_empty(), "{piece:?}");
        }
    }
    // Not spread as those that were there before: they would only come back.
    assert!(begun.elapsed() > Duration::from_secs(2));
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

/// A pair of which A's proxy drains for long, and has something to drain.
async fn pair() -> (Cluster, Streaming) {
    let cluster = Cluster::with(v1_20(), |options| {
        patient(options).set("shutdown.drain", "30s")
    })
    .await;
    let watch = cluster.client().cert("admin").open(WATCH).await;
    (cluster, watch)
}

async fn is_served(client: &Client) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}});
    for (method, path, body, code) in [
        ("GET", PODS, String::new(), 200),
        ("POST", PODS, pod.to_string(), 201),
        ("GET", "/apis", String::new(), 200),
        ("GET", "/api/v1", String::new(), 200),
        ("GET", "/version", String::new(), 200),
        ("GET", "/readyz", String::new(), 503),
        ("GET", "/livez", String::new(), 503),
    ] {
        for client in [client.http1(), client.http2()] {
            let answer = client.request(method, path, body.clone()).await;
            assert_eq!(answer.code(), code, "{method} {path}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn once_the_apiserver_is_gone_peers_serve() {
    let (mut cluster, mut watch) = pair().await;
    let client = cluster.client().cert("admin");
    // A peer serves them, so they keep the proxy until the last of them has had its turn.
    let kept = join_all((0..12).map(|_| client.open(PEERS_WATCH))).await;
    assert!(kept.iter().all(|watch| watch.status == 200));
    cluster.a.set_phase(Phase::Terminating);
    cluster.proxy_a.process().signal(Signal::Term);
    until_it_drains(&client).await;
    cluster.a.stop().await;
    is_served(&client).await;
    let mut again = client.fresh().open(WATCH).await;
    assert_eq!(again.status, 200);
    // With the apiserver the watch ended that it served.
    while let Ok(Some(_)) = watch.next_chunk(LONG).await {}
    while again.next_chunk(LONG).await.expect("a clean end").is_some() {}
    assert_eq!(cluster.proxy_a.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn once_the_apiserver_is_gone_the_proxy_ends_soon() {
    let (mut cluster, _watch) = pair().await;
    let client = cluster.client().cert("admin");
    cluster.a.set_phase(Phase::Terminating);
    cluster.proxy_a.process().signal(Signal::Term);
    until_it_drains(&client).await;
    // Who comes during the drain does not keep it.
    let _again = client.fresh().open(WATCH).await;
    cluster.a.stop().await;
    let gone = Instant::now();
    assert_eq!(cluster.proxy_a.process().wait(LONG).await.code(), Some(0));
    let took = gone.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
}

#[tokio::test]
async fn a_proxy_waits_for_its_apiserver_that_is_shutting_down() {
    let mut cluster = Cluster::with(v1_20(), |options| {
        patient(options).set("shutdown.drain", "1s")
    })
    .await;
    let client = cluster.client().cert("admin");
    cluster.a.set_phase(Phase::Terminating);
    eventually("/readyz fails", LONG, async || {
        !cluster.proxy_a.is_ready().await
    })
    .await;
    cluster.proxy_a.process().signal(Signal::Term);
    until_it_drains(&client).await;
    holds("it is let in", Duration::from_secs(4), async || {
        client.fresh().get(PODS).await.code() == 200
    })
    .await;
    cluster.a.stop().await;
    assert_eq!(client.fresh().get(PODS).await.code(), 200);
    assert_eq!(cluster.proxy_a.process().wait(LONGER).await.code(), Some(0));
}

#[tokio::test]
async fn a_proxy_that_is_stopped_alone_ends_when_nothing_is_open() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "5m")).await;
    assert_eq!(world.client().get("/version").await.code(), 200);
    world.proxy.process().signal(Signal::Term);
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}
