//! If one side disconnects in the middle of an exchange, the proxy disconnects the other.

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use testkit::cluster::{Ground, LONG, Single, of_each_version};
use testkit::pki::SERVER_NAME;
use testkit::proxy::{Proxy, Until};
use testkit::raw;
use testkit::streaming::Streaming;
use testkit::wait::eventually;
use testkit::wire::{Pieces, Wire, request};

const UPLOAD: &str = "/_double/upload";

#[tokio::test]
async fn when_the_client_goes_away_the_apiserver_is_told() {
    for world in of_each_version().await {
        for path in [
            "/_double/ticks?ms=10",
            "/_double/hang",
            "/_double/big?bytes=9999999999",
        ] {
            for wire in Wire::each(&world.client().cert("admin")) {
                let mut wire = wire.await;
                world.double.take_requests();
                let asked = request("GET", path, Pieces::default());
                let opening = wire.open(SERVER_NAME, asked);
                let arrived =
                    eventually("it arrived", LONG, async || world.double.count(path) == 1);
                // The answer of one of these never comes.
                tokio::select! {
                    answer = opening => {
                        let mut answer = answer.unwrap();
                        assert!(answer.next_chunk(LONG).await.unwrap().is_some());
                    }
                    () = arrived => {}
                }
                assert_eq!(over(&world, path), Some(false));
                drop(wire);
                eventually("the apiserver's side is over", LONG, async || {
                    over(&world, path) == Some(true)
                })
                .await;
            }
        }
    }
}

/// Over HTTP/1.1: no bytes of the client end a request that is being answered, whatever they are.
#[tokio::test]
async fn what_comes_while_a_request_is_answered_waits_its_turn() {
    const SLOW: &str = "/_double/slow?ms=700";
    for world in of_each_version().await {
        for (what, second, codes) in [
            (
                "a request",
                "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                [200, 200],
            ),
            ("no request", "GE@T / HTTP/1.1\r\n\r\n", [200, 400]),
        ] {
            for method in ["GET", "DELETE"] {
                world.double.take_requests();
                let admin = world.client().cert("admin");
                let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
                let first = format!("{method} {SLOW} HTTP/1.1\r\nHost: x\r\n\r\n");
                tls.write_all(first.as_bytes()).await.unwrap();
                let arrived = async || world.double.count("/_double/slow") == 1;
                eventually("it arrived", LONG, arrived).await;
                tls.write_all(second.as_bytes()).await.unwrap();
                let mut answers = Vec::new();
                // A close without close_notify is an end too.
                let end = timeout(LONG, tls.read_to_end(&mut answers)).await;
                let answers = raw::codes(&answers);
                assert!(
                    end.is_ok(),
                    "{method}, then {what}: still open, {answers:?}"
                );
                assert_eq!(answers, codes, "{method}, then {what}");
            }
        }
    }
}

#[tokio::test]
async fn when_the_client_goes_away_in_its_body_the_apiserver_is_told() {
    for world in of_each_version().await {
        for alpn in ["http/1.1", "h2"] {
            world.double.take_requests();
            let admin = world.client().cert("admin").timeout(LONG);
            if alpn == "http/1.1" {
                let mut tls = admin.connect_raw(&[alpn]).await.unwrap();
                let head = "POST /_double/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\nhalf";
                tls.write_all(head.as_bytes()).await.unwrap();
                tls.flush().await.unwrap();
                arrived(&world, 4).await;
                drop(tls);
            } else {
                let mut wire = Wire::http2(&admin).await;
                let body = Pieces::of([Bytes::from_static(b"half")]).unfinished();
                let sending = tokio::spawn(async move {
                    let asked = request("POST", UPLOAD, body);
                    wire.open(SERVER_NAME, asked).await.is_ok()
                });
                arrived(&world, 4).await;
                sending.abort();
                assert!(sending.await.unwrap_err().is_cancelled());
            }
            eventually("the apiserver's side is over", LONG, async || {
                over(&world, UPLOAD) == Some(true)
            })
            .await;
        }
    }
}

/// Whether the request for `path` is over; `None` before it has arrived.
fn over(world: &Single, path: &str) -> Option<bool> {
    let seen = world.double.requests();
    let request = seen.iter().find(|request| request.path == path)?;
    Some(request.over)
}

/// Waits until so much of an upload is at the apiserver.
async fn arrived(world: &Single, bytes: u64) {
    eventually("the first piece arrived", LONG, async || {
        let seen = world.double.requests();
        seen.iter()
            .any(|request| request.path == UPLOAD && request.body_len == bytes)
    })
    .await;
    assert_eq!(over(world, UPLOAD), Some(false));
}

#[tokio::test]
async fn when_the_apiserver_goes_away_the_client_is_told() {
    for world in of_each_version().await {
        for wire in Wire::each(&world.client().cert("admin")) {
            let mut wire = wire.await;
            let asked = request("GET", "/_double/ticks?ms=10", Pieces::default());
            let mut answer = wire.open(SERVER_NAME, asked).await.unwrap();
            assert!(answer.next_chunk(LONG).await.unwrap().is_some());
            world.double.drop_connections();
            breaks_off(answer).await;
        }
    }
}

/// Over HTTP/2 its connection lives on.
#[tokio::test]
async fn when_the_apiserver_breaks_off_an_answer_the_client_is_told() {
    for world in of_each_version().await {
        let admin = world.client().cert("admin");
        for wire in Wire::each(&admin) {
            let mut wire = wire.await;
            let asked = request("GET", "/_double/reset?after=100000", Pieces::default());
            let answer = wire.open(SERVER_NAME, asked).await.unwrap();
            breaks_off(answer).await;
            assert_eq!(admin.fresh().get("/version").await.code(), 200);
        }
    }
}

async fn breaks_off(mut answer: Streaming) {
    let end = loop {
        match answer.next_chunk(LONG).await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    let error = end.expect_err("not the end of the body, but a break");
    assert!(error.to_string().contains("broke off"), "{error:#}");
}

#[tokio::test]
async fn when_the_apiserver_goes_away_in_a_body_the_client_is_told() {
    for world in of_each_version().await {
        for wire in Wire::each(&world.client().cert("admin")) {
            let mut wire = wire.await;
            world.double.take_requests();
            let body = Pieces::of([Bytes::from_static(b"half")]).unfinished();
            let asked = request("POST", UPLOAD, body);
            let sending = tokio::spawn(async move { wire.send(SERVER_NAME, asked).await });
            arrived(&world, 4).await;
            world.double.drop_connections();
            let answer = sending.await.unwrap().unwrap();
            assert_eq!(answer.code(), 503, "{}", answer.text());
            assert!(
                !answer.headers.contains_key("retry-after"),
                "it may have been executed"
            );
        }
    }
}

/// As servers do that refuse the client certificate under TLS 1.3, or the cipher suite for HTTP/2.
#[tokio::test]
async fn a_server_that_ends_http2_after_its_handshake_is_not_dialled_for_ever() {
    let ground = Ground::new().await;
    let (address, listener, acceptor) = ground.listen(&["h2"]).await;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            // Whatever becomes of it, it ends.
            drop(acceptor.accept(tcp).await);
        }
    });
    let options = ground.proxy("a", address.socket(6443)).until(Until::Live);
    let proxy = Proxy::start(options).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for (method, path) in [("GET", "/api/v1/namespaces"), ("POST", "/version")] {
        let answer = admin.request(method, path, "").await;
        assert_eq!(answer.code(), 503, "{}", answer.text());
        assert_ne!(answer.header("retry-after"), "", "it was not sent");
    }
}
