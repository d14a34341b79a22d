//! What HTTP/1 needs before and after a request.
//!
//! A head is read to its end before pingora parses it: pingora reads at most 256 fields, and parses the head again with
//! each piece that arrives; kube-apiserver accepts any number of fields in 1 MiB. So pingora gets a head that it can read,
//! with the fields that decide where the request ends. The other fields are added afterwards, unchanged and in order. Most
//! heads are passed as they are.
//!
//! After its answer the rest of a request is read for a limited time, over HTTP/2 too, and then the next one is waited for.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderValue, Version};
use pingora_core::ErrorType;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::{ReusableHttpStream, ServerSession};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::net::RedactedError;
use crate::relay::answer::{Refusal, StatusFormat};
use crate::relay::client::{
    ClientSession, HEADER_FIELD, HEADERS_OF_A_CONNECTION, IncomingHeaderSlot,
};
use crate::relay::shared::Shared;
use crate::shutdown::ShutdownPhase;

/// Time for a request's header to arrive, as in kube-apiserver.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Idle connections are closed after this time, as in kube-apiserver.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time for a connection's request to arrive while the proxy stops. Connections end with one answer then.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The value of `Keep-Alive: timeout` on answers, in seconds. The real timeout is [`IDLE_TIMEOUT`].
const KEEPALIVE: u64 = 60;

/// Largest head, as in kube-apiserver: Go's 1 MiB, and the 4 KiB that Go reads beyond it.
const LIMIT: usize = (1 << 20) + (4 << 10);
/// Most fields that pingora reads.
const FIELDS: usize = 256;
/// Most heads are smaller. A larger one takes an [`IncomingHeaderSlot`] while it arrives.
const SMALL: usize = 16 << 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Fields by which pingora frames the request.
const FRAMING: [&str; 5] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
];
/// Bytes of the next request that are read at first. Most requests are not longer.
const FIRST_BYTES: usize = 4096;

/// Limits for reading the rest of a request that was answered early.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_QUIET: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 32 << 20;

/// Waits for the first bytes of a connection's next request. The header timeout starts then.
pub(super) async fn idle(
    shared: &Shared,
    connection: ReusableHttpStream,
) -> Option<(Stream, BytesMut)> {
    let (mut stream, read) = connection.into_parts();
    if let Some(begun) = read {
        return Some((stream, begun));
    }
    let mut begun = BytesMut::with_capacity(FIRST_BYTES);
    tokio::select! {
        biased;
        read = timeout(IDLE_TIMEOUT, stream.read_buf(&mut begun)) => {
            read.ok()?.ok().filter(|count| *count > 0)?
        }
        () = shared.shutdown.reaches(ShutdownPhase::Draining) => return None,
    };
    Some((stream, begun))
}

/// Reads the next request of a connection; `None` when there is none.
pub(super) async fn read(
    shared: &Shared,
    stream: Stream,
    begun: BytesMut,
) -> Option<ClientSession> {
    let shutdown = &shared.shutdown;
    // A request that has not arrived completely is not waited for when the proxy stops.
    let gives_up = async {
        shutdown.reaches(ShutdownPhase::Draining).await;
        sleep(FIRST_REQUEST_TIMEOUT).await;
    };
    let mut session = tokio::select! {
        biased;
        read = timeout(HEADER_TIMEOUT, read_session(shared, stream, begun)) => read.ok()??,
        () = gives_up => return None,
    };
    // A body may pause for any time, as that of `exec` does.
    session.set_read_timeout(None);
    session.set_pipelining_enabled(true);
    let http10 = session.req_header().version < Version::HTTP_11;
    if http10 {
        session.set_keepalive(None);
    }
    Some(ClientSession::H1(Box::new(session)))
}

/// Reads a request's head. A client whose head cannot be read gets a refusal, if it is still there.
async fn read_session(
    shared: &Shared,
    mut stream: Stream,
    begun: BytesMut,
) -> Option<ServerSession> {
    let keepalive = (!shared.shutdown.is_draining()).then_some(KEEPALIVE);
    let head = read_head(&mut stream, begun).await?;
    let mut session = ServerSession::new_http1(stream);
    session.set_keepalive(keepalive);
    match parse(&mut session, head).await {
        Ok(true) => Some(session),
        Ok(false) => None,
        Err(refusal) => {
            shared.metrics.refused(refusal);
            // The connection is closed afterwards, whether this can be written or not.
            let (header, body) = refusal.response(0, None, StatusFormat::Json, false).ok()?;
            session.write_error_response(*header, body).await.ok()?;
            if let ServerSession::H1(session) = session {
                linger_unread(session.into_inner()).await;
            }
            None
        }
    }
}

/// Lets pingora parse a head that was read, and adds the fields that pingora could not read; `false`: there is no request.
async fn parse(session: &mut ServerSession, head: Result<Head, Refusal>) -> Result<bool, Refusal> {
    let head = head?;
    session.set_pipelined_prefix(head.bytes);
    session.set_read_timeout(Some(HEADER_TIMEOUT));
    match session.read_request().await {
        Ok(true) => {}
        Err(error) if *error.etype() == ErrorType::InvalidHTTPHeader => {
            tracing::debug!(error = %RedactedError(&error), "unreadable request");
            return Err(Refusal::Unreadable);
        }
        Ok(false) | Err(_) => return Ok(false),
    }
    let header = session.req_header_mut();
    for (name, value) in head.aside {
        let added = header.append_header(name, value);
        added.map_err(|_| Refusal::HeaderTooLarge)?;
    }
    Ok(true)
}

/// A head that pingora can read, and the bytes after it.
struct Head {
    /// The bytes for pingora.
    bytes: BytesMut,
    /// Further fields, to be added after parsing.
    aside: Vec<(Bytes, HeaderValue)>,
}

/// Reads on from `bytes` until a head is complete. `None`: the client went away, or its slot was lost.
async fn read_head(stream: &mut Stream, mut bytes: BytesMut) -> Option<Result<Head, Refusal>> {
    let mut searched = 0;
    let mut slot = Option::<IncomingHeaderSlot>::None;
    loop {
        if let Some(end) = end_of_head(&mut bytes, &mut searched) {
            return Some(split(bytes, end));
        }
        if bytes.len() > LIMIT {
            return Some(Err(Refusal::HeaderTooLarge));
        }
        if bytes.len() > SMALL && slot.is_none() {
            slot = Some(IncomingHeaderSlot::take());
        }
        bytes.reserve(if bytes.len() < SMALL { SMALL } else { PIECE });
        let read = tokio::select! {
            biased;
            read = stream.read_buf(&mut bytes) => read,
            () = lost(&mut slot) => return None,
        };
        read.ok().filter(|count| *count > 0)?;
    }
}

async fn lost(slot: &mut Option<IncomingHeaderSlot>) {
    match slot {
        Some(slot) => poll_fn(|context| slot.poll_lost(context)).await,
        None => std::future::pending().await,
    }
}

/// Finds the end of a head that arrives in pieces, after its first empty line. Empty lines before the first line are
/// dropped. `searched`: no line before it is the last one; each byte is looked at once.
fn end_of_head(bytes: &mut BytesMut, searched: &mut usize) -> Option<usize> {
    if *searched == 0 {
        loop {
            match &bytes[..] {
                [b'\n', ..] => bytes.advance(1),
                [b'\r', b'\n', ..] => bytes.advance(2),
                // The next byte decides.
                [b'\r'] => return None,
                _ => break,
            }
        }
    }
    let is_line = |byte: &u8| *byte == b'\n';
    while let Some(line) = bytes.get(*searched..)?.iter().position(is_line) {
        let end = *searched + line;
        match bytes.get(end + 1..)? {
            [b'\n', ..] => return Some(end + 2),
            [b'\r', b'\n', ..] => return Some(end + 3),
            // The next byte decides. The search resumes at this line end.
            [] | [b'\r'] => {
                *searched = end;
                return None;
            }
            _ => *searched = end + 1,
        }
    }
    *searched = bytes.len();
    None
}

/// Divides `bytes`, whose head ends at `end`.
fn split(mut bytes: BytesMut, end: usize) -> Result<Head, Refusal> {
    let is_line = |byte: &&u8| **byte == b'\n';
    let lines = bytes.iter().take(end).filter(is_line).count() - 1;
    let mut aside = Vec::new();
    if end <= PIECE && lines <= FIELDS {
        return Ok(Head { bytes, aside });
    }
    if end > LIMIT || end + lines * HEADER_FIELD > HEADERS_OF_A_CONNECTION {
        return Err(Refusal::HeaderTooLarge);
    }
    let behind = bytes.split_off(end);
    let head = bytes.freeze();
    let first = head.iter().position(|byte| *byte == b'\n');
    let first = first.map_or(0, |at| at + 1);
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let parsed = httparse::parse_headers(&head[first..], &mut fields);
    let Ok(httparse::Status::Complete((_, fields))) = parsed else {
        return Err(Refusal::Unreadable);
    };
    let mut bytes = BytesMut::with_capacity(first + SMALL + behind.len());
    bytes.extend_from_slice(&head[..first]);
    for field in fields {
        let name = field.name.as_bytes();
        if FRAMING.iter().any(|it| it.eq_ignore_ascii_case(field.name)) {
            bytes.extend_from_slice(&[name, b": ", field.value, b"\r\n"].concat());
            continue;
        }
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value));
        // The parser accepts nothing else.
        let value = value.map_err(|_| Refusal::HeaderTooLarge)?;
        aside.push((head.slice_ref(name), value));
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&behind);
    Ok(Head { bytes, aside })
}

/// Reads and drops the rest of a request after its answer, for a limited time. If the connection (HTTP/1) were closed
/// or the stream (HTTP/2) reset at once, the answer could be lost, or a client could take the reset for a failure.
pub(super) async fn linger(session: &mut ClientSession) {
    if session.as_http1().is_some_and(ServerSession::was_upgraded) {
        return;
    }
    if session.is_http2() && (session.finish_body().await.is_err() || session.is_body_done()) {
        return;
    }
    let (until, mut left) = (Instant::now() + LINGER, LINGER_BYTES);
    while goes_on(until, &mut left, async {
        Some(session.read_body().await.ok()??.len())
    })
    .await
    {}
}

/// Reads and drops, for a limited time, what comes on a connection whose request was not read.
async fn linger_unread(mut stream: Stream) {
    // Tells the client that no more data follows.
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut discarded = vec![0; FIRST_BYTES];
    let (until, mut left) = (Instant::now() + LINGER, LINGER_BYTES);
    while goes_on(until, &mut left, async {
        let read = stream.read(&mut discarded).await.ok();
        read.filter(|count| *count > 0)
    })
    .await
    {}
}

/// Whether to go on reading, at most so many bytes: not after the end, nor after a pause. `read`: how many bytes came;
/// `None` at the end.
async fn goes_on(
    until: Instant,
    left: &mut usize,
    read: impl Future<Output = Option<usize>>,
) -> bool {
    let wait = until.min(Instant::now() + LINGER_QUIET);
    let Ok(Some(count)) = timeout_at(wait, read).await else {
        return false;
    };
    *left = left.saturating_sub(count);
    *left > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a head and what was put aside, as text.
    fn parts(text: &str) -> (String, Vec<(String, String)>) {
        let mut bytes = BytesMut::from(text);
        let end = end_of_head(&mut bytes, &mut 0).unwrap();
        let head = split(bytes, end).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let aside = head.aside.iter();
        let aside = aside.map(|(name, value)| (text(name), text(value.as_bytes())));
        (text(&head.bytes), aside.collect())
    }

    #[test]
    fn a_head_ends_behind_its_first_empty_line_however_it_comes() {
        for (text, end) in [
            ("GET / HTTP/1.1\r\n\r\nbody\r\n\r\n", 18),
            ("\r\n\nGET / HTTP/1.1\na: b\n\n\n", 21),
            // It is not dropped, and pingora refuses it.
            ("\n\rGET / HTTP/1.1\n\n", 17),
            ("GET / HTTP/1.1\r\na: b\r\n c\n\r\nx", 27),
        ] {
            let (mut bytes, mut searched) = (BytesMut::new(), 0);
            let found = text.bytes().find_map(|byte| {
                bytes.extend_from_slice(&[byte]);
                end_of_head(&mut bytes, &mut searched)
            });
            assert_eq!(found, Some(end), "{text:?}");
            let mut whole = BytesMut::from(text);
            assert_eq!(end_of_head(&mut whole, &mut 0), Some(end), "{text:?}");
        }
        for text in [
            "",
            "\r\n\r\n",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\na: b\r\n\r",
        ] {
            let mut bytes = BytesMut::from(text);
            assert_eq!(end_of_head(&mut bytes, &mut 0), None, "{text:?}");
        }
    }

    #[test]
    fn most_heads_pass_as_they_are() {
        let text = "GET / HTTP/1.1\r\nhost: x\r\nX-One:1\r\n\r\nbody";
        assert_eq!(parts(text), (text.to_owned(), Vec::new()));
    }

    #[test]
    fn what_pingora_cannot_read_is_put_aside_in_its_order() {
        let groups = (0..300).map(|number| format!("Impersonate-Group: {number}, a\r\n"));
        let groups: String = groups.collect();
        let line = "\r\nPOST /%zz HTTP/1.1\r\n";
        let text = format!("{line}HOST:x\r\n{groups}Content-length:  4 \r\nX:\r\n\r\nbody");
        let (bytes, aside) = parts(&text);
        assert_eq!(
            bytes,
            "POST /%zz HTTP/1.1\r\nHOST: x\r\nContent-length: 4\r\n\r\nbody"
        );
        assert_eq!(aside.len(), 301);
        let group = ("Impersonate-Group".to_owned(), "7, a".to_owned());
        assert_eq!(aside[7], group);
        assert_eq!(aside[300], ("X".to_owned(), String::new()));
    }

    #[test]
    fn large_heads_are_refused_for_their_bytes_fields_and_form() {
        let refused = |fields: &str| {
            let mut bytes = BytesMut::from(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_str());
            let end = end_of_head(&mut bytes, &mut 0).unwrap();
            split(bytes, end).err()
        };
        let of = |bytes: usize| format!("a: {}\r\n", "x".repeat(bytes));
        assert_eq!(refused(&of(LIMIT - 23)), None);
        assert_eq!(refused(&of(LIMIT - 22)), Some(Refusal::HeaderTooLarge));
        assert_eq!(refused(&"a:\n".repeat(100_000)), None);
        assert_eq!(
            refused(&"a:\n".repeat(130_000)),
            Some(Refusal::HeaderTooLarge)
        );
        let malformed = format!("{}b c: d\r\n", "a: b\r\n".repeat(300));
        assert_eq!(refused(&malformed), Some(Refusal::Unreadable));
    }
}
