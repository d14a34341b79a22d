//! Handles a client's connection after a request: the rest of the request and, over HTTP/1, the wait for the next one.

use std::time::Duration;

use bytes::BytesMut;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::{ReusableHttpStream, ServerSession};
use pingora_core::server::ShutdownWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::session::ClientSession;

/// Idle connections are closed after this time, as in kube-apiserver.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time for a connection's request to arrive while the proxy stops. Connections end with one answer then.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the next request that are read at first. Most requests are not longer.
const FIRST_BYTES: usize = 4096;

/// Limits for reading the rest of a request that was answered early.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_QUIET: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 32 << 20;

/// Waits for the first bytes of a connection's next request. The header timeout starts then.
pub async fn idle(
    connection: ReusableHttpStream,
    shutdown: &ShutdownWatch,
) -> Option<(Stream, BytesMut)> {
    let (mut stream, read) = connection.into_parts();
    if let Some(begun) = read {
        return Some((stream, begun));
    }
    let mut shutdown = shutdown.clone();
    let mut begun = BytesMut::with_capacity(FIRST_BYTES);
    tokio::select! {
        biased;
        read = tokio::time::timeout(IDLE_TIMEOUT, stream.read_buf(&mut begun)) => {
            read.ok()?.ok().filter(|count| *count > 0)?
        }
        _ = shutdown.changed() => return None,
    };
    Some((stream, begun))
}

/// Reads and drops the rest of a request after its answer, for a limited time. If the connection (HTTP/1) were closed
/// or the stream (HTTP/2) reset at once, the answer could be lost, or a client could take the reset for a failure.
pub async fn linger(session: &mut ClientSession) {
    if session.as_http1().is_some_and(ServerSession::was_upgraded) {
        return;
    }
    if session.is_http2() && (session.finish_body().await.is_err() || session.is_body_done()) {
        return;
    }
    let mut limit = LingerLimit::new();
    while limit.goes_on(read_piece(session)).await {}
}

/// Reads and drops, for a limited time, what comes on a connection whose request was not read.
pub async fn linger_unread(mut stream: Stream) {
    // Tells the client that no more data follows.
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut discarded = vec![0; FIRST_BYTES];
    let mut limit = LingerLimit::new();
    while limit.goes_on(read_some(&mut stream, &mut discarded)).await {}
}

async fn read_piece(session: &mut ClientSession) -> Option<usize> {
    Some(session.read_body().await.ok()??.len())
}

async fn read_some(stream: &mut Stream, discarded: &mut [u8]) -> Option<usize> {
    stream.read(discarded).await.ok().filter(|count| *count > 0)
}

/// How much longer a client is read.
struct LingerLimit {
    until: Instant,
    left: usize,
}

impl LingerLimit {
    fn new() -> Self {
        Self {
            until: Instant::now() + LINGER,
            left: LINGER_BYTES,
        }
    }

    /// Whether to go on reading: not after the end, nor after a pause.
    async fn goes_on(&mut self, read: impl Future<Output = Option<usize>>) -> bool {
        let wait = self.until.min(Instant::now() + LINGER_QUIET);
        let Ok(Some(count)) = tokio::time::timeout_at(wait, read).await else {
            return false;
        };
        self.left = self.left.saturating_sub(count);
        self.left > 0
    }
}
