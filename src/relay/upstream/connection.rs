//! An HTTP/2 connection to a server.
//!
//! A task of its own drives the connection. It ends when the server closes it or answers no ping, when no request has
//! used it for 90 s, or with its last user. The number of streams that the server allows is known as soon as a connection
//! is open, because its settings come before the answer to the first ping.

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

/// A server that hangs answers no ping. After this interval and [`PING_TIMEOUT`] all requests on the connection fail.
/// An apiserver that is only busy answers late: one with two processors that has 5,000 watches to tell of an event of
/// 1.4 MB takes more than 7 s, and none of them is to break off. client-go waits 30 s and 15 s. A server that is cut off
/// is found by TCP earlier.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without requests is closed after so many intervals.
const IDLE_INTERVALS: u32 = 9;
/// A server that has not answered the first ping after this time is taken to have no limit of streams.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(1);
/// No limit for the connection: each stream has its own limit, so that unread data of one stream does not block others.
/// HTTP/2 closes a connection when the overhead of small unread pieces exceeds half of this window.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of an unread response that may be buffered here.
pub const STREAM_WINDOW: u32 = 64 << 10;
/// The largest frame that a server may send, as in pingora.
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
    /// Begins HTTP/2 on a connection.
    pub(super) async fn open(stream: Stream) -> pingora_core::Result<Arc<Self>> {
        let (stream, flush) = batched(stream);
        let mut options = Builder::new();
        options
            .enable_push(false)
            .max_frame_size(FRAME)
            .initial_window_size(STREAM_WINDOW)
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
                () = watch(pings, settled, &user) => {}
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

/// Resolves when the connection is to end: a ping is not answered, or nobody uses it. `settled`: told when the first
/// ping is answered.
async fn watch(pings: Option<PingPong>, settled: oneshot::Sender<()>, user: &Weak<Connection>) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    // The first one may wait behind the server's start.
    if !is_answered(&mut pings, PING_TIMEOUT).await {
        return;
    }
    // Nobody may wait for it any more.
    let _ = settled.send(());
    let mut idle = 0;
    while idle < IDLE_INTERVALS {
        sleep(PING_INTERVAL).await;
        if !is_answered(&mut pings, PING_TIMEOUT).await {
            return;
        }
        let was_idle = user
            .upgrade()
            .is_some_and(|connection| connection.was_idle());
        idle = if was_idle { idle + 1 } else { 0 };
    }
}

async fn is_answered(pings: &mut PingPong, limit: Duration) -> bool {
    matches!(timeout(limit, pings.ping(Ping::opaque())).await, Ok(Ok(_)))
}
