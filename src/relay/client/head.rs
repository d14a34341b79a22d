//! Reads the head of an HTTP/1 request to its end before pingora parses it.
//!
//! pingora reads at most 256 fields, and parses the head again with each piece that arrives; kube-apiserver accepts any
//! number of fields in 1 MiB. So pingora gets a head that it can read, with the fields that decide where the request
//! ends. The other fields are added afterwards, unchanged and in order. Most heads are passed as they are.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use pingora_core::protocols::Stream;
use tokio::io::AsyncReadExt;

use super::large_headers::{self, IncomingHeaderSlot};

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
    let mut scan = Scan::default();
    let mut slot = Option::<IncomingHeaderSlot>::None;
    loop {
        if let Some(end) = scan.end(&bytes) {
            return split(bytes, end, scan.lines);
        }
        if bytes.len() > LIMIT {
            return Err(HeadError::TooLarge);
        }
        if bytes.len() <= SMALL {
            // pingora makes the error.
            if is_hopeless(&bytes) {
                let aside = Vec::new();
                return Ok(Head { bytes, aside });
            }
        } else if slot.is_none() {
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

/// Finds the end of a head that arrives in pieces. Looks at each byte once.
#[derive(Debug, Default)]
struct Scan {
    begun: bool,
    /// No line ends before this position.
    at: usize,
    /// Number of lines, without empty lines before the first.
    lines: usize,
}

impl Scan {
    /// The end of the head: after the first empty line.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        if !self.begun {
            self.at = blank(bytes);
            self.begun = self.at < bytes.len();
        }
        loop {
            let rest = bytes.get(self.at..)?;
            let line = rest.iter().position(|byte| *byte == b'\n');
            let Some(line) = line else {
                self.at = bytes.len();
                return None;
            };
            let next = self.at + line + 1;
            let empty = match bytes.get(next..)? {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                // The next byte decides. The search resumes at this line end.
                [] | [b'\r'] => {
                    self.at += line;
                    return None;
                }
                _ => 0,
            };
            self.lines += 1;
            self.at = next;
            if empty > 0 {
                return Some(next + empty);
            }
        }
    }
}

/// Empty lines before the first line are ignored.
fn blank(bytes: &[u8]) -> usize {
    let text = |byte: &u8| !matches!(byte, b'\r' | b'\n');
    bytes.iter().position(text).unwrap_or(bytes.len())
}

/// Whether pingora refuses these bytes whatever follows. A first line that pingora would repair is repaired when the
/// rest has arrived.
fn is_hopeless(bytes: &[u8]) -> bool {
    use httparse::Error;
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    match httparse::Request::new(&mut fields).parse(bytes) {
        Ok(_) | Err(Error::TooManyHeaders) => false,
        Err(Error::Token | Error::Version) => {
            let first = bytes.split(|byte| *byte == b'\n');
            let mut text = first.filter(|line| !line.trim_ascii().is_empty());
            let line = text.next().unwrap_or_default();
            !line.windows(6).any(|six| six == b" HTTP/")
        }
        Err(_) => true,
    }
}

/// Divides `bytes`, whose head has `lines` and ends at `end`.
fn split(mut bytes: BytesMut, end: usize, lines: usize) -> Result<Head, HeadError> {
    if end <= PIECE && lines <= FIELDS {
        let aside = Vec::new();
        return Ok(Head { bytes, aside });
    }
    if end > LIMIT || end + lines * large_headers::FIELD > large_headers::OF_A_CONNECTION {
        return Err(HeadError::TooLarge);
    }
    let behind = bytes.split_off(end);
    let head = bytes.freeze();
    let blank = blank(&head);
    let first = head.iter().skip(blank).position(|byte| *byte == b'\n');
    let first = blank + first.map_or(0, |at| at + 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a head and what was put aside, as text.
    fn parts(text: &str) -> (String, Vec<(String, String)>) {
        let bytes = BytesMut::from(text);
        let mut scan = Scan::default();
        let end = scan.end(&bytes).unwrap();
        let head = split(bytes, end, scan.lines).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let aside = head.aside.iter();
        let aside = aside.map(|(name, value)| (text(name), text(value.as_bytes())));
        (text(&head.bytes), aside.collect())
    }

    #[test]
    fn a_head_ends_behind_its_first_empty_line_however_it_comes() {
        for (text, end, lines) in [
            ("GET / HTTP/1.1\r\n\r\nbody\r\n\r\n", 18, 1),
            ("\r\n\nGET / HTTP/1.1\na: b\n\n\n", 24, 2),
            ("GET / HTTP/1.1\r\na: b\r\n c\n\r\nx", 27, 3),
        ] {
            let mut scan = Scan::default();
            let found = (0..=text.len()).find_map(|length| {
                let end = scan.end(&text.as_bytes()[..length])?;
                Some((end, scan.lines))
            });
            assert_eq!(found, Some((end, lines)), "{text:?}");
            let mut scan = Scan::default();
            assert_eq!(scan.end(text.as_bytes()), Some(end), "{text:?}");
        }
        for text in [
            "",
            "\r\n\r\n",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\na: b\r\n\r",
        ] {
            assert_eq!(Scan::default().end(text.as_bytes()), None, "{text:?}");
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
            "\r\nPOST /%zz HTTP/1.1\r\nHOST: x\r\nContent-length: 4\r\n\r\nbody"
        );
        assert_eq!(aside.len(), 301);
        let group = ("Impersonate-Group".to_owned(), "7, a".to_owned());
        assert_eq!(aside[7], group);
        assert_eq!(aside[300], ("X".to_owned(), String::new()));
    }

    #[test]
    fn large_heads_are_refused_for_their_bytes_fields_and_form() {
        let refused = |fields: &str| {
            let bytes = BytesMut::from(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_str());
            let mut scan = Scan::default();
            let end = scan.end(&bytes).unwrap();
            split(bytes, end, scan.lines).err()
        };
        let of = |bytes: usize| format!("a: {}\r\n", "x".repeat(bytes));
        assert_eq!(refused(&of(LIMIT - 23)), None);
        assert_eq!(refused(&of(LIMIT - 22)), Some(HeadError::TooLarge));
        assert_eq!(refused(&"a:\n".repeat(100_000)), None);
        assert_eq!(refused(&"a:\n".repeat(130_000)), Some(HeadError::TooLarge));
        let malformed = format!("{}b c: d\r\n", "a: b\r\n".repeat(300));
        assert_eq!(refused(&malformed), Some(HeadError::Malformed));
    }

    #[test]
    fn what_is_hopeless_is_not_waited_for() {
        for text in [
            "",
            "\r\n",
            "GE",
            "GET / HTTP/1.1\r\na: b",
            "GET /a b HTTP/1.1\r\n",
        ] {
            assert!(!is_hopeless(text.as_bytes()), "{text:?}");
        }
        for text in ["\x16\x03\x01", "GET / HTTP/1.1\r\na b: c\r\n", "x\r\ny\r\n"] {
            assert!(is_hopeless(text.as_bytes()), "{text:?}");
        }
    }
}
