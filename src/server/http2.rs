//! Serves a client's HTTP/2 connection: each stream is a request.
//!
//! After GOAWAY a client may open streams until it has read the GOAWAY; later streams are refused.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Handshake, SendResponse};
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use pingora_core::protocols::http::authority::{RawTargetAuthority, raw_target_authority};
use pingora_core::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep_until};

use super::accept::becomes_true;
use super::header_blocks::HeaderBlockWatch;
use crate::net::{WriteBatch, batched, lengths_agree};
use crate::relay::client::{
    ClientSession, ClientStream, Downstream, FIRST_REQUEST_TIMEOUT, IDLE_TIMEOUT,
};
use crate::relay::service::RelayService;

/// Most malformed streams of a connection, as in pingora.
const MOST_MALFORMED: usize = 32;
/// Time for a client to read the GOAWAY. kube-apiserver closes the connection after the same time.
const GRACE: Duration = Duration::from_secs(1);
/// A connection that ends is kept open for this long without requests, because the last answers may still be in flight.
const LINGER: Duration = Duration::from_secs(10);

/// Serves a connection to its end, and writes its answers in batches. After `closing` it ends, too, but streams that
/// arrive before the end are served. One that comes after `closing` ends with the answer to its first request.
pub async fn serve(
    service: &Arc<RelayService>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    downstream: &Arc<Downstream>,
    closing: &ShutdownWatch,
) {
    let of_a_peer = service.is_peer(downstream);
    let stream = HeaderBlockWatch::new(stream, of_a_peer, downstream.clone());
    let (stream, flush) = batched(stream);
    let handshake = service.http2_options(of_a_peer).handshake(stream);
    // Pinned here, or the future would have room for it twice.
    let serving = pin!(serve_requests(service, handshake, downstream, closing));
    flush.run(serving).await;
}

async fn serve_requests(
    service: &Arc<RelayService>,
    handshake: Handshake<WriteBatch<impl AsyncRead + AsyncWrite + Unpin>, Bytes>,
    downstream: &Arc<Downstream>,
    closing: &ShutdownWatch,
) {
    let mut connection = match handshake.await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "no HTTP/2 after the TLS handshake"),
    };
    let running = Arc::new(Running::default());
    let mut malformed = 0;
    let comes_late = *closing.borrow();
    let (mut closing, shutdown) = (closing.clone(), closing.clone());
    let mut going = comes_late;
    // Set when this connection is to end, not when the proxy stops.
    let mut ended: Option<Instant> = None;
    // These wait for longer than one request, because to begin to wait takes more than to go on. Unconstrained, because
    // they are polled after a client's frames, which may have taken all that tokio lets a task do at a time.
    let mut ending = pin!(downstream.ended());
    let mut stopping = pin!(unconstrained(becomes_true(&mut closing)));
    let first = if comes_late {
        FIRST_REQUEST_TIMEOUT
    } else {
        IDLE_TIMEOUT
    };
    let mut idle = pin!(running.idle_for(first));
    loop {
        // Not left to the futures below: a client that never pauses may keep the first of them ready.
        if ended.is_none() && downstream.is_ending() {
            ended = Some(Instant::now() + GRACE);
            idle.set(running.idle_for(LINGER));
            connection.graceful_shutdown();
        }
        if !going && !matches!(shutdown.has_changed(), Ok(false)) {
            going = true;
            connection.graceful_shutdown();
        }
        let accepted = tokio::select! {
            biased;
            accepted = connection.accept() => accepted,
            () = &mut ending, if ended.is_none() => continue,
            () = &mut stopping, if !going => continue,
            () = &mut idle => {
                if going || ended.is_some() {
                    return;
                }
                // A client that is about to ask learns that its request was not processed.
                ended = Some(Instant::now() + GRACE);
                idle.set(running.idle_for(GRACE));
                connection.graceful_shutdown();
                continue;
            }
        };
        let (request, mut respond) = match accepted {
            Some(Ok(accepted)) => accepted,
            Some(Err(error)) => return tracing::debug!(%error, "connection ended"),
            None => return,
        };
        if let Err(malformed_request) = check(&request) {
            malformed_request.refuse(&mut respond);
            malformed += 1;
            if malformed >= MOST_MALFORMED {
                return tracing::debug!("too many streams that are no requests");
            }
            continue;
        }
        if ended.is_some_and(|until| Instant::now() > until) {
            respond.send_reset(Reason::REFUSED_STREAM);
            if running.are_none() {
                return;
            }
            continue;
        }
        downstream.accepted.fetch_add(1, Ordering::Relaxed);
        let stream = ClientStream::new(request, respond, downstream.clone());
        let session = ClientSession::H2(Box::new(stream));
        if running.are_none() {
            idle.set(running.idle_for(if ended.is_some() { LINGER } else { first }));
        }
        let (service, running) = (service.clone(), running.clone().begin());
        tokio::spawn(async move {
            service.process_stream(session).await;
            drop(running);
        });
    }
}

/// What is wrong with a stream that is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Malformed {
    /// Its end may be another one to the next hop.
    Length,
    /// It does not name one host.
    Authority,
}

impl Malformed {
    fn refuse(self, respond: &mut SendResponse<Bytes>) {
        match self {
            Malformed::Length => respond.send_reset(Reason::PROTOCOL_ERROR),
            Malformed::Authority => {
                let mut answer = Response::new(());
                *answer.status_mut() = StatusCode::BAD_REQUEST;
                // The client may have gone away.
                let _ = respond.send_response(answer, true);
            }
        }
    }
}

/// Refuses what may be understood in two ways (RFC 9113, sections 8.1.1 and 8.3.1), as pingora does.
fn check<B>(request: &Request<B>) -> Result<(), Malformed> {
    let (uri, headers) = (request.uri(), request.headers());
    if !lengths_agree(headers) {
        return Err(Malformed::Length);
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
