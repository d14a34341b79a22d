//! Bodies in both directions: framing, size, and a disconnect in the middle.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use testkit::client::Client;
use testkit::cluster::{LONG, Single, of_each_version};
use testkit::double::{Fault, ScriptedAnswer};
use testkit::pki::SERVER_NAME;
use testkit::wire::{Pieces, Wire, request};

const PATH: &str = "/told";
const UPLOAD: &str = "/_double/upload";
const MIB: usize = 1 << 20;

fn tell(world: &Single, scripted: ScriptedAnswer) {
    world
        .double
        .set_fault(PATH, Some(Fault::Answer(Box::new(scripted))));
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_its_body_is_asked() {
    for world in of_each_version().await {
        let admin = world.client().cert("admin");
        let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
        for _ in 0..2 {
            let head = "POST /_double/upload HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
            tls.write_all(head.as_bytes()).await.unwrap();
            // The body is not there yet: this can only come from being asked.
            let asked = "HTTP/1.1 100 Continue\r\n\r\n";
            assert_eq!(read(&mut tls, asked.len()).await, asked);
            tls.write_all(b"hello").await.unwrap();
            let start = "HTTP/1.1 200 OK\r\n";
            assert_eq!(read(&mut tls, start.len()).await, start);
            read_until(&mut tls, "{\"bytes\":5,\"trailers\":{}}\n").await;
        }
        let mut http2 = Wire::http2(&world.client().cert("admin")).await;
        let mut request = request("POST", UPLOAD, Pieces::measured("hello"));
        let expect = HeaderValue::from_static("100-continue");
        request.headers_mut().insert("expect", expect);
        let answer = http2.send(SERVER_NAME, request).await.unwrap();
        assert_eq!(answer.json()["bytes"], 5);
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin), length: usize) -> String {
    let mut text = String::new();
    while text.len() < length {
        let byte = tokio::time::timeout(LONG, from.read_u8())
            .await
            .unwrap_or_else(|_| panic!("no more than {text:?}"));
        let byte = byte.unwrap_or_else(|error| panic!("{error} after {text:?}"));
        text.push(byte.into());
    }
    text
}

async fn read_until(from: &mut (impl AsyncRead + Unpin), end: &str) {
    let mut text = String::new();
    while !text.ends_with(end) {
        text += &read(from, 1).await;
    }
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_is_told_at_once_when_it_is_refused() {
    let world = Single::new().await;
    let admin = world.client().cert("admin");
    let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
    let head =
        "POST /api/v1/%zz HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    tls.write_all(head.as_bytes()).await.unwrap();
    let start = "HTTP/1.1 400 Bad Request\r\n";
    assert_eq!(read(&mut tls, start.len()).await, start);
    assert_eq!(world.double.count("/api/v1/%zz"), 0);
}

#[tokio::test]
async fn a_client_that_was_asked_may_still_be_refused_by_the_apiserver() {
    for world in of_each_version().await {
        let admin = world.client().cert("admin");
        let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
        let head = "POST /_double/status?code=403 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        tls.write_all(head.as_bytes()).await.unwrap();
        // Over HTTP/2 pingora hides whether the apiserver asks: the proxy does, before it knows the answer.
        let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 Forbidden\r\n";
        assert_eq!(read(&mut tls, answer.len()).await, answer);
    }
}

#[tokio::test]
async fn trailers_of_answers_pass_over_http2_and_are_dropped_over_http1() {
    for (world, upstream) in of_each_version()
        .await
        .into_iter()
        .zip(["HTTP/2", "HTTP/1.1"])
    {
        let scripted = ScriptedAnswer::new(200)
            .body("all of it")
            .trailer("x-trailer", "after it");
        tell(&world, scripted.header("trailer", "x-trailer"));
        for (wire, client) in Wire::each(&world.client().cert("admin"))
            .into_iter()
            .zip(["HTTP/1.1", "HTTP/2"])
        {
            let mut wire = wire.await;
            for _ in 0..2 {
                let asked = request("GET", PATH, Pieces::default());
                let answer = wire.send(SERVER_NAME, asked).await.unwrap();
                assert_eq!(answer.text(), "all of it");
                let trailer = answer
                    .trailers
                    .as_ref()
                    .and_then(|trailers| trailers.get("x-trailer"))
                    .map(|value| value.to_str().unwrap());
                let passed = upstream == "HTTP/2" && client == "HTTP/2";
                let expected = passed.then_some("after it");
                assert_eq!(trailer, expected, "{client} to {upstream}");
            }
        }
    }
}

#[tokio::test]
async fn trailers_of_requests_are_dropped_and_the_body_is_whole() {
    for world in of_each_version().await {
        for wire in Wire::each(&world.client().cert("admin")) {
            let mut wire = wire.await;
            for _ in 0..2 {
                let mut trailers = HeaderMap::new();
                let name = HeaderName::from_static("x-trailer");
                trailers.insert(name, HeaderValue::from_static("after it"));
                let body = ["hello ", "and more"].map(Bytes::from);
                let body = Pieces::of(body).with_trailers(trailers);
                let mut asked = request("POST", UPLOAD, body);
                let announced = HeaderValue::from_static("x-trailer");
                asked.headers_mut().insert("trailer", announced);
                let answer = wire.send(SERVER_NAME, asked).await.unwrap().json();
                assert_eq!(
                    (&answer["bytes"], &answer["trailers"]),
                    (&14.into(), &serde_json::json!({}))
                );
            }
        }
    }
}

#[tokio::test]
async fn what_is_compressed_stays_as_it_is() {
    let compressed: Bytes = (0..40_000_u32).map(|number| (number * 7) as u8).collect();
    for world in of_each_version().await {
        let scripted = ScriptedAnswer::new(200)
            .header("content-encoding", "gzip")
            .header("content-type", "application/json")
            .header("vary", "Accept-Encoding")
            .body(compressed.clone());
        for scripted in [scripted.clone(), scripted.in_pieces(1000, Duration::ZERO)] {
            tell(&world, scripted);
            for client in world.admins() {
                for client in [client.header("accept-encoding", "gzip"), client] {
                    let answer = client.get(PATH).await;
                    assert_eq!(answer.body, compressed);
                    assert_eq!(answer.header("content-encoding"), "gzip");
                    assert_eq!(answer.header("vary"), "Accept-Encoding");
                }
            }
        }
        let [client, _] = world.admins();
        let direct = Client::new(world.double.addr(), &world.ground.pki).cert("admin");
        let mut sums = Vec::new();
        for client in [client, direct] {
            let client = client.header("content-encoding", "gzip");
            let echo = client.request("POST", "/_double/echo", compressed.clone());
            let echo = echo.await.json();
            assert_eq!(echo["bodyLength"], 40_000);
            sums.push(echo["bodySum"].clone());
        }
        assert_eq!(sums[0], sums[1]);
    }
}

#[tokio::test]
async fn every_kind_of_patch_and_verbs_nobody_knows_arrive_as_they_are() {
    for world in of_each_version().await {
        for client in world.admins() {
            for content_type in [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ] {
                let patch = client.header("content-type", content_type);
                let echo = patch.request("PATCH", "/_double/echo", "[]").await.json();
                assert_eq!(
                    (&echo["method"], &echo["bodyLength"]),
                    (&"PATCH".into(), &2.into())
                );
                let sent = serde_json::json!(["content-type", content_type]);
                assert!(
                    echo["headers"].as_array().unwrap().contains(&sent),
                    "{echo}"
                );
            }
            for verb in [
                "GET",
                "POST",
                "PUT",
                "DELETE",
                "OPTIONS",
                "TRACE",
                "FROBNICATE",
                "M-SEARCH",
                "lower",
            ] {
                for body in ["", "with a body"] {
                    let echo = client.request(verb, "/_double/echo", body).await.json();
                    assert_eq!(echo["method"], verb);
                    assert_eq!(echo["bodyLength"], body.len(), "{verb}");
                }
            }
        }
    }
}

/// The most memory that the process ever had, in KiB. The kernel's count is not exact: it can go down a little.
pub fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap()
}

#[tokio::test]
async fn large_bodies_are_streamed_in_little_memory() {
    const SIZE: usize = 50 * MIB;
    const LIMIT: u64 = 32 << 10;
    for mut world in of_each_version().await {
        let pid = world.proxy.process().pid();
        let piece = Bytes::from(vec![b'x'; 64 << 10]);
        for wire in Wire::each(&world.client().cert("admin")) {
            let mut wire = wire.await;
            let before = peak(pid);
            let body = Pieces::of(std::iter::repeat_n(piece.clone(), SIZE / piece.len()));
            let asked = request("POST", UPLOAD, body);
            let answer = wire.send(SERVER_NAME, asked).await.unwrap();
            assert_eq!(answer.json()["bytes"], SIZE);

            let path = format!("/_double/big?bytes={SIZE}");
            let asked = request("GET", &path, Pieces::default());
            let mut answer = wire.open(SERVER_NAME, asked).await.unwrap();
            let mut length = 0;
            while let Some(chunk) = answer.next_chunk(LONG).await.unwrap() {
                length += chunk.len();
            }
            assert_eq!(length, SIZE);
            let grown = peak(pid).saturating_sub(before);
            assert!(grown < LIMIT, "{grown} KiB more than before");
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_little_memory_and_holds_up_nobody() {
    const SIZE: usize = 50 * MIB;
    for mut world in of_each_version().await {
        let pid = world.proxy.process().pid();
        let before = peak(pid);
        for wire in Wire::each(&world.client().cert("admin")) {
            let mut wire = wire.await;
            let path = format!("/_double/big?bytes={SIZE}");
            let asked = request("GET", &path, Pieces::default());
            let mut lazy = wire.open(SERVER_NAME, asked).await.unwrap();
            assert!(lazy.next_chunk(LONG).await.unwrap().is_some());
            for client in world.admins() {
                for _ in 0..20 {
                    assert_eq!(client.get("/version").await.code(), 200);
                }
            }
            let seen = world.double.requests();
            assert!(
                seen.iter()
                    .any(|request| request.path == path && !request.over)
            );
            let mut length = 0;
            while let Some(chunk) = lazy.next_chunk(LONG).await.unwrap() {
                length += chunk.len();
            }
            assert!(length > SIZE / 2, "{length}");
        }
        let grown = peak(pid).saturating_sub(before);
        assert!(grown < 32 << 10, "{grown} KiB more than before");
    }
}
