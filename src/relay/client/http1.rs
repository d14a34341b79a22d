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
use http::HeaderValue;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::{ReusableHttpStream, ServerSession};
use pingora_core::server::ShutdownWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::header::{self, IncomingHeaderSlot};
use super::session::ClientSession;

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

/// A head that pingora can read, and the bytes after it.
#[derive(Debug, Default)]
pub struct Head {
    /// The bytes for pingora.
    pub bytes: BytesMut,
    /// Further fields, to be added after parsing.
    pub aside: Vec<(Bytes, HeaderValue)>,
}

/// Why no head was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// The client went away, or its slot was lost.
    Gone,
    TooLarge,
    Malformed,
}

/// Reads on from `bytes` until a head is complete.
pub async fn read_head(stream: &mut Stream, mut bytes: BytesMut) -> Result<Head, HeadError> {
    let mut searched = 0;
    let mut slot = Option::<IncomingHeaderSlot>::None;
    loop {
        if let Some(end) = end_of_head(&mut bytes, &mut searched) {
            return split(bytes, end);
        }
        if bytes.len() > LIMIT {
            return Err(HeadError::TooLarge);
        }
        if bytes.len() > SMALL && slot.is_none() {
            slot = Some(IncomingHeaderSlot::take());
        }
        bytes.reserve(if bytes.len() < SMALL { SMALL } else { PIECE });
        let read = tokio::select! {
            biased;
            read = stream.read_buf(&mut bytes) => read,
            () = lost(&mut slot) => return Err(HeadError::Gone),
        };
        if !read.is_ok_and(|count| count > 0) {
            return Err(HeadError::Gone);
        }
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
    loop {
        let line = bytes
            .get(*searched..)?
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(line) = line else {
            *searched = bytes.len();
            return None;
        };
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
}

/// Divides `bytes`, whose head ends at `end`.
fn split(mut bytes: BytesMut, end: usize) -> Result<Head, HeadError> {
    let is_line = |byte: &&u8| **byte == b'\n';
    // Most are so short that they cannot have too many fields.
    let lines = match end <= FIELDS {
        true => 0,
        false => bytes.iter().take(end).filter(is_line).count() - 1,
    };
    if end <= PIECE && lines <= FIELDS {
        let aside = Vec::new();
        return Ok(Head { bytes, aside });
    }
    if end > LIMIT || end + lines * header::FIELD > header::OF_A_CONNECTION {
        return Err(HeadError::TooLarge);
    }
    let behind = bytes.split_off(end);
    let head = bytes.freeze();
    let first = head.iter().position(|byte| *byte == b'\n');
    let first = first.map_or(0, |at| at + 1);
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut short = BytesMut::with_capacity(first + SMALL + behind.len());
    short.extend_from_slice(&head[..first]);
    let mut aside = Vec::new();
    match httparse::parse_headers(&head[first..], &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => {
            for field in fields {
                if is_framing(field.name) {
                    let line = [field.name.as_bytes(), b": ", field.value, b"\r\n"];
                    line.iter().for_each(|part| short.extend_from_slice(part));
                    continue;
                }
                let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value));
                let name = head.slice_ref(field.name.as_bytes());
                // The parser accepts nothing else.
                aside.push((name, value.map_err(|_| HeadError::TooLarge)?));
            }
            short.extend_from_slice(b"\r\n");
        }
        _ => return Err(HeadError::Malformed),
    }
    short.extend_from_slice(&behind);
    Ok(Head {
        bytes: short,
        aside,
    })
}

fn is_framing(name: &str) -> bool {
    FRAMING.iter().any(|known| name.eq_ignore_ascii_case(known))
}

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
        assert_eq!(refused(&of(LIMIT - 22)), Some(HeadError::TooLarge));
        assert_eq!(refused(&"a:\n".repeat(100_000)), None);
        assert_eq!(refused(&"a:\n".repeat(130_000)), Some(HeadError::TooLarge));
        let malformed = format!("{}b c: d\r\n", "a: b\r\n".repeat(300));
        assert_eq!(refused(&malformed), Some(HeadError::Malformed));
    }
}
