//! Serves a client's HTTP/2 connection: each stream is a request.
//!
//! After GOAWAY a client may open streams until it has read the GOAWAY; later streams are refused.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use pingora_core::protocols::http::authority::{RawTargetAuthority, raw_target_authority};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};

use super::socket::ClientSocket;
use crate::net::{WriteBatch, batched, lengths_agree};
use crate::relay::client::{ClientSession, ClientStream, Downstream, READ_HEADER, SEND_BUFFER};
use crate::relay::service::{FIRST_REQUEST_TIMEOUT, IDLE_TIMEOUT, RelayService};
use crate::relay::upstream::STREAMS;
use crate::shutdown::ShutdownPhase;

/// Most malformed streams of a connection, as in pingora.
const MOST_MALFORMED: usize = 32;
/// Time for a client to read the GOAWAY. kube-apiserver closes the connection after the same time.
const GRACE: Duration = Duration::from_secs(1);
/// A connection that ends is kept open for this long without requests, because the last answers may still be in flight.
const LINGER: Duration = Duration::from_secs(10);

/// As kube-apiserver.
const MAX_STREAMS: u32 = 250;
/// All users of a peer share a few connections. A watch that waits for a stream would look like a watch that hangs.
const PEERS_STREAMS: u32 = 1000;
/// Bytes of a request's body that may wait here, as in kube-apiserver; and of all bodies of one connection. Fewer than
/// 64 stalled uploads do not delay other requests of the connection; on a peer's, as many as it sends on one.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
const PEERS_WINDOW: u32 = STREAMS * STREAM_WINDOW;
/// Most streams that were reset before they were accepted; HTTP/2 closes a connection with more. All users of a peer
/// share a few connections.
const RESET_STREAMS: usize = 256;

/// Serves a connection to its end, and writes its answers in batches. Once the proxy drains it ends, too, but streams that
/// arrive before the end are served. One without a request when the drain begins, or that comes later, ends with the answer
/// to its first request.
pub async fn serve(
    service: &Arc<RelayService>,
    mut socket: ClientSocket<impl AsyncRead + AsyncWrite + Unpin>,
    downstream: &Arc<Downstream>,
) {
    let of_a_peer = service.is_peer(downstream);
    socket.watch_frames(of_a_peer);
    let (stream, flush) = batched(socket);
    let handshake = options(of_a_peer).handshake(stream);
    let mut connection = match flush.run(handshake).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "no HTTP/2 after the TLS handshake"),
    };
    let requests = Requests {
        service,
        downstream,
        running: Arc::default(),
        malformed: 0,
    };
    // Lent and pinned here, or the future would have room for them twice.
    let serving = pin!(serve_requests(&mut connection, requests));
    flush.run(serving).await;
}

/// The HTTP/2 settings of a client's connection.
fn options(of_a_peer: bool) -> Builder {
    let mut options = Builder::new();
    let (streams, window) = match of_a_peer {
        true => (PEERS_STREAMS, PEERS_WINDOW),
        false => (MAX_STREAMS, CONNECTION_WINDOW),
    };
    options.max_concurrent_streams(streams);
    options.max_header_list_size(READ_HEADER);
    options.max_pending_accept_reset_streams(RESET_STREAMS);
    options.initial_window_size(STREAM_WINDOW);
    options.initial_connection_window_size(window);
    options.max_send_buffer_size(SEND_BUFFER);
    options
}

async fn serve_requests(
    connection: &mut Connection<WriteBatch<impl AsyncRead + AsyncWrite + Unpin>, Bytes>,
    mut requests: Requests<'_>,
) {
    let (shutdown, downstream) = (requests.service.shutdown(), requests.downstream);
    let running = requests.running.clone();
    let draining = shutdown.is_draining();
    let mut lifetime = Lifetime {
        draining,
        ended: None,
        asked: false,
        idle_time: match draining {
            true => FIRST_REQUEST_TIMEOUT,
            false => IDLE_TIMEOUT,
        },
    };
    // These wait for longer than one request, because to begin to wait takes more than to go on. Unconstrained, because
    // they are polled after a client's frames, which may have taken all that tokio lets a task do at a time.
    let mut ending = pin!(downstream.ended());
    let mut stopping = pin!(unconstrained(shutdown.reaches(ShutdownPhase::Draining)));
    let mut idle = pin!(running.idle_for(lifetime.idle_time));
    loop {
        // Not left to the futures below: a client that never pauses may keep the first of them ready.
        if lifetime.update(downstream.is_ending(), shutdown.is_draining(), connection) {
            idle.set(running.idle_for(lifetime.idle_time));
        }
        let accepted = tokio::select! {
            biased;
            accepted = connection.accept() => accepted,
            () = &mut ending, if lifetime.ended.is_none() => continue,
            () = &mut stopping, if !lifetime.draining => continue,
            () = &mut idle => {
                if lifetime.ended.is_some() {
                    return;
                }
                // A client that is about to ask learns that its request was not processed.
                lifetime.end(connection);
                idle.set(running.idle_for(GRACE));
                continue;
            }
        };
        let (request, respond) = match accepted {
            Some(Ok(accepted)) => accepted,
            Some(Err(error)) => return tracing::debug!(%error, "connection ended"),
            None => return,
        };
        let was_idle = running.are_none();
        if !requests.begin(request, respond, lifetime.is_late()) {
            return;
        }
        lifetime.asked = true;
        // What was no request leaves the time without one as it is.
        if was_idle && !running.are_none() {
            idle.set(running.idle_for(lifetime.idle_time));
        }
    }
}

/// When a connection ends.
struct Lifetime {
    /// The proxy drains, and this connection knows.
    draining: bool,
    /// Set when this connection is to end, not when the proxy stops: when later streams are refused.
    ended: Option<Instant>,
    /// A first request has come.
    asked: bool,
    /// How long it stays open without requests.
    idle_time: Duration,
}

impl Lifetime {
    /// Follows what was decided about the connection and the proxy. `true`: the idle time begins anew.
    fn update(
        &mut self,
        is_ending: bool,
        is_draining: bool,
        connection: &mut Connection<impl AsyncRead + AsyncWrite + Unpin, Bytes>,
    ) -> bool {
        let ends = self.ended.is_none() && is_ending;
        if ends {
            self.end(connection);
        }
        let drains = !self.draining && is_draining;
        self.draining = is_draining;
        if drains && self.asked {
            connection.graceful_shutdown();
        } else if drains {
            // Many clients fail if GOAWAY comes before their first request. The connection ends with its answer.
            self.idle_time = FIRST_REQUEST_TIMEOUT;
        }
        ends || (drains && !self.asked)
    }

    fn end<T: AsyncRead + AsyncWrite + Unpin>(&mut self, connection: &mut Connection<T, Bytes>) {
        self.ended = Some(Instant::now() + GRACE);
        self.idle_time = LINGER;
        connection.graceful_shutdown();
    }

    /// Its client knows that it ends.
    fn is_late(&self) -> bool {
        self.ended.is_some_and(|until| Instant::now() > until)
    }
}

/// The requests of a connection.
struct Requests<'a> {
    service: &'a Arc<RelayService>,
    downstream: &'a Arc<Downstream>,
    running: Arc<Running>,
    /// Streams that were no requests.
    malformed: usize,
}

impl Requests<'_> {
    /// Begins a request; `is_late`: its client knows that the connection ends. `false`: the connection is to be closed.
    fn begin(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        is_late: bool,
    ) -> bool {
        if let Err(malformed) = check(&request) {
            match malformed {
                Malformed::Length | Malformed::Path => respond.send_reset(Reason::PROTOCOL_ERROR),
                Malformed::Authority => {
                    let mut answer = Response::new(());
                    *answer.status_mut() = StatusCode::BAD_REQUEST;
                    // The client may have gone away.
                    let _ = respond.send_response(answer, true);
                }
            }
            self.malformed += 1;
            return self.malformed < MOST_MALFORMED;
        }
        if is_late {
            respond.send_reset(Reason::REFUSED_STREAM);
            return !self.running.are_none();
        }
        self.downstream.accepted.fetch_add(1, Ordering::Relaxed);
        let session = ClientSession::H2(Box::new(ClientStream::new(request, respond)));
        let (service, running) = (self.service.clone(), self.running.clone().begin());
        let downstream = self.downstream.clone();
        tokio::spawn(service.process_stream(session, downstream, running));
        true
    }
}

/// What is wrong with a stream that is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Malformed {
    /// Its end may be another one to the next hop.
    Length,
    /// It has no path.
    Path,
    /// It does not name one host.
    Authority,
}

/// Refuses what may be understood in two ways (RFC 9113, sections 8.1.1 and 8.3.1), and a path that begins otherwise, as Go does.
fn check<B>(request: &Request<B>) -> Result<(), Malformed> {
    let (uri, headers) = (request.uri(), request.headers());
    if !lengths_agree(headers) {
        return Err(Malformed::Length);
    }
    if request.method() != Method::CONNECT && !uri.path_and_query().is_some_and(is_path) {
        return Err(Malformed::Path);
    }
    let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let (host, another) = (hosts.next(), hosts.next());
    let authority = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let named = authority.or(host).ok_or(Malformed::Authority)?;
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let in_path = raw_target_authority(target.as_bytes()) != RawTargetAuthority::None;
    let same = another.is_none() && host.is_none_or(|host| host == named);
    match same && !named.contains(&b'@') && !in_path {
        true => Ok(()),
        false => Err(Malformed::Authority),
    }
}

/// Whether it is `*` or begins with a slash. What is left of a fragment alone is empty: it looks like `/`, and is none.
fn is_path(target: &PathAndQuery) -> bool {
    let text = target.as_str();
    text.starts_with(['/', '*']) && (text != "/" || *target == PathAndQuery::from_static("/"))
}

/// Counts the running requests of a connection.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    none: Notify,
}

impl Running {
    fn begin(self: Arc<Self>) -> RunningRequest {
        self.count.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self)
    }

    fn are_none(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Resolves when there was no request for `time`.
    async fn idle_for(&self, time: Duration) {
        while !self.are_none() {
            self.none.notified().await;
        }
        unconstrained(sleep_until(Instant::now() + time)).await;
    }
}

/// A running request.
struct RunningRequest(Arc<Running>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.none.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(uri: &str, headers: &[(&str, &str)]) -> Result<(), Malformed> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap())
    }

    #[test]
    fn a_request_names_one_host_and_one_length() {
        for (uri, headers) in [
            ("https://h:6443/api?x=1", &[][..]),
            ("https://h/api", &[("host", "h"), ("content-length", "5")]),
            ("/api", &[("host", "h")]),
        ] {
            assert_eq!(checked(uri, headers), Ok(()), "{uri} {headers:?}");
        }
        for (uri, headers) in [
            ("/api", &[][..]),
            ("https://h/api", &[("host", "other")]),
            ("/api", &[("host", "h"), ("host", "h")]),
            ("/api", &[("host", "user@h")]),
            ("https://user@h/api", &[]),
        ] {
            assert_eq!(
                checked(uri, headers),
                Err(Malformed::Authority),
                "{uri} {headers:?}"
            );
        }
        let lengths = [("content-length", "5"), ("content-length", "6")];
        assert_eq!(checked("https://h/api", &lengths), Err(Malformed::Length));
    }
}
