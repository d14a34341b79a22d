//! Connections of both admin ports, and HTTP/1.1 over them.
//!
//! Anyone who can reach a port may connect and stay idle; that must not use up the file descriptors that clients and etcd
//! need. New connections always get a place, so that probes get responses: above the limit the oldest connection is closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::page;
use super::pages::{AdminResponse, text};
use crate::log_throttle::LogRateLimit;
use crate::net::lock;

/// For the whole header of the first request.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// From an answer to the whole header of the next request: Prometheus comes back on the same connection after its scrape
/// interval.
const NEXT_TIMEOUT: Duration = Duration::from_secs(120);
/// For an answer and for reading it. hyper does not tell when it was read: a client that comes back sooner has more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// A port and what its connections may use.
pub(super) struct AdminPort {
    /// For the log.
    pub(super) name: &'static str,
    /// Most connections at once.
    pub(super) most: usize,
    /// For how long a connection keeps its place at least.
    pub(super) grace: Duration,
    /// Which connections are served, those that get too high a file number not.
    pub(super) may_use: fn(&TcpStream) -> bool,
}

impl AdminPort {
    /// Serves each connection with `serve`, until dropped.
    pub(super) async fn accept<S: Future<Output = ()> + Send + 'static>(
        &self,
        listener: TcpListener,
        serve: impl Fn(TcpStream, SocketAddr) -> S,
    ) {
        let name = self.name;
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "{name} cannot be used"),
        };
        let mut open: VecDeque<(Instant, JoinHandle<()>)> = VecDeque::new();
        let log_rate = LogRateLimit::new();
        let refused = |problem: &dyn Display| {
            if let Some(left_out) = log_rate.admit() {
                tracing::warn!(%problem, left_out, "cannot accept on the {name}");
            }
        };
        loop {
            match listener.accept().await {
                Ok((tcp, from)) if (self.may_use)(&tcp) => {
                    open.retain(|(_, connection)| !connection.is_finished());
                    if open.len() >= self.most
                        && let Some((since, mut oldest)) = open.pop_front()
                        && timeout_at(since + self.grace, &mut oldest).await.is_err()
                    {
                        oldest.abort();
                        // Its files are closed by then.
                        let _ = oldest.await;
                    }
                    open.push_back((Instant::now(), tokio::spawn(serve(tcp, from))));
                }
                Ok(_) => refused(&"too many files are open"),
                Err(error) => {
                    refused(&error);
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Answers the requests of one connection; `answer` is asked for GET and HEAD.
pub(super) async fn serve_http<A: Future<Output = AdminResponse>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(request::Parts) -> A,
) {
    let end = Mutex::new(Instant::now() + FIRST_TIMEOUT);
    let end = || lock(&end);
    let service = service_fn(|request: Request<Incoming>| {
        *end() = Instant::now() + ANSWER_TIMEOUT + NEXT_TIMEOUT;
        let (request, _) = request.into_parts();
        let wanted = matches!(request.method, Method::GET | Method::HEAD);
        let answer = wanted.then(|| answer(request));
        async {
            let answer = match answer {
                Some(answer) => answer.await,
                None => text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"),
            };
            Ok::<_, Infallible>(response(answer))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    loop {
        let until = *end();
        // Nobody is told of an error: it may have the header in it, with a token.
        let ended = timeout_at(until, connection.as_mut()).await;
        if ended.is_ok() || *end() == until {
            return;
        }
    }
}

fn response((status, content_type, body): AdminResponse) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page::protect(headers);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;
    use crate::admin::pages::TEXT;

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_nothing_or_reads_nothing_is_closed_and_who_has_asked_may_come_back() {
        const ROOM: usize = 64 << 10;
        let unread = ANSWER_TIMEOUT + NEXT_TIMEOUT;
        for (sent, room, time) in [
            ("", ROOM, FIRST_TIMEOUT),
            ("GET / HTTP/1.1\r\nhost:", ROOM, FIRST_TIMEOUT),
            ("GET / HTTP/1.1\r\n\r\n", ROOM, NEXT_TIMEOUT),
            ("GET / HTTP/1.1\r\n\r\nGET", ROOM, NEXT_TIMEOUT),
            ("GET / HTTP/1.1\r\n\r\n", 64, unread),
        ] {
            let (mut client, server) = duplex(room);
            client.write_all(sent.as_bytes()).await.unwrap();
            let answer = |_: request::Parts| async { (StatusCode::OK, TEXT, "x".repeat(1000)) };
            let begun = Instant::now();
            serve_http(server, answer).await;
            let took = begun.elapsed().as_secs();
            assert_eq!(took, time.as_secs(), "{sent:?} {room}");
        }
    }
}
