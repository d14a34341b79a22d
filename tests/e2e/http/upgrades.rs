//! Upgraded streams (`exec`, `attach`, `port-forward`): no byte is lost or delayed, and every close is passed on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::task::JoinSet;
use tokio::time::timeout;

use testkit::client::Client;
use testkit::cluster::{Cluster, LONG, Single};
use testkit::double::upgrade::GREETING;
use testkit::double::{ServedResource, v1_20};
use testkit::proxy::{Proxy, ProxyOptions};
use testkit::raw;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

/// What both apiservers serve.
const LOCAL: &str = "/api/v1/namespaces/default/pods/x/exec";
/// What only B serves.
const REROUTED: &str = "/apis/debug.example/v1/namespaces/default/shells/x/exec";
const WATCH_OF_SHELLS: &str = "/apis/debug.example/v1/shells?watch=true";
const LONG_RUNNING: &str = "kube_interop_proxy_long_running_requests";

const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\
    X-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: v3.channel.k8s.io\r\n";
const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";

/// A and B with proxies; a client of A gets both local and rerouted streams.
async fn cluster() -> Cluster {
    with_shells(Cluster::new().await).await
}

async fn with_shells(cluster: Cluster) -> Cluster {
    let mut shells = ServedResource::new("debug.example", "v1", "shells", "Shell");
    shells.subresources.push("exec".to_owned());
    cluster.b.add_resource(shells);
    cluster.until_a_knows("b", "debug.example").await;
    cluster
}

fn request(method: &str, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")
}

/// One stream: what is sent with the request comes back, and so does what follows.
async fn talk(client: &Client, request: &str, first: &str, number: usize) -> anyhow::Result<()> {
    let said = format!("number {number}");
    let mut stream = Upgraded::open(client, request, said.as_bytes()).await?;
    stream.expect(first.as_bytes()).await?;
    stream.expect(said.as_bytes()).await?;
    for part in ["and more", " and the last"] {
        stream.send(part.as_bytes()).await?;
        stream.expect(part.as_bytes()).await?;
    }
    ensure!(stream.early.is_empty(), "more came back than was sent");
    Ok(())
}

/// So many streams, 32 at once.
async fn many(client: &Client, count: usize, requests: [String; 2], first: &'static str) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..32 {
        let (client, next, requests) = (client.clone(), Arc::clone(&next), requests.clone());
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let request = &requests[number % 2];
                match timeout(LONG, talk(&client, request, first, number)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => panic!("number {number}: {error:#}"),
                    Err(_) => panic!("number {number}: no end"),
                }
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
}

async fn none_is_left(proxies: [&Proxy; 2]) {
    eventually("no stream is left", LONG, async || {
        proxies[0].metric(LONG_RUNNING, &[]).await + proxies[1].metric(LONG_RUNNING, &[]).await
            == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_streams_lose_no_byte() {
    let cluster = cluster().await;
    let client = cluster.client().cert("admin");
    for instant in [false, true] {
        cluster.a.set_instant_upgrades(instant);
        cluster.b.set_instant_upgrades(instant);
        for target in [LOCAL, REROUTED] {
            let requests = [
                request("POST", target, SPDY),
                request("GET", target, WEBSOCKET),
            ];
            let first = if instant { GREETING } else { "" };
            many(&client, 500, requests, first).await;
        }
    }
    none_is_left([&cluster.proxy_a, &cluster.proxy_b]).await;
    eventually("the apiservers see their ends", LONG, async || {
        cluster.a.open_upgrades() + cluster.b.open_upgrades() == 0
    })
    .await;
}

#[tokio::test]
async fn headers_of_an_upgrade_arrive_as_they_were_sent() {
    let cluster = cluster().await;
    let client = cluster.client().cert("admin");
    for (target, double) in [(LOCAL, &cluster.a), (REROUTED, &cluster.b)] {
        double.take_requests();
        let spdy = Upgraded::open(&client, &request("POST", target, SPDY), b"")
            .await
            .unwrap();
        let answer = spdy.header.to_lowercase();
        for line in [
            "upgrade: spdy/3.1\r\n",
            "connection: upgrade\r\n",
            "x-stream-protocol-version: v4.channel.k8s.io\r\n",
        ] {
            assert!(answer.contains(line), "{answer}");
        }
        let seen = double.take_requests();
        let seen = seen.iter().find(|seen| seen.path == target).unwrap();
        assert_eq!(
            seen.header_values("x-stream-protocol-version"),
            ["v4.channel.k8s.io", "v3.channel.k8s.io"]
        );
        assert_eq!(seen.header_values("upgrade"), ["SPDY/3.1"]);
        assert_eq!(
            (seen.user.as_str(), seen.method.as_str()),
            ("kubernetes-admin", "POST")
        );

        Upgraded::open(&client, &request("GET", target, WEBSOCKET), b"")
            .await
            .unwrap();
        let seen = double.take_requests();
        let seen = seen.iter().find(|seen| seen.path == target).unwrap();
        for (name, value) in [
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ] {
            assert_eq!(seen.header_values(name), [value]);
        }
    }
}

#[tokio::test]
async fn three_minutes_of_silence_end_no_stream() {
    // It lasts: what the proxies do beside it is done rarely.
    let rarely = |options: ProxyOptions| {
        options
            .set("peer.leaseTTL", "60s")
            .set("apiServer.probeInterval", "5s")
            .set("apiServer.discoveryInterval", "10s")
    };
    let cluster = with_shells(Cluster::with(v1_20(), rarely).await).await;
    let client = cluster.client().cert("admin");
    let mut streams = Vec::new();
    for target in [LOCAL, REROUTED] {
        for request in [
            request("POST", target, SPDY),
            request("GET", target, WEBSOCKET),
        ] {
            let mut stream = Upgraded::open(&client, &request, b"before").await.unwrap();
            stream.expect(b"before").await.unwrap();
            streams.push(stream);
        }
    }
    let mut watches = Vec::new();
    for path in ["/api/v1/pods?watch=true", WATCH_OF_SHELLS] {
        for client in [client.http1(), client.http2()] {
            watches.push(client.open(path).await);
        }
    }
    tokio::time::sleep(Duration::from_secs(181)).await;
    for watch in &mut watches {
        assert!(watch.is_quiet(Duration::from_millis(100)).await);
    }
    for stream in &mut streams {
        stream.send(b"after").await.unwrap();
        let echoed = timeout(LONG, stream.expect(b"after")).await;
        echoed.expect("an echo").unwrap();
    }
}

#[tokio::test]
async fn what_follows_a_refused_upgrade_is_a_request_of_its_own() {
    let cluster = cluster().await;
    let (secrets, things) = (
        "/api/v1/namespaces/kube-system/secrets",
        "/apis/debug.example/v1/namespaces/default/shells",
    );
    for (target, double, pipelined) in [
        (LOCAL, &cluster.a, secrets),
        (REROUTED, &cluster.b, things),
        // Refused by a path that everybody may ask.
        ("/_double/upgrade?refuse=403", &cluster.a, secrets),
    ] {
        double.take_requests();
        let second = format!(
            "GET {pipelined} HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\
             X-Remote-Group: system:masters\r\nConnection: close\r\n\r\n"
        );
        let alice = cluster.client().cert("alice");
        let mut stream = alice.connect_raw(&["http/1.1"]).await.unwrap();
        let both = request("POST", target, SPDY) + &second;
        stream.write_all(both.as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        // A close without close_notify is an end too.
        let _ = timeout(LONG, stream.read_to_end(&mut answers))
            .await
            .expect("an end");
        let answers = String::from_utf8_lossy(&answers);
        assert_eq!(answers.matches("HTTP/1.1 403 ").count(), 2, "{answers}");
        assert!(answers.contains(r#"User \"alice\""#), "{answers}");

        let seen = double.take_requests();
        let at = |path: &str| {
            let mut requests = seen.iter().filter(|seen| seen.path == path);
            let found = requests.next().expect("at the apiserver");
            assert!(requests.next().is_none(), "{path}: more than once");
            (found.user.clone(), found.connection_id)
        };
        let (upgrade, carrier) = at(target);
        let (user, connection) = at(pipelined);
        assert_eq!((upgrade.as_str(), user.as_str()), ("alice", "alice"));
        assert_ne!(carrier, connection, "the refused upgrade's is used again");
        eventually(
            "the refused upgrade's connection is closed",
            LONG,
            async || double.connection_is_closed(carrier),
        )
        .await;
    }
}

#[tokio::test]
async fn a_client_that_dies_takes_its_stream_with_it() {
    let cluster = cluster().await;
    let client = cluster.client().cert("admin");
    for (target, double, proxies) in [(LOCAL, &cluster.a, 1.0), (REROUTED, &cluster.b, 2.0)] {
        let mut stream = Upgraded::open(&client, &request("POST", target, SPDY), b"here")
            .await
            .unwrap();
        stream.expect(b"here").await.unwrap();
        assert_eq!(double.open_upgrades(), 1);
        let open = cluster.proxy_a.metric(LONG_RUNNING, &[]).await
            + cluster.proxy_b.metric(LONG_RUNNING, &[]).await;
        assert_eq!(open, proxies, "each proxy counts it");
        // No close_notify: as if it were killed.
        let (tcp, _) = stream.stream.into_inner();
        drop(tcp);
        eventually("the apiserver sees it", LONG, async || {
            double.open_upgrades() == 0
        })
        .await;
        none_is_left([&cluster.proxy_a, &cluster.proxy_b]).await;
    }
}

#[tokio::test]
async fn the_end_of_either_side_is_the_end_of_both_and_loses_nothing() {
    const SIZE: usize = 4 << 20;
    let cluster = cluster().await;
    let client = cluster.client().cert("admin");
    for (target, double) in [(LOCAL, &cluster.a), (REROUTED, &cluster.b)] {
        // The server's: all that it said arrives, though the client still sends.
        let say = request("POST", &format!("{target}?say={SIZE}"), SPDY);
        let stream = Upgraded::open(&client, &say, &[b'y'; 1000]).await.unwrap();
        let count = timeout(LONG, stream.count()).await.expect("an end");
        assert_eq!(count.unwrap(), SIZE);

        // The client's: all that it said arrives, though it may not read the echo any more.
        double.take_requests();
        let mut stream = Upgraded::open(&client, &request("POST", target, SPDY), b"")
            .await
            .unwrap();
        let said = vec![b'y'; 10_000];
        stream.send(&said).await.unwrap();
        stream.stream.shutdown().await.unwrap();
        timeout(LONG, stream.count())
            .await
            .expect("the end of the other side")
            .unwrap();
        eventually("the apiserver has read all of it", LONG, async || {
            let seen = double.requests();
            seen.iter()
                .any(|seen| seen.path == target && seen.body_len == 10_000)
        })
        .await;
        eventually("it is over", LONG, async || double.open_upgrades() == 0).await;
    }
    none_is_left([&cluster.proxy_a, &cluster.proxy_b]).await;
}

async fn send(mut to: impl AsyncWrite + Unpin, size: usize) {
    let piece = vec![b'y'; 64 << 10];
    for _ in 0..size / piece.len() {
        to.write_all(&piece).await.unwrap();
    }
    to.flush().await.unwrap();
}

async fn receive(mut from: impl AsyncRead + Unpin, mut left: usize) {
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let read = from.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{left} bytes are missing");
        left = left.checked_sub(read).expect("no more than expected");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_mebibytes_go_both_ways() {
    let cluster = cluster().await;
    let client = cluster.client().cert("admin");
    for target in [LOCAL, REROUTED] {
        // Both at the same time, and everything up before anything is read: that is more than all sockets hold.
        for (at_once, size) in [(true, 16 << 20), (false, 50 << 20)] {
            let flood = request("POST", &format!("{target}?flood={size}"), SPDY);
            let stream = Upgraded::open(&client, &flood, b"").await.unwrap();
            let end = size + "both".len() - stream.early.len();
            let (from, to) = split(stream.stream);
            let both = async {
                if at_once {
                    tokio::join!(send(to, size), receive(from, end));
                } else {
                    send(to, size).await;
                    receive(from, end).await;
                }
            };
            timeout(LONG, both)
                .await
                .unwrap_or_else(|_| panic!("{target}, at once: {at_once}: they wait for ever"));
        }
    }
    none_is_left([&cluster.proxy_a, &cluster.proxy_b]).await;
}

#[tokio::test]
async fn what_connection_does_not_mention_is_no_upgrade() {
    let world = Single::new().await;
    let alone = WEBSOCKET.replacen("keep-alive, Upgrade", "keep-alive", 1);
    let last = request("GET", "/version", "Connection: close\r\n");
    let both = request("GET", LOCAL, &alone) + &last;
    let answers = raw::http1(&world.client().cert("admin"), both.as_bytes()).await;
    let [first, second] = raw::codes(&answers)[..] else {
        panic!("{}", answers.escape_ascii());
    };
    assert_ne!(first, 101);
    assert_eq!(second, 200);
}

#[tokio::test]
async fn what_no_apiserver_upgrades_shares_connections_and_keeps_its_user() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const INTERNAL_USER: &str = "system:kube-interop-proxy";
    let world = Single::new().await;
    let admin = world.client().cert("admin");
    let ask = async |client: &Client, path: &str, headers: &str| {
        world.double.take_requests();
        let last = request("GET", path, &format!("{headers}Foo: last\r\n"));
        let last = last.replacen("keep-alive", "close", 1);
        let all = request("GET", path, headers).repeat(9) + &last;
        let codes = raw::codes(&raw::http1(client, all.as_bytes()).await);
        assert_eq!(codes.len(), 10, "{path}");
        let seen = world.double.take_requests().into_iter();
        // The proxy itself asks for some of them, too.
        let clients = seen.filter(|seen| seen.path == path && seen.user != INTERNAL_USER);
        let seen: Vec<_> = clients.collect();
        assert_eq!(seen.len(), 10, "{path}");
        let users: BTreeSet<_> = seen.iter().map(|seen| seen.user.clone()).collect();
        let connections: BTreeSet<_> = seen.iter().map(|seen| seen.connection_id).collect();
        (codes[0], users, connections.len())
    };
    for (client, user) in [
        (world.client(), "system:anonymous"),
        (admin, "kubernetes-admin"),
    ] {
        let paths: &[&str] = match user {
            "system:anonymous" => &["/version", "/healthz"],
            _ => &["/version", "/api", PODS],
        };
        for path in paths {
            let users = BTreeSet::from([user.to_owned()]);
            assert_eq!(
                ask(&client, path, WEBSOCKET).await,
                (200, users, 1),
                "{path}"
            );
        }
    }
    // Only an apiserver that is asked to upgrade looks for a token there.
    let token = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9rLWJvYg";
    let websocket = WEBSOCKET.replacen("v5.channel.k8s.io", token, 1);
    let bob = BTreeSet::from(["bob".to_owned()]);
    assert_eq!(
        ask(&world.client(), "/version", &websocket).await,
        (200, bob, 10)
    );
}
