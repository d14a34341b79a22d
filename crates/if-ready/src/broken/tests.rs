use std::io::ErrorKind;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

fn request() -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = "http://server.test/x".parse().unwrap();
    request
}

/// hyper's error over HTTP/1.1 when the server reads the request, writes `written` and closes.
async fn after(written: &[u8]) -> hyper::Error {
    let (here, mut there) = duplex(4096);
    let made = hyper::client::conn::http1::handshake(TokioIo::new(here)).await;
    let (mut sender, connection) = made.unwrap();
    let connection = tokio::spawn(connection);
    let server = async {
        assert!(there.read(&mut [0; 1024]).await.unwrap() > 0);
        there.write_all(written).await.unwrap();
        drop(there);
    };
    let (answer, ()) = tokio::join!(sender.send_request(request()), server);
    let error = answer.unwrap_err();
    // Either result is fine.
    let _ = connection.await.unwrap();
    error
}

/// hyper's error over HTTP/2 when the server does `server` instead of answering.
async fn over_http2(
    server: impl AsyncFnOnce(h2::server::Connection<DuplexStream, Bytes>),
) -> hyper::Error {
    let (here, there) = duplex(4096);
    let made =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(here)).await;
    let (mut sender, connection) = made.unwrap();
    let connection = tokio::spawn(connection);
    let server = async {
        let mut there = h2::server::handshake(there).await.unwrap();
        let asked = there.accept().await.unwrap().unwrap();
        server(there).await;
        drop(asked);
    };
    let (answer, ()) = tokio::join!(sender.send_request(request()), server);
    let error = answer.unwrap_err();
    let _ = connection.await.unwrap();
    error
}

#[tokio::test]
async fn an_end_before_the_end_of_the_header_is_one() {
    for written in ["", "HTTP/1.1 200 OK\r\nA: "] {
        let error = after(written.as_bytes()).await;
        assert!(is_broken(&error), "{error:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_none() {
    let error = after(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await;
    assert!(!is_broken(&error), "{error:?}");
}

#[tokio::test]
async fn a_farewell_over_http2_is_one() {
    let error = over_http2(async |mut connection| {
        connection.abrupt_shutdown(h2::Reason::NO_ERROR);
        while connection.accept().await.is_some() {}
    })
    .await;
    assert!(is_broken(&error), "{error:?}");
}

#[tokio::test]
async fn the_end_of_a_connection_over_http2_is_one() {
    let error = over_http2(async |connection| drop(connection)).await;
    assert!(is_broken(&error), "{error:?}");
}

#[test]
fn errors_of_the_network_row_by_row() {
    use ErrorKind as K;
    for (kind, expected) in [
        (K::ConnectionReset, true),
        (K::UnexpectedEof, true),
        (K::BrokenPipe, true),
        (K::ConnectionRefused, false),
        (K::TimedOut, false),
        (K::InvalidData, false),
        (K::HostUnreachable, false),
        (K::Other, false),
    ] {
        let plain = io::Error::from(kind);
        assert_eq!(is_broken(&plain), expected, "{kind:?}");
        // As TLS and connectors wrap it.
        let wrapped = io::Error::other(io::Error::new(kind, "why"));
        assert_eq!(is_broken(&wrapped), expected, "{kind:?}");
        let outer = Outer(Box::new(wrapped));
        assert_eq!(is_broken(&outer), expected, "{kind:?}");
    }
}

#[derive(Debug, thiserror::Error)]
#[error("client error")]
struct Outer(#[source] Box<dyn Error + Send + Sync>);

#[tokio::test]
async fn errors_of_http_are_found_within_those_of_the_network() {
    let broken = io::Error::other(after(b"").await);
    assert!(is_broken(&Outer(Box::new(broken))));
}
