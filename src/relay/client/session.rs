//! One request of a client: an HTTP/2 stream, or a request on an HTTP/1.1 connection, which pingora reads. And its header:
//! its form, which Go's HTTP server accepts and all parsers read the same way, and its size, with limits for all running
//! requests.
//!
//! The size is counted as in HTTP/2: the bytes of names and values, and 32 for each field. A large header never uses a
//! shared connection, because a server may close a connection with a header that is too large.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, EXPECT, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, OkOrErr, OrErr};
use pingora_http::ResponseHeader;
use tokio::sync::oneshot;

use super::connection::Downstream;
use crate::net::{lock, poll_send, receive};

const READING: &str = "while reading a request";
const WRITING: &str = "while writing an answer";

/// A request of a client. It is boxed, because it is handed through several futures. The futures of HTTP/1 are boxed, too:
/// pingora's are large, and all watches would have room for them.
pub enum ClientSession {
    /// Always HTTP/1.
    H1(Box<ServerSession>),
    H2(Box<ClientStream>),
}

/// A request over HTTP/2. Dropping it before the end of the answer resets the stream.
pub struct ClientStream {
    /// Until it is taken.
    header: Option<Box<Parts>>,
    body: RecvStream,
    has_body: bool,
    /// Until the answer's header was written.
    respond: Option<SendResponse<Bytes>>,
    /// From then on to the answer's end, unless it was taken for the answer's body: then nothing can be written here.
    pub writer: Option<SendStream<Bytes>>,
}

impl ClientSession {
    pub fn is_http2(&self) -> bool {
        matches!(self, Self::H2(_))
    }

    pub fn as_http1(&self) -> Option<&ServerSession> {
        match self {
            Self::H1(session) => Some(session),
            Self::H2(_) => None,
        }
    }

    /// The request's header, for the upstream request. An HTTP/1 session still needs its own copy.
    pub fn take_header(&mut self) -> Option<Box<Parts>> {
        match self {
            Self::H1(session) => Some(Box::new(session.req_header().as_ref().clone())),
            Self::H2(stream) => stream.header.take(),
        }
    }

    pub fn has_body(&mut self) -> bool {
        match self {
            Self::H1(session) => !session.is_body_empty(),
            Self::H2(stream) => stream.has_body,
        }
    }

    /// Whether the request asks for another protocol.
    pub fn is_upgrade(&self) -> bool {
        self.as_http1().is_some_and(ServerSession::is_upgrade_req)
    }

    /// Whether the request's body was read to its end.
    pub fn is_body_done(&mut self) -> bool {
        match self {
            Self::H1(session) => session.is_body_done(),
            Self::H2(stream) => stream.is_body_done(),
        }
    }

    /// Sends `100 Continue`. pingora would take it for the final answer, and close the connection because it came before
    /// the body's end.
    pub async fn write_continue(&mut self) -> pingora_core::Result<()> {
        match self {
            Self::H1(session) => {
                session.set_close_on_response_before_downstream_finish(false);
                let written = Box::pin(session.write_continue_response()).await;
                session.set_close_on_response_before_downstream_finish(true);
                written
            }
            Self::H2(stream) => {
                let respond = stream.respond.as_mut();
                let respond = respond.or_err(ErrorType::InternalError, WRITING)?;
                let mut interim = Response::new(());
                *interim.status_mut() = StatusCode::CONTINUE;
                let sent = respond.send_informational(interim);
                sent.or_err(ErrorType::WriteError, WRITING)
            }
        }
    }

    /// Asks the client to send no more requests on this connection: GOAWAY over HTTP/2, `Connection: close` over
    /// HTTP/1.1. Running requests finish. To be called before the answer's header is written.
    pub fn end_connection(&mut self, downstream: &Downstream) {
        match self {
            Self::H1(_) => self.close_after(),
            Self::H2(_) => downstream.end_http2(),
        }
        downstream.drop_unverified_pools();
    }

    /// Reads a piece of the request's body; `None` at its end.
    pub async fn read_body(&mut self) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H1(session) => Box::pin(session.read_request_body()).await,
            Self::H2(stream) => receive(&mut stream.body, READING).await,
        }
    }

    /// Reads a piece of the request's body, unless `idle` or the body was read. Then it waits until the client goes away,
    /// or sends the next request early, and is served by then. Boxed, because thousands of watches wait here.
    pub async fn read_body_or_idle(&mut self, idle: bool) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H1(session) => Box::pin(session.read_body_or_idle(idle)).await,
            Self::H2(stream) if idle || stream.is_body_done() => {
                poll_fn(|context| stream.poll_gone(context)).await;
                Error::e_explain(ErrorType::H2Error, READING)
            }
            Self::H2(stream) => receive(&mut stream.body, READING).await,
        }
    }

    /// Writes the answer's header; `end`: there is no body.
    pub async fn write_header(
        &mut self,
        mut header: Box<ResponseHeader>,
        end: bool,
    ) -> pingora_core::Result<()> {
        let stream = match self {
            Self::H1(session) => return Box::pin(session.write_response_header(header)).await,
            Self::H2(stream) => stream,
        };
        // [`Self::write_continue`] writes the only interim answer that clients get.
        if header.status.is_informational() {
            return Ok(());
        }
        let respond = stream.respond.take();
        let mut respond = respond.or_err(ErrorType::InternalError, WRITING)?;
        if header.version != Version::HTTP_2 {
            for name in [&TRANSFER_ENCODING, &UPGRADE] {
                header.remove_header(name);
            }
        }
        if !header.headers.contains_key(DATE) {
            header.insert_header(DATE, get_cached_date())?;
        }
        let response = Response::from_parts((*header).into(), ());
        let sent = respond.send_response(response, end);
        let writer = sent.or_err(ErrorType::WriteError, WRITING)?;
        stream.writer = (!end).then_some(writer);
        Ok(())
    }

    /// Writes a piece of the answer's body; `end`: it is the last.
    pub async fn write_body(&mut self, mut data: Bytes, end: bool) -> pingora_core::Result<()> {
        let stream = match self {
            Self::H1(session) => return Box::pin(session.write_response_body(data, end)).await,
            Self::H2(stream) => stream,
        };
        let writer = stream.writer.as_mut();
        let writer = writer.or_err(ErrorType::InternalError, WRITING)?;
        while !poll_fn(|context| poll_send(writer, &mut data, end, context))
            .await
            .or_err(ErrorType::WriteError, WRITING)?
        {}
        if end {
            stream.writer = None;
        }
        Ok(())
    }

    /// Writes the trailers, which end the answer. HTTP/1 has none.
    pub fn write_trailers(&mut self, trailers: HeaderMap) -> pingora_core::Result<()> {
        let Self::H2(stream) = self else {
            return Ok(());
        };
        let writer = stream.writer.take();
        let mut writer = writer.or_err(ErrorType::InternalError, WRITING)?;
        let sent = writer.send_trailers(trailers);
        sent.or_err(ErrorType::WriteError, WRITING)
    }

    /// Resolves when the client of an HTTP/2 stream has reset it or closed its connection.
    pub async fn gone(&mut self) {
        match self {
            Self::H1(_) => std::future::pending().await,
            Self::H2(stream) => poll_fn(|context| stream.poll_gone(context)).await,
        }
    }

    /// Ends the answer's body.
    pub async fn finish_body(&mut self) -> pingora_core::Result<()> {
        let stream = match self {
            Self::H1(session) => return Box::pin(session.finish_body()).await,
            Self::H2(stream) => stream,
        };
        let Some(mut writer) = stream.writer.take() else {
            return Ok(());
        };
        let sent = writer.send_data(Bytes::new(), true);
        sent.or_err(ErrorType::WriteError, WRITING)
    }

    /// Closes an HTTP/1 connection after this answer.
    pub fn close_after(&mut self) {
        if let Self::H1(session) = self {
            session.set_keepalive(None);
        }
    }

    /// Breaks the request off, so that the client does not take the answer for a complete one.
    pub async fn abort(&mut self, reason: Reason) {
        match self {
            Self::H1(session) => Box::pin(session.shutdown()).await,
            Self::H2(stream) => match (&mut stream.writer, &mut stream.respond) {
                (Some(writer), _) => writer.send_reset(reason),
                (None, Some(respond)) => respond.send_reset(reason),
                (None, None) => {}
            },
        }
    }
}

impl ClientStream {
    pub fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>) -> Self {
        let (header, body) = request.into_parts();
        let empty = header.headers.get(CONTENT_LENGTH);
        let empty = empty.is_some_and(|length| length.as_bytes() == b"0");
        Self {
            header: Some(Box::new(header)),
            has_body: !empty && !body.is_end_stream(),
            body,
            respond: Some(respond),
            writer: None,
        }
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match (&mut self.writer, &mut self.respond) {
            (Some(writer), _) => writer.poll_reset(context).map(drop),
            (None, Some(respond)) => respond.poll_reset(context).map(drop),
            (None, None) => Poll::Pending,
        }
    }

    fn is_body_done(&self) -> bool {
        !self.has_body || self.body.is_end_stream()
    }
}

/// Whether the first line of an HTTP/1 request has a path or an absolute URL, as Go's HTTP server requires. pingora
/// takes anything else for `/`, and cuts off everything after a `#`, which Go treats as part of the path.
pub fn names_a_path(http1: Option<&ServerSession>) -> bool {
    let Some(session) = http1 else {
        return true;
    };
    let raw = session.to_h1_raw();
    let mut lines = raw.trim_ascii_start().split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let header = session.req_header();
    header.raw_path_is_utf8() && !line.contains(&b'#') && is_path_or_url(header.raw_path())
}

fn is_path_or_url(target: &[u8]) -> bool {
    target.starts_with(b"/") || begins(target, b"http://") || begins(target, b"https://")
}

/// Whether `text` begins like this, whatever the case of its letters.
fn begins(text: &[u8], like: &[u8]) -> bool {
    let start = text.get(..like.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(like))
}

/// Whether the request has a host that is valid in HTTP/2, which apiservers are reached over, or no host where that is
/// allowed.
pub fn is_hosted(header: &Parts) -> bool {
    header.uri.authority().is_some()
        || match header.headers.get(HOST).map(HeaderValue::as_bytes) {
            Some(host) => host.is_empty() || Authority::try_from(host).is_ok(),
            None => header.version < Version::HTTP_11,
        }
}

/// Whether all parsers find the same end of the request's body. pingora drops a Content-Length next to a
/// Transfer-Encoding, and accepts any codings that end with `chunked`. Another parser may find another end, and
/// kube-apiserver accepts only `chunked`.
pub fn has_one_length(http1: Option<&ServerSession>, headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return true;
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    let raw = http1.map(ServerSession::to_h1_raw);
    chunked && !raw.as_deref().is_some_and(names_a_length)
}

/// Whether a raw header has a Content-Length.
fn names_a_length(raw: &[u8]) -> bool {
    let mut lines = raw.split(|byte| *byte == b'\n');
    lines.any(|line| begins(line, b"content-length:"))
}

/// What a client expects before it sends its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    Nothing,
    /// The client waits for `100 Continue`.
    Continue,
    /// Something that no server can meet.
    Unknown,
}

impl Expectation {
    /// As Go's HTTP server reads it. Over HTTP/2 it ignores what it does not know.
    pub fn of(header: &Parts) -> Self {
        let is_boundary = |byte: &u8| matches!(byte, b' ' | b',' | b'\t');
        let continues = |value: &HeaderValue| {
            let mut words = value.as_bytes().split(is_boundary);
            words.any(|word| word.eq_ignore_ascii_case(b"100-continue"))
        };
        let mut values = header.headers.get_all(EXPECT).iter();
        let value = match header.version >= Version::HTTP_2 {
            true => values.find(|value| continues(value)),
            false => values.next(),
        };
        match value {
            Some(value) if continues(value) && header.version >= Version::HTTP_11 => Self::Continue,
            Some(value) if !continues(value) && !value.is_empty() => Self::Unknown,
            Some(_) | None => Self::Nothing,
        }
    }
}

/// Size of a field besides its bytes.
pub const HEADER_FIELD: usize = 32;
/// Size of `:method`, `:scheme`, `:authority` and `:path` without their values, except the scheme.
const PSEUDO: usize = ":method:schemehttps:authority:path".len() + 4 * HEADER_FIELD;
/// Largest header, as in kube-apiserver over HTTP/2: Go's 1 MiB, and ten fields.
const LARGEST_HEADER: usize = (1 << 20) + 10 * HEADER_FIELD;
/// Largest header that is read over HTTP/2, so that a client with a slightly larger one gets an explanation. h2 answers
/// larger headers with an empty 431, and closes the connection for four times as much.
pub const READ_HEADER: u32 = (1 << 20) + (64 << 10);
/// A larger header gets its own connection: it comes near to a server's limit.
const SHARED_HEADER: usize = 256 << 10;
/// Smaller headers are not counted; the number of streams limits them.
const COUNTED_HEADER: usize = 64 << 10;
/// Limit for all running requests of a connection.
pub const HEADERS_OF_A_CONNECTION: usize = 4 << 20;
/// Limit for all running requests.
const HEADERS_OF_ALL: usize = 128 << 20;
/// Most large headers that arrive at the same time.
const SLOTS: usize = 64;

/// Total size of large headers of running requests.
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// The size of a header. The first line of HTTP/1 counts as the pseudo fields of HTTP/2; `http1` has all of it, also the
/// host of a whole URL.
fn header_weight(header: &Parts, http1: Option<&ServerSession>) -> usize {
    let fields = header.headers.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + HEADER_FIELD);
    let target = match http1 {
        Some(session) => session.req_header().raw_path().len(),
        None => header
            .uri
            .path_and_query()
            .map_or(0, |path| path.as_str().len()),
    };
    let authority = header.uri.authority().map_or(0, |host| host.as_str().len());
    let line = header.method.as_str().len() + target + authority;
    fields.sum::<usize>() + line + PSEUDO
}

/// A request's share of the limits for large headers, while it runs.
pub struct LargeHeaderPermit {
    weight: usize,
    /// The connection on which it is counted.
    counted: Option<Arc<Downstream>>,
}

impl LargeHeaderPermit {
    /// `None`: the limits are exceeded. `http1`: as for `header_weight`.
    pub fn take(
        downstream: &Arc<Downstream>,
        header: &Parts,
        http1: Option<&ServerSession>,
    ) -> Option<Self> {
        let weight = header_weight(header, http1);
        // Over HTTP/1 the bytes were counted while they were read.
        if http1.is_none() && weight > LARGEST_HEADER {
            return None;
        }
        let counted = (weight > COUNTED_HEADER).then(|| downstream.clone());
        let permit = Self { weight, counted };
        let Some(downstream) = &permit.counted else {
            return Some(permit);
        };
        let of_all = LARGE.fetch_add(weight, Ordering::Relaxed) + weight;
        let own = downstream.large.fetch_add(weight, Ordering::Relaxed) + weight;
        (of_all <= HEADERS_OF_ALL && own <= HEADERS_OF_A_CONNECTION).then_some(permit)
    }

    /// Whether the request must not share a connection.
    pub fn is_large(&self) -> bool {
        self.weight > SHARED_HEADER
    }
}

impl Drop for LargeHeaderPermit {
    fn drop(&mut self) {
        if let Some(downstream) = &self.counted {
            LARGE.fetch_sub(self.weight, Ordering::Relaxed);
            downstream.large.fetch_sub(self.weight, Ordering::Relaxed);
        }
    }
}

/// A slot for a large header that is still arriving. There are few: when all are taken, the oldest loses its slot. A
/// well-behaved client needs one only for a short time.
#[derive(Debug)]
pub struct IncomingHeaderSlot(oneshot::Receiver<()>);

/// The owner of a slot is notified when its sender is dropped. Nothing is ever sent. Locked for a short time, and only for
/// large headers.
static OCCUPIED: Mutex<VecDeque<oneshot::Sender<()>>> = Mutex::new(VecDeque::new());

impl IncomingHeaderSlot {
    pub fn take() -> Self {
        let (keep, lost) = oneshot::channel();
        let mut occupied = lock(&OCCUPIED);
        while occupied.len() >= SLOTS {
            occupied.pop_front();
        }
        occupied.push_back(keep);
        Self(lost)
    }

    /// Ready when the slot was lost.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Drop for IncomingHeaderSlot {
    fn drop(&mut self) {
        self.0.close();
        lock(&OCCUPIED).retain(|keep| !keep.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn expectations_are_read_as_go_reads_them() {
        use Expectation::{Continue, Nothing, Unknown};
        let of = |version, values: &[&str]| {
            let mut request = http::Request::builder().version(version);
            for value in values {
                request = request.header(EXPECT, *value);
            }
            Expectation::of(&request.body(()).unwrap().into_parts().0)
        };
        for (values, http1, http2) in [
            (&[][..], Nothing, Nothing),
            (&[""], Nothing, Nothing),
            (&["100-continue"], Continue, Continue),
            (&["x, 100-Continue"], Continue, Continue),
            (&["100-continued"], Unknown, Nothing),
            (&["nonsense"], Unknown, Nothing),
            (&["nonsense", "100-continue"], Unknown, Continue),
            (&["100-continue", "nonsense"], Continue, Continue),
        ] {
            assert_eq!(of(Version::HTTP_11, values), http1, "{values:?}");
            assert_eq!(of(Version::HTTP_2, values), http2, "{values:?}");
        }
        assert_eq!(of(Version::HTTP_10, &["100-continue"]), Nothing);
        assert_eq!(of(Version::HTTP_10, &["nonsense"]), Unknown);
    }

    #[test]
    fn paths_and_urls_are_targets() {
        for target in ["/", "/a b", "//a", "/?x", "http://h", "HTTPS://h/a"] {
            assert!(is_path_or_url(target.as_bytes()), "{target}");
        }
        for target in ["", "a", "*", "h:443", "ftp://h/a", "http:/a", "x:y://h/a"] {
            assert!(!is_path_or_url(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn a_length_is_found_whatever_its_case_and_line_ends() {
        for raw in [
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\ncontent-LENGTH:5\n\n",
        ] {
            assert!(names_a_length(raw.as_bytes()), "{raw:?}");
        }
        for raw in [
            "POST / HTTP/1.1\r\nX-Content-Length: 5\r\n\r\n",
            "POST /?content-length: HTTP/1.1\r\nContent-Lengths: 5\r\n\r\n",
            "",
        ] {
            assert!(!names_a_length(raw.as_bytes()), "{raw:?}");
        }
    }

    #[tokio::test]
    async fn the_host_of_a_whole_url_counts() {
        let host = "a".repeat(100 << 10);
        let head = format!("GET http://{host}/api HTTP/1.0\r\n\r\n");
        let (mut client, server) = tokio::io::duplex(head.len());
        client.write_all(head.as_bytes()).await.unwrap();
        let mut session = ServerSession::new_http1(Box::new(server));
        assert!(session.read_request().await.unwrap());
        let header: &Parts = session.req_header().as_ref();
        assert!(header_weight(header, Some(&session)) > host.len());
    }
}
