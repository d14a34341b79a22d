//! Sends requests that no client library would send: raw bytes over HTTP/1.1, raw header blocks over HTTP/2.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::client::Client;

/// For a whole exchange; nothing that is asked here takes long.
const LIMIT: Duration = Duration::from_secs(20);

/// What a client's connection of HTTP/2 begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types and flags of frames (RFC 9113 §6).
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const STREAM: u32 = 1;

/// Writes `bytes` on a connection of their own; everything that came until it was closed. Panics if it stays open.
pub async fn http1(client: &Client, bytes: &[u8]) -> Vec<u8> {
    let mut tls = client.connect_raw(&["http/1.1"]).await.unwrap();
    // An error says that it was closed already: what came before that counts.
    let _ = tls.write_all(bytes).await;
    let _ = tls.flush().await;
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let end = timeout(LIMIT, tls.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "still open: {}", bytes.escape_ascii());
    answer
}

/// The codes of all answers that HTTP/1.1 brought, one after the other.
pub fn codes(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    let starts = text.match_indices("HTTP/1.1 ");
    starts
        .map(|(at, start)| text[at + start.len()..][..3].parse().unwrap())
        .collect()
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered(u16),
    /// Reset, or its connection closed, before an answer.
    Refused,
}

/// Sends one header block, and one piece of a body if there is one, on a connection of their own.
pub async fn http2(client: &Client, fields: &[(&[u8], &[u8])], body: Option<&[u8]>) -> Outcome {
    let mut tls = client.connect_raw(&["h2"]).await.unwrap();
    let block: Vec<u8> = fields.iter().flat_map(|field| literal(*field)).collect();
    let end = if body.is_none() { END_STREAM } else { 0 };
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS | end, STREAM, &block));
    if let Some(body) = body {
        bytes.extend(frame(DATA, END_STREAM, STREAM, body));
    }
    // An error says that it was closed already.
    let _ = tls.write_all(&bytes).await;
    let _ = tls.flush().await;
    let outcome = timeout(LIMIT, outcome(&mut tls)).await;
    outcome
        .expect("an answer, or an end")
        .unwrap_or(Outcome::Refused)
}

/// `None`: the connection ended.
async fn outcome(tls: &mut TlsStream<TcpStream>) -> Option<Outcome> {
    loop {
        let mut head = [0; 9];
        tls.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        tls.read_exact(&mut payload).await.ok()?;
        match (kind, u32::from_be_bytes(stream)) {
            (HEADERS, STREAM) => return Some(Outcome::Answered(status(&payload))),
            (RESET, STREAM) => return Some(Outcome::Refused),
            (GOAWAY, _) if payload[4..8] != [0; 4] => return Some(Outcome::Refused),
            _ => {}
        }
    }
}

/// One frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [head, payload.to_vec()].concat()
}

/// A field that is not indexed, its name and value neither.
pub fn literal((name, value): (&[u8], &[u8])) -> Vec<u8> {
    let string = |text: &[u8]| {
        // A prefix of 7 bits, and what is above it in groups of 7.
        let mut bytes = match text.len() {
            short @ 0..127 => vec![u8::try_from(short).unwrap()],
            long => {
                let (high, low) = ((long - 127) / 128, (long - 127) % 128);
                vec![
                    127,
                    128 + u8::try_from(low).unwrap(),
                    u8::try_from(high).unwrap(),
                ]
            }
        };
        bytes.extend(text);
        bytes
    };
    [vec![0], string(name), string(value)].concat()
}

/// The code in the first field of the first block of a connection.
fn status(block: &[u8]) -> u16 {
    match block {
        // The static table's.
        [indexed @ 0x88..=0x8e, ..] => {
            [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)]
        }
        // Name from the static table, digits as they are, or in Huffman's code.
        [0x08 | 0x48, 3, digits @ ..] => {
            std::str::from_utf8(&digits[..3]).unwrap().parse().unwrap()
        }
        [0x08 | 0x48, length @ 0x82..=0x83, digits @ ..] => {
            huffman(&digits[..usize::from(length & 0x7f)])
        }
        _ => panic!("no status in {}", block.escape_ascii()),
    }
}

/// Three digits: 0 to 2 have five bits, the others six (RFC 7541, appendix B).
fn huffman(bytes: &[u8]) -> u16 {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut rest = bits.as_str();
    let mut code = 0;
    for _ in 0..3 {
        let short = u16::from_str_radix(&rest[..5], 2).unwrap();
        let (digit, length) = match short {
            0..=2 => (short, 5),
            _ => (
                u16::from_str_radix(&rest[..6], 2).unwrap() - 0b01_1001 + 3,
                6,
            ),
        };
        code = code * 10 + digit;
        rest = &rest[length..];
    }
    code
}
