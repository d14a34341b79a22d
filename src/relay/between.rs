//! A client's connection of HTTP/1 after a request: what is still coming of it, and the wait for the next one.

use std::time::Duration;

use bytes::BytesMut;
use pingora_core::apps::{HttpPersistentSettings, ReusedHttpStream};
use pingora_core::protocols::http::{ReusableHttpStream, ServerSession};
use pingora_core::server::ShutdownWatch;
use tokio::io::AsyncReadExt;

/// As kube-apiserver: connections without a request are closed after this.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Room for the beginning of the next request; most have no more.
const FIRST_BYTES: usize = 4096;

/// How long, and for how much, a client that is answered before its request's end is listened to.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_QUIET: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 32 << 20;

/// Waits for the beginning of a connection's next request: from then on the time for its header runs.
pub async fn idle(
    connection: ReusableHttpStream,
    mut settings: HttpPersistentSettings,
    shutdown: &ShutdownWatch,
) -> Option<ReusedHttpStream> {
    let (mut stream, read) = connection.into_parts();
    let begun = match read {
        Some(begun) => begun,
        None => {
            let mut shutdown = shutdown.clone();
            let mut begun = BytesMut::with_capacity(FIRST_BYTES);
            tokio::select! {
                biased;
                read = tokio::time::timeout(IDLE_TIMEOUT, stream.read_buf(&mut begun)) => {
                    read.ok()?.ok().filter(|count| *count > 0)?
                }
                _ = shutdown.changed() => return None,
            };
            begun
        }
    };
    settings.set_pipelined_prefix(begun);
    Some(ReusedHttpStream::new(stream, Some(settings)))
}

/// Reads what an HTTP/1 client is still sending, for a while: closing at once would reset the connection, and the
/// answer would be lost on its way.
pub async fn linger(session: &mut ServerSession) {
    if session.is_http2() || session.was_upgraded() {
        return;
    }
    let deadline = tokio::time::Instant::now() + LINGER;
    let mut left = LINGER_BYTES;
    while left > 0 {
        let wait = deadline.min(tokio::time::Instant::now() + LINGER_QUIET);
        match tokio::time::timeout_at(wait, session.read_request_body()).await {
            Ok(Ok(Some(piece))) => left = left.saturating_sub(piece.len()),
            // The end, or nobody there, or silence.
            _ => return,
        }
    }
}
