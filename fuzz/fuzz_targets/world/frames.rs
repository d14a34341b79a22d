//! HTTP/2 frames, written by hand: what a library would not send can be sent.

use std::collections::BTreeMap;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload");
    let [_, a, b, c] = length.to_be_bytes();
    let head = [a, b, c, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// A header block of literals that are not indexed.
pub fn block<'f>(fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(text.len(), &mut block);
            block.extend(text);
        }
    }
    block
}

/// A prefix of 7 bits, not compressed.
fn length(length: usize, block: &mut Vec<u8>) {
    if length < 127 {
        return block.push(u8::try_from(length).expect("less than 127"));
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(128 | u8::try_from(rest % 128).expect("less than 128"));
        rest /= 128;
    }
    block.push(u8::try_from(rest).expect("less than 128"));
}

/// HEADERS, and CONTINUATION if it is split.
pub fn headers(stream: u32, end: bool, block: &[u8], split: Option<u8>) -> Vec<u8> {
    let end = if end { END_STREAM } else { 0 };
    match split.map(usize::from).filter(|at| *at < block.len()) {
        None => frame(HEADERS, end | END_HEADERS, stream, block),
        Some(at) => [
            frame(HEADERS, end, stream, &block[..at]),
            frame(CONTINUATION, END_HEADERS, stream, &block[at..]),
        ]
        .concat(),
    }
}

/// What arrived on one stream.
#[derive(Debug, Default)]
pub struct StreamSeen {
    /// Header blocks, trailers and interim answers included.
    pub blocks: usize,
    pub data: Vec<u8>,
    pub ended: bool,
    pub reset: bool,
}

/// A frame.
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: &'a [u8],
}

/// The first frame of `bytes`, if it is complete, and what follows it.
pub fn first(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<9>()?;
    let [a, b, c, kind, flags, stream @ ..] = *head;
    let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()?;
    let (payload, rest) = rest.split_at_checked(length)?;
    let stream = u32::from_be_bytes(stream);
    let frame = Frame {
        kind,
        flags,
        stream,
        payload,
    };
    Some((frame, rest))
}

/// What a server sent on each stream, if all of it is legal.
pub fn seen(mut bytes: &[u8]) -> BTreeMap<u32, StreamSeen> {
    let mut streams: BTreeMap<u32, StreamSeen> = BTreeMap::new();
    while let Some((frame, rest)) = first(bytes) {
        bytes = rest;
        if frame.stream == 0 || ![DATA, HEADERS, RESET].contains(&frame.kind) {
            continue;
        }
        let seen = streams.entry(frame.stream).or_default();
        if frame.kind == RESET {
            seen.reset = true;
            continue;
        }
        assert!(
            !seen.ended && !seen.reset,
            "frames after the end of {}",
            frame.stream
        );
        if frame.kind == DATA {
            assert!(seen.blocks > 0, "data without an answer");
            seen.data.extend(frame.payload);
        } else {
            seen.blocks += 1;
        }
        seen.ended = frame.flags & END_STREAM != 0;
    }
    streams
}
