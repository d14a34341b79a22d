//! SIGTERM.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, LONG, Single};
use testkit::process::Signal;
use testkit::wait::eventually;

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
async fn short_requests_finish() {
    let mut world = Single::new().await;
    let client = world.client().cert("admin");
    let running: Vec<_> = [client.http1(), client.http2()]
        .into_iter()
        .map(|client| tokio::spawn(async move { client.get("/_double/slow?ms=1500").await }))
        .collect();
    eventually("both are at the apiserver", LONG, async || {
        world.double.count("/_double/slow") == 2
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    for request in running {
        let answer = request.await.unwrap();
        assert_eq!(answer.code(), 200);
        let http1 = answer.version == http::Version::HTTP_11;
        let said = if http1 { "close" } else { "" };
        assert_eq!(answer.header("connection"), said, "{:?}", answer.version);
    }
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

/// Waits until connections end with their first answer.
pub async fn until_it_drains(client: &Client) {
    eventually("connections end with one answer", LONG, async || {
        let tls = client.fresh().connect_raw(&["h2"]).await.unwrap();
        let (sender, connection) = h2::client::handshake(tls).await.unwrap();
        let mut connection = tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let request = http::Request::get("https://x/livez").body(()).unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        answer
            .await
            .expect("an answer, also if it was let in before the drain began");
        // Not before: this side closes the connection when nobody can send requests.
        let ended = tokio::time::timeout(Duration::from_millis(500), &mut connection).await;
        connection.abort();
        ended.is_ok()
    })
    .await;
}

#[tokio::test]
async fn an_upload_over_http1_is_taken_to_its_end() {
    let mut world = Single::new().await;
    let client = world.client().cert("admin");
    let mut upload = client.connect_raw(&["http/1.1"]).await.unwrap();
    let head = "POST /_double/upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    upload.write_all(head.as_bytes()).await.unwrap();
    upload.write_all(b"5\r\nfirst\r\n").await.unwrap();
    eventually("it has begun", LONG, async || {
        world.double.count("/_double/upload") == 1
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    for piece in ["6\r\nsecond\r\n", "4\r\nlast\r\n0\r\n\r\n"] {
        upload.write_all(piece.as_bytes()).await.unwrap();
    }
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, upload.read_to_end(&mut answer))
        .await
        .expect("an end");
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    assert!(answer.contains("\"bytes\":15"), "{answer}");
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn http2_clients_get_goaway_and_an_upload_is_taken_to_its_end() {
    let mut world = Single::new().await;
    let client = world.client().cert("admin");
    let tls = client.connect_raw(&["h2"]).await.unwrap();
    let (sender, connection) = h2::client::handshake(tls).await.unwrap();
    let mut connection = tokio::spawn(connection);
    let request = || {
        http::Request::post("https://x/_double/upload")
            .body(())
            .unwrap()
    };
    let mut sender = sender.ready().await.unwrap();
    let (answer, mut upload) = sender.send_request(request(), false).unwrap();
    upload.send_data("first".into(), false).unwrap();
    eventually("it has begun", LONG, async || {
        world.double.count("/_double/upload") == 1
    })
    .await;
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    // The client library refuses to begin anything after GOAWAY.
    eventually("GOAWAY", LONG, async || {
        sender.clone().ready().await.is_err()
    })
    .await;
    let early = tokio::time::timeout(Duration::from_millis(200), &mut connection).await;
    assert!(early.is_err(), "closed under a running request: {early:?}");
    upload.send_data("last".into(), true).unwrap();
    let answer = tokio::time::timeout(LONG, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().data().await.unwrap().unwrap();
    let body = String::from_utf8_lossy(&body).into_owned();
    assert!(body.contains("\"bytes\":9"), "{body}");
    let end = tokio::time::timeout(LONG, connection).await.unwrap();
    // What this side still has to write (an acknowledgement) may come too late: everything was read.
    let _ = end.unwrap();
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(0));
}

#[tokio::test]
async fn what_never_ends_is_cut_when_the_drain_is_over() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "1s")).await;
    let client = world.client().cert("admin").timeout(LONG);
    let hanging = [client.http1(), client.http2()]
        .map(|client| tokio::spawn(async move { client.try_get("/_double/hang").await }));
    eventually("both are at the apiserver", LONG, async || {
        world.double.count("/_double/hang") == 2
    })
    .await;
    let begun = tokio::time::Instant::now();
    world.proxy.process().signal(Signal::Term);
    let status = world.proxy.process().wait(LONG).await;
    assert_eq!(status.code(), Some(0));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    for request in hanging {
        assert!(request.await.unwrap().is_err(), "half an answer is none");
    }
}

#[tokio::test]
async fn upgraded_connections_end_within_the_drain() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "1s")).await;
    let client = world.client().cert("admin").http1();
    let client = client.header("connection", "Upgrade");
    let client = client.header("upgrade", "SPDY/3.1");
    let answer = client.open("/_double/upgrade").await;
    assert_eq!(answer.status, 101);
    let mut stream = answer.upgrade().await.unwrap();
    world.proxy.process().signal(Signal::Term);
    let mut rest = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut rest))
        .await
        .expect("an end");
    assert!(rest.is_empty(), "{rest:?}");
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
    world.proxy.process().signal(Signal::Int);
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
