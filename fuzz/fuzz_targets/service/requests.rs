//! What a client sends.

use std::collections::BTreeSet;
use std::time::Duration;

use arbitrary::Arbitrary;

use crate::words::{Field, Head};
use crate::world::frames::{self, block, frame, headers};

#[derive(Debug, Arbitrary)]
pub enum Http2Part {
    Request {
        head: Head,
        end: bool,
        split: Option<u8>,
        authority: bool,
    },
    Data {
        stream: u8,
        length: u16,
        padding: Option<u8>,
        end: bool,
    },
    Trailers {
        stream: u8,
        fields: Vec<Field>,
    },
    Reset {
        stream: u8,
        code: u8,
    },
    Window {
        stream: u8,
        by: u32,
    },
    Setting {
        name: u8,
        value: u32,
    },
    Ping,
    GoAway,
    Any {
        kind: u8,
        flags: u8,
        stream: u8,
        payload: Vec<u8>,
    },
    Pause {
        seconds: u8,
    },
    ProxyStops,
}

#[derive(Debug, Arbitrary)]
pub enum Http1Part {
    Request {
        head: Head,
        minor: u8,
        length: Option<u8>,
        chunked: bool,
        host: bool,
    },
    Body {
        length: u8,
    },
    Chunk {
        length: u8,
        said: Option<u8>,
    },
    LastChunk {
        fields: Vec<Field>,
    },
    Any(Vec<u8>),
    Pause {
        seconds: u8,
    },
    ProxyStops,
}

pub enum Piece {
    Bytes(Vec<u8>),
    Pause(Duration),
    ProxyStops,
}

/// The bytes, and which requests say that they were rerouted. Each names its stream.
pub fn http2(parts: impl Iterator<Item = Http2Part>) -> (Vec<Piece>, BTreeSet<u32>) {
    let mut next = 1;
    let mut marked = BTreeSet::new();
    let settings = frame(frames::SETTINGS, 0, 0, &[]);
    let mut pieces = vec![Piece::Bytes([frames::PREFACE, &settings].concat())];
    for part in parts {
        // One of the streams so far, or none.
        let at = |stream: u8| {
            (u32::from(stream) % (next / 2 + 1))
                .saturating_mul(2)
                .saturating_sub(1)
        };
        let bytes = match part {
            Http2Part::Request {
                head,
                end,
                split,
                authority,
            } => {
                if head.fields.iter().any(Field::is_mark) {
                    marked.insert(next);
                }
                let bytes = headers(next, end, &request_block(&head, authority, next), split);
                next += 2;
                bytes
            }
            Http2Part::Data {
                stream,
                length,
                padding,
                end,
            } => {
                let length = usize::from(length) % (16 << 10);
                let flags = if end { frames::END_STREAM } else { 0 };
                match padding {
                    None => frame(frames::DATA, flags, at(stream), &vec![b'x'; length]),
                    Some(padding) => {
                        let payload = [&[padding][..], &vec![b'x'; length]].concat();
                        frame(frames::DATA, flags | frames::PADDED, at(stream), &payload)
                    }
                }
            }
            Http2Part::Trailers { stream, fields } => {
                let fields: Vec<_> = fields.iter().map(Field::parts).collect();
                let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
                headers(at(stream), true, &block(fields), None)
            }
            Http2Part::Reset { stream, code } => {
                frame(frames::RESET, 0, at(stream), &u32::from(code).to_be_bytes())
            }
            Http2Part::Window { stream, by } => {
                frame(frames::WINDOW_UPDATE, 0, at(stream), &by.to_be_bytes())
            }
            Http2Part::Setting { name, value } => {
                let payload = [&[0, name][..], &value.to_be_bytes()].concat();
                frame(frames::SETTINGS, 0, 0, &payload)
            }
            Http2Part::Ping => frame(frames::PING, 0, 0, &[7; 8]),
            Http2Part::GoAway => frame(frames::GO_AWAY, 0, 0, &[0; 8]),
            Http2Part::Any {
                kind,
                flags,
                stream,
                payload,
            } => frame(kind, flags, u32::from(stream), &payload),
            Http2Part::Pause { seconds } => {
                pieces.push(Piece::Pause(Duration::from_secs(seconds.into())));
                continue;
            }
            Http2Part::ProxyStops => {
                pieces.push(Piece::ProxyStops);
                continue;
            }
        };
        pieces.push(Piece::Bytes(bytes));
    }
    (pieces, marked)
}

fn request_block(head: &Head, authority: bool, stream: u32) -> Vec<u8> {
    let (path, stream) = (head.path(), stream.to_string());
    let mut fields: Vec<(&[u8], &[u8])> = vec![
        (b":method", head.method().as_bytes()),
        (b":scheme", b"https"),
        (b":path", &path),
    ];
    if authority {
        fields.push((b":authority", b"kubernetes"));
    }
    fields.push((b"x-stream", stream.as_bytes()));
    let others: Vec<_> = head.fields.iter().map(Field::parts).collect();
    fields.extend(others.iter().map(|(name, value)| (&name[..], &value[..])));
    block(fields)
}

/// The same for HTTP/1. Each request has a number.
pub fn http1(parts: impl Iterator<Item = Http1Part>) -> (Vec<Piece>, BTreeSet<u32>) {
    let mut next = 1;
    let mut marked = BTreeSet::new();
    let mut pieces = Vec::new();
    for part in parts {
        pieces.push(match part {
            Http1Part::Request {
                head,
                minor,
                length,
                chunked,
                host,
            } => {
                if head.fields.iter().any(Field::is_mark) {
                    marked.insert(next);
                }
                let mut bytes = [head.method().as_bytes(), b" ", &head.path()].concat();
                bytes.extend(format!(" HTTP/1.{}\r\nx-stream: {next}\r\n", minor % 3).bytes());
                if host {
                    bytes.extend(b"host: kubernetes\r\n");
                }
                if let Some(length) = length {
                    bytes.extend(format!("content-length: {length}\r\n").bytes());
                }
                if chunked {
                    bytes.extend(b"transfer-encoding: chunked\r\n");
                }
                write_fields(&head.fields, &mut bytes);
                next += 1;
                Piece::Bytes(bytes)
            }
            Http1Part::Body { length } => Piece::Bytes(vec![b'x'; length.into()]),
            Http1Part::Chunk { length, said } => {
                let mut bytes = format!("{:x}\r\n", said.unwrap_or(length)).into_bytes();
                bytes.extend(vec![b'x'; length.into()]);
                bytes.extend(b"\r\n");
                Piece::Bytes(bytes)
            }
            Http1Part::LastChunk { fields } => {
                let mut bytes = b"0\r\n".to_vec();
                write_fields(&fields, &mut bytes);
                Piece::Bytes(bytes)
            }
            Http1Part::Any(bytes) => Piece::Bytes(bytes),
            Http1Part::Pause { seconds } => Piece::Pause(Duration::from_secs(seconds.into())),
            Http1Part::ProxyStops => Piece::ProxyStops,
        });
    }
    (pieces, marked)
}

fn write_fields(fields: &[Field], bytes: &mut Vec<u8>) {
    for field in fields {
        let (name, value) = field.parts();
        bytes.extend([&name[..], b": ", &value, b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
}
