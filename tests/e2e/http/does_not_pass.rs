//! Traffic that pingora cannot pass, and the result; and unusual answers that must pass. `docs/compatibility.md` has
//! the list for readers.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::proxy::Proxy;
use testkit::raw::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use testkit::wait::eventually;

/// An apiserver of HTTP/1.1 whose answers below `/told` are these bytes, and a proxy beside it.
struct Verbatim {
    answer: Arc<Mutex<Vec<u8>>>,
    proxy: Proxy,
    ground: Ground,
    _address: Loopback,
}

impl Verbatim {
    async fn start() -> Self {
        let ground = Ground::new().await;
        let (address, listener, acceptor) = ground.listen(&["http/1.1"]).await;
        let addr = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&answer);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, told) = (acceptor.clone(), Arc::clone(&told));
                tokio::spawn(async move {
                    let mut tls = acceptor.accept(tcp).await.ok()?;
                    let mut header = Vec::new();
                    while !header.ends_with(b"\r\n\r\n") {
                        header.push(tls.read_u8().await.ok()?);
                    }
                    let answer = match header.starts_with(b"GET /told") {
                        true => told.lock().ok()?.clone(),
                        false => {
                            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
                                .to_vec()
                        }
                    };
                    tls.write_all(&answer).await.ok()?;
                    tls.shutdown().await.ok()
                });
            }
        });
        Self {
            answer,
            proxy: ground.proxy_beside(addr).await,
            ground,
            _address: address,
        }
    }

    fn tell(&self, answer: &[u8]) {
        *self.answer.lock().unwrap() = answer.to_vec();
    }

    /// Of the proxy, over HTTP/1.1 and over HTTP/2.
    fn clients(&self) -> [Client; 2] {
        let client = self.proxy.client(&self.ground.pki).cert("admin");
        [client.http1(), client.http2()]
    }
}

#[tokio::test]
async fn interim_answers_are_dropped_and_the_final_one_is_whole() {
    let server = Verbatim::start().await;
    server.tell(
        b"HTTP/1.1 102 Processing\r\nX-Interim: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Interim: 2\r\n\r\n\
          HTTP/1.1 200 OK\r\nX-Final: yes\r\nContent-Length: 5\r\n\r\nwhole",
    );
    for client in server.clients() {
        let answer = client.get("/told").await;
        assert_eq!((answer.code(), answer.text()), (200, "whole".to_owned()));
        assert_eq!(answer.header("x-final"), "yes");
        assert!(!answer.headers.contains_key("x-interim"));
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_whole() {
    let server = Verbatim::start().await;
    let mut told = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
    told.extend(vec![b'x'; 200_000]);
    server.tell(&told);
    for client in server.clients() {
        for _ in 0..2 {
            let answer = client.get("/told").await;
            assert_eq!((answer.code(), answer.body.len()), (200, 200_000));
        }
    }
}

#[tokio::test]
async fn bodies_that_are_cut_off_are_never_taken_for_whole() {
    let server = Verbatim::start().await;
    for told in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
    ] {
        server.tell(told.as_bytes());
        for client in server.clients() {
            let answer = client.try_get("/told").await;
            assert!(answer.is_err(), "{told:?}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn answers_that_can_be_read_in_two_ways_are_not_passed_on() {
    let server = Verbatim::start().await;
    for told in [
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\nabcd",
        "HTTP/1.1 banana\r\n\r\n",
        "\0\0\0",
    ] {
        server.tell(told.as_bytes());
        for client in server.clients() {
            let answer = client.try_get("/told").await;
            // An error of ours, or a stream that is cut off: nothing of what was said.
            let passed = answer.is_ok_and(|answer| answer.code() != 503);
            assert!(!passed, "{told:?}");
        }
    }
}

#[tokio::test]
async fn bytes_beyond_ascii_pass_in_headers() {
    let server = Verbatim::start().await;
    server.tell(b"HTTP/1.1 200 OK\r\nX-Bytes: caf\xe9 \xe2\x82\xac\r\nContent-Length: 2\r\n\r\nok");
    for client in server.clients() {
        let answer = client.get("/told").await;
        assert_eq!(
            answer.headers["x-bytes"].as_bytes(),
            b"caf\xe9 \xe2\x82\xac"
        );
    }
}

/// What a target over HTTP/1.1 becomes: the status, and what the apiserver sees.
async fn sent(world: &Single, target: &[u8]) -> (String, Option<String>) {
    world.double.take_requests();
    let rest = b" HTTP/1.1\r\nHost: x\r\nX-Double-Echo: please\r\nConnection: close\r\n\r\n";
    let answer = raw(world, &["http/1.1"], &[b"GET ", target, rest].concat()).await;
    let status = String::from_utf8_lossy(&answer[..12.min(answer.len())]).into_owned();
    let seen = world.double.requests().into_iter();
    let seen = seen.map(|request| request.path);
    let seen = seen.filter(|path| path.starts_with("/told"));
    (status, seen.last())
}

#[tokio::test]
async fn bytes_that_no_target_may_have_are_refused() {
    let world = Single::new().await;
    for bytes in [
        &b"/told<"[..],
        b"/told>",
        b"/told`",
        b"/told?a=\"b\"",
        b"/told?a=<",
        b"/told\xff",
        b"/told?\xc3",
    ] {
        let (status, seen) = sent(&world, bytes).await;
        assert_eq!(status, "HTTP/1.1 400", "{}", bytes.escape_ascii());
        assert_eq!(seen, None, "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn blanks_and_what_deletes_arrive_percent_encoded() {
    let world = Single::new().await;
    for (bytes, path) in [
        (&b"/told a"[..], "/told%20a"),
        (b"/told?a b", "/told?a%20b"),
        (b"/told\x7f", "/told%7F"),
        (b"/told?\x7f", "/told?%7F"),
    ] {
        let expected = ("HTTP/1.1 200".to_owned(), Some(path.to_owned()));
        assert_eq!(sent(&world, bytes).await, expected);
    }
}

#[tokio::test]
async fn letters_beyond_ascii_pass_in_targets() {
    let world = Single::new().await;
    for path in ["/told-caf\u{e9}", "/told?q=\u{20ac}"] {
        let expected = ("HTTP/1.1 200".to_owned(), Some(path.to_owned()));
        assert_eq!(sent(&world, path.as_bytes()).await, expected);
    }
}

#[tokio::test]
async fn over_http2_what_follows_a_hash_sign_is_lost() {
    let world = Single::new().await;
    let path = "/_double/echo?a#b";
    let field = |index: u8, value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        [&[index, length], value.as_bytes()].concat()
    };
    // GET, https, and two literals that are not indexed.
    let block = [vec![0x82, 0x87], field(0x04, path), field(0x01, "x")].concat();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    let admin = world.client().cert("admin");
    let mut tls = admin.connect_raw(&["h2"]).await.unwrap();
    tls.write_all(&bytes).await.unwrap();
    tls.flush().await.unwrap();
    eventually("the request arrives", LONG, async || {
        world.double.count("/_double/echo") == 1
    })
    .await;
    let seen = world.double.requests();
    assert!(seen.iter().any(|request| request.path == "/_double/echo?a"));
}

/// Everything that comes until the connection is closed.
async fn raw(world: &Single, alpn: &[&str], bytes: &[u8]) -> Vec<u8> {
    let admin = world.client().cert("admin");
    let mut tls = admin.connect_raw(alpn).await.unwrap();
    tls.write_all(bytes).await.unwrap();
    tls.flush().await.unwrap();
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, tls.read_to_end(&mut answer))
        .await
        .expect("an end");
    answer
}
