//! One request to a server: an HTTP/2 stream, or an HTTP/1.1 connection. And the HTTP/2 connections of the streams.
//!
//! A task of its own drives a connection. It ends when the server closes it or is silent, when no request has used it for
//! 90 s, or with its last user. The number of streams that the server allows is known as soon as a connection is open,
//! because its settings come before the answer to the first ping.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme, Uri};
use http::{HeaderMap, Request, StatusCode, Version};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::client::HttpSession as Http1Session;
use pingora_core::{Error, ErrorType, OkOrErr, OrErr};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::net::{batched, lengths_agree, poll_receive, release, single_length};
use crate::request::headers::set;

const SENDING: &str = "while sending a request";
const READING: &str = "while reading an answer";

/// A request to a server. It is boxed, because it is handed through many futures. The futures of HTTP/1.1 are boxed, too,
/// as in [`ClientSession`](crate::relay::client::ClientSession).
pub enum UpstreamSession {
    H1(Box<Http1Session>),
    H2(Box<UpstreamStream>),
}

/// The first bytes of an answer's body, and whether they are the whole body.
pub struct BodyPrefix {
    pub body: Vec<u8>,
    pub complete: bool,
}

/// A request on a shared connection. Dropping it before the end of the answer resets the stream.
pub struct UpstreamStream {
    connection: Arc<Connection>,
    /// Until the header was sent.
    requests: Option<SendRequest<Bytes>>,
    response: Option<ResponseFuture>,
    /// For the request's body.
    pub writer: Option<SendStream<Bytes>>,
    body: Option<RecvStream>,
    /// Bytes of the piece that was read last. Its server may send as much more once the next one is asked for: until
    /// then the piece is on its way to the client, and counts as unread.
    passing: usize,
    /// `Content-Length` of the answer, once its header was read.
    pub length: Option<usize>,
}

impl UpstreamSession {
    /// For HTTP/1.1 on a connection of its own.
    pub fn http1(stream: Stream) -> Self {
        let mut session = Http1Session::new(stream);
        // A long-running request may be silent for any time.
        session.read_timeout = None;
        Self::H1(Box::new(session))
    }

    /// Writes a request's header. A request without a body ends with it. `name`: the server's name, for clients that send
    /// no host.
    pub async fn write_header(
        &mut self,
        mut header: Box<Parts>,
        body_expected: bool,
        name: &str,
    ) -> pingora_core::Result<()> {
        let host = header.headers.get(HOST);
        if header.uri.authority().is_none() && host.is_none_or(HeaderValue::is_empty) {
            let name = HeaderValue::try_from(name);
            let name = name.or_err(ErrorType::InvalidHTTPHeader, "the server's name")?;
            set(&mut header.headers, HOST, name)?;
        }
        if let Some(length) = single_length(&header.headers) {
            set(&mut header.headers, CONTENT_LENGTH, length)?;
        }
        match self {
            Self::H2(stream) => {
                if header.version != Version::HTTP_2 {
                    for name in [CONNECTION, TRANSFER_ENCODING] {
                        header.headers.remove(name);
                    }
                }
                name_authority(&mut header)?;
                header.version = Version::HTTP_2;
                let request = Request::from_parts(*header, ());
                let requests = stream.requests.take();
                let mut requests = requests.or_err(ErrorType::InternalError, SENDING)?;
                let sent = requests.send_request(request, !body_expected);
                let (response, writer) = sent.or_err(ErrorType::H2Error, SENDING)?;
                stream.response = Some(response);
                stream.writer = body_expected.then_some(writer);
                Ok(())
            }
            Self::H1(session) => {
                let mut header = Box::new(RequestHeader::from(*header));
                if !header.headers.contains_key(HOST)
                    && let Some(authority) = header.uri.authority().cloned()
                {
                    header.insert_header(HOST, authority.as_str())?;
                }
                if body_expected && !header.headers.contains_key(CONTENT_LENGTH) {
                    header.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
                }
                header.set_version(Version::HTTP_11);
                Box::pin(session.write_request_header(header))
                    .await
                    .map(drop)
            }
        }
    }

    /// Reads the final answer's header. Cancel safe.
    pub async fn read_response(&mut self) -> pingora_core::Result<Box<ResponseHeader>> {
        let session = match self {
            Self::H2(stream) => return stream.read_response().await,
            Self::H1(session) => session,
        };
        loop {
            Box::pin(session.read_response()).await?;
            let interim = |status: StatusCode| {
                status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
            };
            if let Some(header) = session
                .resp_header()
                .filter(|header| !interim(header.status))
            {
                return Ok(Box::new(header.clone()));
            }
        }
    }

    /// Reads a piece of the answer's body; `None` at its end. Cancel safe.
    pub async fn read_body(&mut self) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H2(stream) => poll_fn(|context| stream.poll_body(context)).await,
            Self::H1(session) => Box::pin(session.read_body_bytes()).await,
        }
    }

    /// Reads the first bytes of a body: until its end, until more than `limit` bytes were read, or until the timeout.
    pub async fn read_prefix(
        &mut self,
        limit: usize,
        timeout: Duration,
    ) -> pingora_core::Result<BodyPrefix> {
        let mut body = Vec::new();
        let mut complete = self.is_complete();
        let deadline = Instant::now() + timeout;
        while !complete && body.len() <= limit {
            let Ok(piece) = timeout_at(deadline, self.read_body()).await else {
                break;
            };
            match piece? {
                Some(data) => body.extend_from_slice(&data),
                None => complete = true,
            }
            complete = complete || self.is_complete();
        }
        Ok(BodyPrefix { body, complete })
    }

    /// Whether the whole answer was read. A stream that was reset is not complete.
    pub fn is_complete(&mut self) -> bool {
        match self {
            Self::H2(stream) => stream.body.as_mut().is_some_and(|body| {
                // A stream that was reset has ended, too: its error comes instead of data.
                body.is_end_stream() && {
                    let mut context = Context::from_waker(Waker::noop());
                    matches!(body.poll_data(&mut context), Poll::Ready(None))
                }
            }),
            Self::H1(session) => session.is_body_done(),
        }
    }

    /// The trailers after the answer's body.
    pub async fn read_trailers(&mut self) -> pingora_core::Result<Option<HeaderMap>> {
        let body = match self {
            Self::H2(stream) => stream.body.as_mut(),
            Self::H1(_) => None,
        };
        let Some(body) = body else {
            return Ok(None);
        };
        match body.trailers().await {
            // The server is going away, or needs no more of the request.
            Err(error)
                if (error.is_go_away() || error.is_reset())
                    && error.is_remote()
                    && error.reason() == Some(h2::Reason::NO_ERROR) =>
            {
                Ok(None)
            }
            trailers => trailers.or_err(ErrorType::ReadError, READING),
        }
    }

    /// `Content-Length` of the answer, once its header was read.
    pub fn content_length(&self) -> Option<usize> {
        match self {
            Self::H2(stream) => stream.length,
            Self::H1(session) => length(&session.resp_header()?.headers),
        }
    }
}

impl UpstreamStream {
    async fn read_response(&mut self) -> pingora_core::Result<Box<ResponseHeader>> {
        let response = self.response.as_mut();
        let response = response.or_err(ErrorType::InternalError, READING)?;
        let response = response.await.or_err(ErrorType::H2Error, READING)?;
        self.response = None;
        let (header, body) = response.into_parts();
        if !lengths_agree(&header.headers) {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, READING);
        }
        self.length = length(&header.headers);
        self.body = Some(body);
        Ok(Box::new(header.into()))
    }

    /// Reads a piece of the answer's body; `None` at its end.
    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<pingora_core::Result<Option<Bytes>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(Ok(None));
        };
        release(body, std::mem::take(&mut self.passing));
        let piece = ready!(poll_receive(body, READING, context))?;
        self.passing = piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(Ok(piece))
    }
}

impl Drop for UpstreamStream {
    fn drop(&mut self) {
        self.connection.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names the request's authority in its URI, for `:authority`, and nowhere else: nginx refuses a request that says it
/// twice.
fn name_authority(header: &mut Parts) -> pingora_core::Result<()> {
    let host = header.headers.remove(HOST);
    if header.uri.authority().is_none() {
        let host = host.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
        let authority = Authority::try_from(host)
            .or_err(ErrorType::InvalidHTTPHeader, "no authority for HTTP/2")?;
        let mut parts = std::mem::take(&mut header.uri).into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(authority);
        header.uri =
            Uri::from_parts(parts).or_err(ErrorType::InvalidHTTPHeader, "no path for HTTP/2")?;
    }
    Ok(())
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

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
/// As many of a long-running request's answer: one event is told to thousands of watches at once.
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

impl Connection {
    /// Begins HTTP/2 on a connection. `window`: bytes of an unread answer that may be buffered here.
    pub(super) async fn open(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        window: u32,
    ) -> pingora_core::Result<Arc<Self>> {
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

    /// Begins a stream if it would start at once. Also whether it is not the connection's first one. `most`: streams at
    /// the same time, whatever the server allows.
    pub(super) fn begin(self: &Arc<Self>, most: usize) -> Option<(UpstreamSession, bool)> {
        let running = self.running.load(Ordering::Relaxed);
        // First, because each new request passes all connections that are full.
        if self.is_closed() || running >= most || running >= self.limit() {
            return None;
        }
        // A handle of its own for each request: `h2` keeps the last stream that had to wait in a handle, and whoever asked
        // next with the same handle would wait in that stream's place.
        let mut requests = self.requests.clone();
        match requests.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => {}
            Poll::Pending => return None,
            // The server is going away. Running requests may finish.
            Poll::Ready(Err(_)) => {
                self.closed.store(true, Ordering::Relaxed);
                return None;
            }
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        let reused = self.reused.swap(true, Ordering::Relaxed);
        let stream = UpstreamStream {
            connection: self.clone(),
            requests: Some(requests),
            response: None,
            writer: None,
            body: None,
            passing: 0,
            length: None,
        };
        Some((UpstreamSession::H2(Box::new(stream)), reused))
    }

    /// Whether no stream can begin any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
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

    #[test]
    fn the_host_becomes_the_authority() {
        let named = |host: &str| {
            let request = Request::get("/api?x=1").header(HOST, host).body(());
            let mut header = request.unwrap().into_parts().0;
            name_authority(&mut header).map(|()| {
                assert!(!header.headers.contains_key(HOST), "it is said once");
                header.uri.to_string()
            })
        };
        assert_eq!(named("[::1]:6443").unwrap(), "https://[::1]:6443/api?x=1");
        assert!(named("a b").is_err());
    }
}
