//! Large headers: the proxy accepts from every client what kube-apiserver accepts, and no other client is affected.

use http::{HeaderName, HeaderValue, Request};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::limits::clients::{MIB, Ordeal, beginning};
use testkit::client::Client;
use testkit::cluster::{Cluster, HPAS, LONG, Single, of_each_version};
use testkit::kube::KubeApiServer;
use testkit::pki::SERVER_NAME;
use testkit::raw::{self, END_HEADERS, END_STREAM, HEADERS, frame};
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;
use testkit::wire::{Pieces, Wire, request};

const CONTINUATION: u8 = 9;
const ECHO: &str = "/_double/echo";

type Fields = Vec<(HeaderName, HeaderValue)>;

/// So many fields of one name, each with so many bytes.
fn fields(count: usize, size: usize) -> Fields {
    let value = |number: usize| {
        let number = number.to_string();
        let rest = size.saturating_sub(number.len());
        HeaderValue::try_from(number + &"x".repeat(rest)).unwrap()
    };
    let fields = (0..count).map(|number| (HeaderName::from_static("x-many"), value(number)));
    fields.collect()
}

fn get(path: &str, fields: &Fields) -> Request<Pieces> {
    let mut request = request("GET", path, Pieces::of([]));
    for (name, value) in fields {
        request.headers_mut().append(name, value.clone());
    }
    request
}

/// The code of an answer over each version of HTTP.
async fn codes(client: &Client, path: &str, fields: &Fields) -> [u16; 2] {
    let mut codes = [0; 2];
    for (code, wire) in codes.iter_mut().zip(Wire::each(client)) {
        let mut wire = wire.await;
        *code = wire
            .send(SERVER_NAME, get(path, fields))
            .await
            .unwrap()
            .code();
    }
    codes
}

pub async fn what_kube_apiserver_takes_is_taken(server: &KubeApiServer, through: &Client) {
    for (count, size) in [
        (255, 10),
        (257, 10),
        (1000, 20),
        (5000, 20),
        (1, 64 << 10),
        (1, 900 << 10),
        (900, 1000),
    ] {
        let fields = fields(count, size);
        let straight = codes(server.admin(), "/version", &fields).await;
        assert_eq!(straight, [200, 200], "{count} of {size} bytes");
        assert_eq!(
            codes(through, "/version", &fields).await,
            straight,
            "{count} of {size} bytes"
        );
    }
    // The last of many groups is the one that may.
    for (last, code) in [("system:masters", 200), ("nobody", 403)] {
        let group = |number| match number {
            499 => last.to_owned(),
            number => format!("a-group-with-a-name-of-some-length-{number}"),
        };
        let name = HeaderName::from_static("impersonate-group");
        let groups =
            (0..500).map(|number| (name.clone(), HeaderValue::try_from(group(number)).unwrap()));
        let user = (
            HeaderName::from_static("impersonate-user"),
            HeaderValue::from_static("jane"),
        );
        let fields = [user].into_iter().chain(groups).collect();
        for client in [server.admin(), through] {
            let codes = codes(client, "/api/v1/secrets", &fields).await;
            assert_eq!(codes, [code; 2], "{last}");
        }
    }
}

#[tokio::test]
async fn every_field_arrives_as_it_was_and_in_its_order() {
    for world in of_each_version().await {
        for (count, size) in [(300, 7), (5000, 20), (7000, 100), (1, 900 << 10)] {
            let sent = fields(count, size);
            for wire in Wire::each(&world.client().cert("admin")) {
                let mut wire = wire.await;
                world.double.take_requests();
                let answer = wire.send(SERVER_NAME, get(ECHO, &sent)).await.unwrap();
                assert_eq!(
                    answer.code(),
                    200,
                    "{count} of {size} bytes: {}",
                    answer.text()
                );
                let seen = world.double.requests();
                let echo = seen.iter().find(|request| request.path == ECHO).unwrap();
                let values = echo.header_values("x-many");
                assert!(
                    values
                        .iter()
                        .eq(sent.iter().map(|(_, value)| value.to_str().unwrap()))
                );
            }
        }
    }
}

#[tokio::test]
async fn the_body_behind_a_large_head_and_the_next_request_are_where_they_were() {
    let world = Single::new().await;
    let head = |path: &str| {
        let fields = "X-Many: 1\r\n".repeat(1000);
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: 4\r\n\r\nbody")
    };
    let last = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let bytes = [&head("/_double/a"), &head("/_double/b"), last].concat();
    let answers = raw::http1(&world.client().cert("admin"), bytes.as_bytes()).await;
    assert_eq!(raw::codes(&answers).len(), 3, "{}", answers.escape_ascii());
    for path in ["/_double/a", "/_double/b"] {
        let seen = world.double.requests();
        let seen = seen.iter().find(|request| request.path == path).unwrap();
        assert_eq!(seen.header_values("x-many").len(), 1000);
    }
}

#[tokio::test]
async fn exec_may_have_hundreds_of_fields() {
    const EXEC: &str = "/api/v1/namespaces/default/pods/x/exec";
    let world = Single::new().await;
    let client = world.client().cert("admin");
    let groups: String = (0..500)
        .map(|number| format!("Impersonate-Group: {number}\r\n"))
        .collect();
    let request = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: x\r\n{groups}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
    );
    let mut stream = Upgraded::open(&client, &request, b"early").await.unwrap();
    stream.expect(b"early").await.unwrap();
    let seen = world.double.requests();
    let exec = seen.iter().find(|request| request.path == EXEC).unwrap();
    let expected: Vec<_> = (0..500).map(|number| number.to_string()).collect();
    assert_eq!(exec.header_values("impersonate-group"), expected);
}

#[tokio::test]
async fn a_large_header_goes_through_two_proxies() {
    let cluster = Cluster::new().await;
    let client = cluster.client().cert("admin");
    for (count, size) in [(300, 10), (5000, 20), (1, 900 << 10), (900, 1000)] {
        assert_eq!(codes(&client, HPAS, &fields(count, size)).await, [200, 200]);
    }
    let seen = cluster.b.requests();
    let largest = seen.iter().rfind(|request| request.path == HPAS).unwrap();
    assert_eq!(largest.header_values("x-many").len(), 900);
}

#[tokio::test]
async fn what_is_too_large_is_told_so() {
    let world = Single::new().await;
    let [http1, http2] = world.admins();
    let just_over = fields(1, (1 << 20) + 300);
    let lines = fields(140_000, 1);
    for (client, fields) in [
        (&http2, &just_over),
        (&http1, &fields(1, 1_060_000)),
        (&http1, &fields(2000, 1000)),
        (&http1, &lines),
    ] {
        let mut wire = match std::ptr::eq(client, &http1) {
            true => Wire::http1(client).await,
            false => Wire::http2(client).await,
        };
        let answer = wire.send(SERVER_NAME, get(ECHO, fields)).await.unwrap();
        assert_eq!(answer.code(), 431, "{}", answer.text());
        let status = answer.json();
        assert_eq!(status["reason"], "RequestHeaderFieldsTooLarge");
        assert_eq!(
            (&status["kind"], &status["code"]),
            (&json!("Status"), &json!(431))
        );
    }
    assert_eq!(world.double.count(ECHO), 0);
}

#[tokio::test]
async fn a_connection_has_room_for_some_large_headers_at_once() {
    const WATCH: &str = "/api/v1/pods?watch=true";
    let world = Single::new().await;
    let client = world.client().cert("admin");
    let large = fields(1, 900 << 10);
    let mut wire = Wire::http2(&client).await;
    let mut open = Vec::new();
    for number in 0..4 {
        let answer = wire.open(SERVER_NAME, get(WATCH, &large)).await.unwrap();
        assert_eq!(answer.status, 200, "{number}");
        open.push(answer);
    }
    let answer = wire.send(SERVER_NAME, get(WATCH, &large)).await.unwrap();
    assert_eq!(answer.code(), 431);
    // Others are others, and ordinary ones are not counted.
    assert_eq!(codes(&client, "/version", &large).await, [200, 200]);
    let answer = wire
        .send(SERVER_NAME, get("/version", &fields(100, 10)))
        .await
        .unwrap();
    assert_eq!(answer.code(), 200);
    drop(open);
    eventually("there is room again", LONG, async || {
        let answer = wire
            .send(SERVER_NAME, get("/version", &large))
            .await
            .unwrap();
        answer.code() == 200
    })
    .await;
}

#[tokio::test]
async fn large_headers_that_never_end_hold_little_whoever_sends_them() {
    const CONNECTIONS: usize = 300;
    let mut ordeal = Ordeal::begin().await;
    let client = ordeal.world.client();
    let line = format!(
        "GET /version HTTP/1.1\r\nHost: x\r\nX-A: {}",
        "a".repeat(1_000_000)
    );
    // One byte is a field of 60: `accept-encoding` is in the static table.
    let many = vec![0x90; 8000];
    let block = [
        beginning(),
        frame(HEADERS, END_STREAM, 1, &[0x82, 0x87, 0x84]),
        frame(CONTINUATION, 0, 1, &many),
        frame(CONTINUATION, 0, 1, &many),
    ]
    .concat();
    for (alpn, bytes) in [("http/1.1", line.as_bytes()), ("h2", &block[..])] {
        let mut kept = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut tls = client.connect_raw(&[alpn]).await.unwrap();
            // Who made room for others is cut off.
            let _ = tls.write_all(bytes).await;
            let _ = tls.flush().await;
            kept.push(tls);
        }
        assert!(ordeal.grown() < 256 * MIB, "{alpn}: {} KiB", ordeal.grown());
        // Whoever sends one at once is served all the same.
        let admin = client.cert("admin");
        assert_eq!(
            codes(&admin, "/version", &fields(1, 900 << 10)).await,
            [200, 200]
        );
    }
    ordeal.end(256).await;
}

#[tokio::test]
async fn large_blocks_at_once_are_looked_at_one_by_one() {
    let ordeal = Ordeal::begin().await;
    let client = ordeal.world.client();
    // A megabyte of fields in 16 KiB, on each of many streams, in one go.
    let mut bytes = beginning();
    for stream in (1..2001).step_by(2) {
        let block = [&[0x83, 0x87, 0x84, 0x01, 1, b'x'][..], &[0x90; 16_000]].concat();
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &block));
    }
    let mut tls = client.connect_raw(&["h2"]).await.unwrap();
    let _ = tokio::time::timeout(LONG, tls.write_all(&bytes)).await;
    let _ = tls.flush().await;
    ordeal.end(128).await;
}
