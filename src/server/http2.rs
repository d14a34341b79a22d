//! Serves a client's HTTP/2 connection: each stream is a request.
//!
//! Follows pingora's own loop, which cannot end a single connection. After GOAWAY a client may open streams until it
//! has read the GOAWAY; later streams are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, handshake};
use pingora_core::protocols::{Digest, Stream};
use pingora_core::server::ShutdownWatch;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::closing::becomes_true;
use crate::relay::downstream::Downstream;
use crate::relay::keepalive::{FIRST_REQUEST_TIMEOUT, IDLE_TIMEOUT};
use crate::relay::service::RelayService;

/// Most malformed streams of a connection, as in pingora.
const MOST_MALFORMED: usize = 32;
/// Time for a client to read the GOAWAY. kube-apiserver closes the connection after the same time.
const GRACE: Duration = Duration::from_secs(1);
/// A connection that ends is kept open for this long without requests, because the last answers may still be in flight.
const LINGER: Duration = Duration::from_secs(10);

/// Serves a connection to its end. After `closing` it ends, too, but streams that arrive before the end are served. One
/// that comes after `closing` ends with the answer to its first request.
pub async fn serve(
    service: &Arc<RelayService>,
    options: H2Options,
    stream: Stream,
    downstream: &Arc<Downstream>,
    closing: &ShutdownWatch,
) {
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let mut connection = match handshake(stream, Some(options)).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "no HTTP/2 after the TLS handshake"),
    };
    let running = Arc::new(Running::default());
    let mut malformed = 0;
    let mut closing = closing.clone();
    let comes_late = *closing.borrow();
    let mut going = comes_late;
    // Set when this connection is to end, not when the proxy stops.
    let mut ended: Option<Instant> = None;
    loop {
        let idle = running.idle_for(match ended {
            Some(_) => LINGER,
            None if comes_late => FIRST_REQUEST_TIMEOUT,
            None => IDLE_TIMEOUT,
        });
        let accepted = tokio::select! {
            biased;
            () = downstream.ended(), if ended.is_none() => {
                ended = Some(Instant::now() + GRACE);
                connection.graceful_shutdown();
                continue;
            }
            () = becomes_true(&mut closing), if !going => {
                going = true;
                connection.graceful_shutdown();
                continue;
            }
            accepted = HttpSession::from_h2_conn(&mut connection, digest.clone()) => accepted,
            () = idle => return,
        };
        match accepted {
            Ok(Some(H2Accept::Session(mut session))) => {
                if ended.is_some_and(|until| Instant::now() > until) {
                    session.shutdown_with_reason(h2::Reason::REFUSED_STREAM);
                    if running.are_none() {
                        return;
                    }
                    continue;
                }
                let (service, running) = (service.clone(), running.clone().begin());
                tokio::spawn(async move {
                    service
                        .process_stream(ServerSession::new_http2(session))
                        .await;
                    drop(running);
                });
            }
            Ok(Some(H2Accept::Rejected)) => {
                malformed += 1;
                if malformed >= MOST_MALFORMED {
                    return tracing::debug!("too many streams that are no requests");
                }
            }
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "connection ended"),
        }
    }
}

/// Counts the running requests of a connection.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    none: Notify,
}

impl Running {
    fn begin(self: Arc<Self>) -> Request {
        self.count.fetch_add(1, Ordering::Relaxed);
        Request(self)
    }

    fn are_none(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Resolves when there was no request for `time`.
    async fn idle_for(&self, time: Duration) {
        while !self.are_none() {
            self.none.notified().await;
        }
        sleep_until(Instant::now() + time).await;
    }
}

/// A running request.
struct Request(Arc<Running>);

impl Drop for Request {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.none.notify_one();
        }
    }
}
