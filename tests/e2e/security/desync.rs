//! Clients and servers that violate the message framing: the rest of one request must never become another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::proxy::{Proxy, Until};

/// A server that answers every header it reads at once, and takes whatever follows for the next request: what Go's does
/// not do, and what must not be relied on.
struct Hasty {
    addr: std::net::SocketAddr,
    /// Connection and first line of everything it took for a request.
    seen: Arc<Mutex<Vec<(usize, String)>>>,
    _address: Loopback,
}

impl Hasty {
    async fn start(ground: &Ground) -> Self {
        let (address, listener, acceptor) = ground.listen(&["http/1.1"]).await;
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((tcp, _)) = listener.accept().await else {
                    return;
                };
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                tokio::spawn(async move {
                    let mut tls = acceptor.accept(tcp).await.ok()?;
                    let mut buffer = Vec::new();
                    loop {
                        while let Some(end) =
                            buffer.windows(4).position(|window| window == b"\r\n\r\n")
                        {
                            let header: Vec<u8> = buffer.drain(..end + 4).collect();
                            let line = String::from_utf8_lossy(&header).lines().next()?.to_owned();
                            let code = if line.contains("/readyz") {
                                "200 OK"
                            } else {
                                "404 Not Found"
                            };
                            log.lock().ok()?.push((connection, line));
                            let answer = format!(
                                "HTTP/1.1 {code}\r\nContent-Type: text/x\r\nContent-Length: 2\r\n\r\nok"
                            );
                            tls.write_all(answer.as_bytes()).await.ok()?;
                        }
                        if tls.read_buf(&mut buffer).await.ok()? == 0 {
                            return Some(());
                        }
                    }
                });
            }
        });
        Self {
            addr,
            seen,
            _address: address,
        }
    }

    fn connections_of(&self, path: &str) -> Vec<usize> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|(_, line)| line.contains(path))
            .map(|(connection, _)| *connection)
            .collect()
    }
}

#[tokio::test]
async fn a_connection_that_still_waits_for_a_body_is_never_used_again() {
    let ground = Ground::new().await;
    let server = Hasty::start(&ground).await;
    let proxy = ground.proxy_beside(server.addr).await;
    for (round, upgrade) in ["", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"]
        .into_iter()
        .enumerate()
    {
        for path in ["/apis/zz/v1/things", "/carrier"] {
            let mut client = proxy
                .client(&ground.pki)
                .cert("alice")
                .connect_raw(&["http/1.1"])
                .await
                .unwrap();
            let request = format!(
                "POST {path}?{round} HTTP/1.1\r\nHost: x\r\n{upgrade}Content-Length: 500\r\n\r\nhalf"
            );
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 9];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 ");
        }
        let admin = proxy.client(&ground.pki).cert("admin").http1();
        admin.get(&format!("/victim?{round}")).await;
    }
    let poisoned = [
        server.connections_of("/apis/zz"),
        server.connections_of("/carrier"),
    ]
    .concat();
    let victims = server.connections_of("/victim");
    assert_eq!((poisoned.len(), victims.len()), (4, 2));
    assert!(
        victims.iter().all(|victim| !poisoned.contains(victim)),
        "{:?}",
        server.seen.lock().unwrap()
    );
    let seen = server.seen.lock().unwrap();
    assert!(
        seen.iter().all(|(_, line)| line.ends_with(" HTTP/1.1")),
        "half a body was read as a request: {seen:?}"
    );
}

/// Writes `parts` one after the other as the administrator, and reads until the other side closes.
async fn exchange(client: &Client, parts: &[&str]) -> String {
    let admin = client.cert("admin");
    let mut client = admin.connect_raw(&["http/1.1"]).await.unwrap();
    for part in parts {
        client.write_all(part.as_bytes()).await.unwrap();
        client.flush().await.unwrap();
        // The parts are to arrive one by one.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, client.read_to_end(&mut answer))
        .await
        .expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn chunks_whose_ends_come_later_are_not_the_end() {
    let ground = Ground::new().await;
    for alpn in [vec!["http/1.1"], vec!["h2", "http/1.1"]] {
        let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
        options.alpn = alpn;
        let double = Double::start(options).await;
        let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
        let head = "POST /_double/upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        let parts = [head, "5\r\nfirst", "\r\n", "6\r\nsecond\r\n", "0\r\n\r\n"];
        let answer = exchange(&proxy.client(&ground.pki), &parts).await;
        assert!(answer.contains("\"bytes\":11"), "{answer}");
    }
}

#[tokio::test]
async fn both_bodies_can_be_large_at_once() {
    const SIZE: usize = 16 << 20;
    let world = Single::new().await;
    let client = world
        .client()
        .cert("admin")
        .connect_raw(&["http/1.1"])
        .await
        .unwrap();
    let (mut from, mut to) = split(client);
    let sending = tokio::spawn(async move {
        let head = format!(
            "POST /_double/mirror HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {SIZE}\r\n\r\n"
        );
        to.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b'x'; 64 << 10];
        for _ in 0..SIZE / piece.len() {
            to.write_all(&piece).await.unwrap();
        }
        // rustls holds on to what the socket did not take.
        to.flush().await.unwrap();
        to
    });
    let mut count = 0;
    let mut buffer = vec![0; 64 << 10];
    let reading = async {
        while count < SIZE {
            match from.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(read) => count += buffer[..read].iter().filter(|byte| **byte == b'x').count(),
            }
        }
    };
    tokio::time::timeout(LONG, reading)
        .await
        .expect("neither side waits for the other for ever");
    assert_eq!(count, SIZE);
    sending.await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_read_even_by_a_client_that_is_still_sending() {
    let world = Single::new().await;
    for _ in 0..8 {
        let admin = world.client().cert("admin").http1().timeout(LONG);
        let answer = admin
            .request("POST", "/api/v1/%zz", vec![b'x'; 20 << 20])
            .await;
        assert_eq!(answer.code(), 400);
    }
}

#[tokio::test]
async fn what_follows_a_refused_body_is_not_a_request() {
    let world = Single::new().await;
    let body = "GET /_double/echo?smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let request = format!(
        "POST /api/v1/%zz HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len() + 100
    );
    let answer = exchange(&world.client(), &[&request, body]).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(world.double.count("/_double/echo"), 0);
}

#[tokio::test]
async fn odd_requests_are_answered_as_go_would() {
    let world = Single::new().await;
    for (request, starts) in [
        ("GET /version HTTP/1.0\r\n\r\n", "HTTP/1.1 200"),
        (
            "GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.1 200",
        ),
        (
            "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 400",
        ),
        (
            "CONNECT /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 400",
        ),
        (
            "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 400",
        ),
        (
            "POST /_double/upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3, 3\r\n\r\nabc",
            "HTTP/1.1 200",
        ),
        (
            "POST /_double/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "HTTP/1.1 400",
        ),
    ] {
        let answer = exchange(&world.client(), &[request]).await;
        assert!(answer.starts_with(starts), "{request:?}: {answer}");
        assert!(
            !answer.to_lowercase().contains("connection: keep-alive"),
            "{request:?}: {answer}"
        );
    }
}
