//! An HTTP/2 connection to a server.
//!
//! A task of its own drives the connection. It ends when the server closes it or is silent, when no request has
//! used it for 90 s, or with its last user. The number of streams that the server allows is known as soon as a connection
//! is open, because its settings come before the answer to the first ping.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong};
use pingora_core::protocols::Stream;
use pingora_core::{Error, ErrorType, OrErr};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::stream::UpstreamStream;
use crate::net::batched;

/// A server that hangs answers no ping, and sends nothing else. After this interval and [`PING_TIMEOUT`] all requests on
/// the connection fail. An apiserver that is only busy answers late: one with two processors that has 5,000 watches to
/// tell of an event of 1.4 MB takes 30 s and more, and none of them is to break off. client-go asks after 30 s without a
/// frame, and waits 15 s. A server that is cut off is found by TCP earlier.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without requests is closed after so many intervals.
const IDLE_INTERVALS: u32 = 9;
/// A server that has not answered the first ping after this time is taken to have no limit of streams.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(1);
/// No limit for the connection: each stream has its own limit, so that unread data of one stream does not block others.
/// HTTP/2 closes a connection when the overhead of small unread pieces exceeds half of this window.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an unread answer that may be buffered here, with the piece that is on its way to the client.
pub const STREAM_WINDOW: u32 = 64 << 10;
/// The same for a long-running request: one event is told to thousands of watches at once.
pub const LONG_RUNNING_WINDOW: u32 = 16 << 10;
/// The largest frame that a server may send, as in pingora. No piece is larger than the stream's window.
const FRAME: u32 = 64 << 10;

/// An open connection. Its pool and its streams hold it.
pub(super) struct Connection {
    requests: SendRequest<Bytes>,
    /// Streams that are in use.
    running: AtomicUsize,
    /// A stream began since the last ping.
    used: AtomicBool,
    /// A stream began.
    reused: AtomicBool,
    /// No stream can begin any more.
    closed: AtomicBool,
}

/// What became of an attempt to begin a stream.
pub(super) enum Begun {
    /// And whether it is not the connection's first one.
    Stream(UpstreamStream, bool),
    /// All streams that are allowed are in use.
    Full,
    /// The connection is closing or closed.
    Closed,
}

impl Connection {
    /// Begins HTTP/2 on a connection. `window`: bytes of an unread answer that may be buffered here.
    pub(super) async fn open(stream: Stream, window: u32) -> pingora_core::Result<Arc<Self>> {
        let (stream, flush) = batched(stream);
        let mut options = Builder::new();
        options
            .enable_push(false)
            .max_frame_size(FRAME)
            .initial_window_size(window)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let (requests, mut driver) = flush
            .run(options.handshake(stream))
            .await
            .or_err(ErrorType::HandshakeError, "beginning HTTP/2")?;
        let this = Arc::new(Self {
            requests,
            running: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            reused: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let (settled, settings) = oneshot::channel();
        let pings = driver.ping_pong();
        let user = Arc::downgrade(&this);
        tokio::spawn(async move {
            tokio::select! {
                // The streams have the error, if there is one.
                _ = flush.run(&mut driver) => {}
                () = watch(pings, || flush.has_read(), settled, &user) => {}
            }
            if let Some(connection) = user.upgrade() {
                connection.closed.store(true, Ordering::Relaxed);
            }
        });
        // Without an answer there is no limit.
        let ended = matches!(timeout(SETTINGS_TIMEOUT, settings).await, Ok(Err(_)));
        if ended || this.is_closed() || this.limit() == 0 {
            return Error::e_explain(ErrorType::ConnectError, "closed before its first stream");
        }
        Ok(this)
    }

    /// Streams at the same time that the server allows.
    pub(super) fn limit(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Begins a stream if it would start at once. `most`: streams at the same time, whatever the server allows.
    pub(super) fn begin(self: &Arc<Self>, most: usize) -> Begun {
        if self.is_closed() {
            return Begun::Closed;
        }
        let running = self.running.load(Ordering::Relaxed);
        if running >= most {
            return Begun::Full;
        }
        // A handle of its own for each request: `h2` keeps the last stream that had to wait in a handle, and whoever asked
        // next with the same handle would wait in that stream's place.
        let mut requests = self.requests.clone();
        match requests.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => {}
            Poll::Pending => return Begun::Full,
            // The server is going away. Running requests may finish.
            Poll::Ready(Err(_)) => {
                self.closed.store(true, Ordering::Relaxed);
                return Begun::Closed;
            }
        }
        if running >= self.limit() {
            return Begun::Full;
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        let reused = self.reused.swap(true, Ordering::Relaxed);
        Begun::Stream(UpstreamStream::new(self.clone(), requests), reused)
    }

    /// Whether no stream can begin any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// A stream is no longer used.
    pub(super) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there was no request since the last call.
    fn was_idle(&self) -> bool {
        !self.used.swap(false, Ordering::Relaxed) && self.running.load(Ordering::Relaxed) == 0
    }
}

/// Resolves when the connection is to end: the server is silent, or nobody uses it. `has_read`: whether it sent anything
/// since the last call; `settled`: told when the first ping is answered.
async fn watch(
    pings: Option<PingPong>,
    has_read: impl Fn() -> bool,
    settled: oneshot::Sender<()>,
    user: &Weak<Connection>,
) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    // The first one may wait behind the server's start.
    if !is_alive(&mut pings, &has_read).await {
        return;
    }
    // Nobody may wait for it any more.
    let _ = settled.send(());
    let mut idle = 0;
    while idle < IDLE_INTERVALS {
        sleep(PING_INTERVAL).await;
        if !is_alive(&mut pings, &has_read).await {
            return;
        }
        let was_idle = user
            .upgrade()
            .is_some_and(|connection| connection.was_idle());
        idle = if was_idle { idle + 1 } else { 0 };
    }
}

/// Whether the server answers a ping. What else it sends meanwhile gives it more time.
async fn is_alive(pings: &mut PingPong, has_read: impl Fn() -> bool) -> bool {
    let mut pong = pin!(pings.ping(Ping::opaque()));
    has_read();
    loop {
        match timeout(PING_TIMEOUT, pong.as_mut()).await {
            Ok(pong) => return pong.is_ok(),
            Err(_) if has_read() => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;
    const PREFACE: usize = 24;

    async fn write(server: &mut DuplexStream, kind: u8, flags: u8, payload: &[u8]) {
        let length = payload.len() as u8;
        let header = [0, 0, length, kind, flags, 0, 0, 0, 0];
        server
            .write_all(&[&header, payload].concat())
            .await
            .unwrap();
    }

    /// The next frame's kind, flags and payload.
    async fn read(server: &mut DuplexStream) -> Option<(u8, u8, Vec<u8>)> {
        let mut header = [0; 9];
        server.read_exact(&mut header).await.ok()?;
        let mut payload = vec![0; usize::from(header[2])];
        server.read_exact(&mut payload).await.ok()?;
        Some((header[3], header[4], payload))
    }

    /// A server that answers the first ping alone. While `is_busy` says so it sends pings of its own every second. Returns
    /// when the connection ended.
    async fn serve(mut server: DuplexStream, is_busy: impl Fn(Duration) -> bool) -> Duration {
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        write(&mut server, SETTINGS, 0, &[]).await;
        let begun = Instant::now();
        let mut answered = false;
        loop {
            tokio::select! {
                frame = read(&mut server) => match frame {
                    None => return begun.elapsed(),
                    Some((SETTINGS, 0, _)) => write(&mut server, SETTINGS, ACK, &[]).await,
                    Some((PING, 0, payload)) if !answered => {
                        answered = true;
                        write(&mut server, PING, ACK, &payload).await;
                    }
                    Some(_) => {}
                },
                () = sleep(Duration::from_secs(1)), if is_busy(begun.elapsed()) => {
                    write(&mut server, PING, 0, b"its ping").await;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_sends_anything_is_not_given_up_and_a_silent_one_is() {
        const BUSY: Duration = Duration::from_secs(300);
        for busy in [Duration::ZERO, BUSY] {
            let (ours, theirs) = duplex(1 << 16);
            let ended = tokio::spawn(serve(theirs, move |now| now < busy));
            let connection = Connection::open(Box::new(ours), STREAM_WINDOW)
                .await
                .unwrap();
            let ended = ended.await.unwrap();
            let silent = PING_INTERVAL + PING_TIMEOUT;
            assert!(ended >= busy.max(silent), "{ended:?}");
            assert!(ended <= busy + silent + PING_TIMEOUT, "{ended:?}");
            assert!(connection.is_closed());
        }
    }
}
