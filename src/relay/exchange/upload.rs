//! A request on its way to apiservers: its body, and its header as long as another server may be tried.
//!
//! Over HTTP/2 a piece waits for the server's window while the answer is read: a server may answer while it reads, and
//! stop reading until its answer is taken. Over HTTP/1.1, which kube-apiserver speaks only if its HTTP/2 is switched off,
//! pingora cannot read while it writes: each piece is written before more of the answer is read.
//!
//! The beginning of a body is kept until an answer comes (`Replay`), so that it can be sent to another server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use h2::SendStream;
use http::request::Parts;

use super::packed_header::PackedHeader;
use crate::net::poll_send;
use crate::relay::client::ClientSession;
use crate::relay::outcome::Outcome;
use crate::relay::upstream::UpstreamSession;

/// The side that ended an exchange.
pub enum Disconnected {
    Client,
    Server(Box<pingora_core::Error>),
}

/// Longest body that is kept to be sent again, in bytes. It is the window that kube-apiserver gives a new stream, 256 KiB,
/// and the piece that is read after that: of a request that it has not processed, because its GOAWAY came first, no more
/// can have been sent.
const REPLAY_LIMIT: usize = (256 + 64) << 10;
/// Most objects are smaller than this.
const SMALL_BODY: usize = 64 << 10;
/// Larger bodies that are kept at the same time. Others are not kept.
const LARGE_BODIES: usize = 512;
/// Pieces of at least this many bytes share the buffer that they were read into. Smaller ones are copied: each may be a
/// part of a much larger buffer.
const SHARED: usize = 8 << 10;

/// The pieces of a body that were read so far.
#[derive(Debug, Default)]
struct Replay {
    pieces: Vec<Bytes>,
    /// Copies of small pieces that come after `pieces`.
    tail: BytesMut,
    length: usize,
    /// Set if it is longer than [`SMALL_BODY`].
    large: Option<LargeBody>,
}

/// One of the [`LARGE_BODIES`].
#[derive(Debug)]
struct LargeBody(&'static AtomicUsize);

static KEPT_LARGE_BODIES: AtomicUsize = AtomicUsize::new(0);

impl LargeBody {
    fn take(kept: &'static AtomicUsize) -> Option<Self> {
        let more = |count| (count < LARGE_BODIES).then_some(count + 1);
        let taken = kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Self(kept))
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Replay {
    /// Keeps a piece; `false`: the body is too long, or too many long ones are kept.
    fn keep(&mut self, piece: &Bytes) -> bool {
        if piece.is_empty() {
            return true;
        }
        self.length += piece.len();
        if self.length > REPLAY_LIMIT {
            return false;
        }
        if self.length > SMALL_BODY && self.large.is_none() {
            self.large = LargeBody::take(&KEPT_LARGE_BODIES);
            if self.large.is_none() {
                return false;
            }
        }
        if self.length == piece.len() || piece.len() >= SHARED {
            self.end_tail();
            self.pieces.push(piece.clone());
        } else {
            self.tail.extend_from_slice(piece);
        }
        true
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
        }
    }

    /// All pieces in order. None is empty.
    fn pieces(&mut self) -> VecDeque<Bytes> {
        self.end_tail();
        self.pieces.iter().cloned().collect()
    }
}

/// A request's header.
enum KeptHeader {
    Whole(Box<Parts>),
    /// A server was sent it.
    Packed(PackedHeader),
}

pub struct Upload {
    /// The request's header, while a server may get the request.
    header: Option<KeptHeader>,
    expected: bool,
    /// The client waits for `100 Continue` before it sends its body.
    continue_owed: bool,
    /// What was read so far, for another server; `None` if it is too long, or no longer needed.
    kept: Option<Replay>,
    /// The client's body was read to its end.
    read: bool,
    /// The server accepts no more of the body. Usually it has answered early, and its answer counts.
    refused: bool,
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
    /// Comes after `pending`, if the body is sent again.
    replay: VecDeque<Bytes>,
    /// The sending half of an HTTP/2 stream.
    writer: Option<SendStream<Bytes>>,
}

/// What an upload waits for.
#[derive(Debug, Clone, Copy)]
pub struct UploadInterest {
    /// Wait for the server to accept pending data.
    pub pending: bool,
    /// Wait for the client: for more of the body, or until it goes away.
    pub followed: bool,
    /// No body is read now: the client can only go away.
    pub idle: bool,
}

impl Upload {
    /// `expected`: there is a body; `expects_continue`: the client waits for `100 Continue`.
    pub fn new(header: Box<Parts>, expected: bool, expects_continue: bool) -> Self {
        Self {
            header: Some(KeptHeader::Whole(header)),
            expected,
            continue_owed: expected && expects_continue,
            kept: Some(Replay::default()),
            read: !expected,
            refused: false,
            pending: None,
            replay: VecDeque::new(),
            writer: None,
        }
    }

    /// `None`: a server was sent it.
    pub fn header_mut(&mut self) -> Option<&mut Parts> {
        match &mut self.header {
            Some(KeptHeader::Whole(header)) => Some(header),
            _ => None,
        }
    }

    /// The header for a server, to which this one's own fields may be added. `None`: the answer has begun.
    pub fn header_to_send(&mut self) -> pingora_core::Result<Option<Box<Parts>>> {
        let (header, kept) = match self.header.take() {
            None => return Ok(None),
            Some(KeptHeader::Whole(header)) => {
                let kept = match PackedHeader::of(&header) {
                    Some(packed) => KeptHeader::Packed(packed),
                    None => KeptHeader::Whole(header.clone()),
                };
                (header, kept)
            }
            Some(KeptHeader::Packed(packed)) => (packed.unpack()?, KeptHeader::Packed(packed)),
        };
        self.header = Some(kept);
        Ok(Some(header))
    }

    /// Whether nothing more is to be read from the client.
    pub fn is_read(&self) -> bool {
        self.read
    }

    pub fn is_expected(&self) -> bool {
        self.expected
    }

    /// Whether to send `100 Continue` now. `true` once.
    pub fn is_continue_owed(&mut self) -> bool {
        std::mem::take(&mut self.continue_owed)
    }

    /// Starts the body after the header was written to `up`: first the pieces that an earlier server was sent.
    pub async fn begin(&mut self, up: &mut UpstreamSession) {
        if !self.expected {
            return;
        }
        self.writer = writer(up);
        self.refused = false;
        self.pending = None;
        self.replay = self.kept.as_mut().map(Replay::pieces).unwrap_or_default();
        if self.replay.is_empty() {
            if self.read {
                self.send(Bytes::new(), true, up).await;
            }
            return;
        }
        while let Some((data, end)) = self.next_of_replay()
            && !self.refused
        {
            self.send(data, end, up).await;
            if self.pending.is_some() {
                return;
            }
        }
    }

    fn next_of_replay(&mut self) -> Option<(Bytes, bool)> {
        let data = self.replay.pop_front()?;
        let end = self.read && self.replay.is_empty();
        Some((data, end))
    }

    /// Whether the whole body can be sent to another server.
    pub fn can_begin_again(&self) -> bool {
        self.kept.is_some()
    }

    /// Drops what was kept: no other server will be tried.
    pub fn forget(&mut self) {
        self.header = None;
        self.kept = None;
    }

    fn keep(&mut self, piece: &Bytes) {
        let fits = self.kept.as_mut().is_some_and(|kept| kept.keep(piece));
        if !fits {
            self.kept = None;
        }
    }

    /// Whether the body was sent completely: the server's connection can be used again after the answer.
    pub fn is_sent(&self) -> bool {
        self.read && !self.refused && self.pending.is_none()
    }

    /// What to wait for next. Over HTTP/1 a client that goes away is not noticed behind a body that is not read, and
    /// the rest of an unwanted body must not be read as the next request.
    pub fn interest(&self, down: &ClientSession) -> UploadInterest {
        let pending = self.pending.is_some();
        let idle = self.read || pending || self.refused;
        UploadInterest {
            pending,
            followed: down.is_http2() || !idle || (self.read && !pending),
            idle,
        }
    }

    /// Accepts a piece from the client; `end`: it is the last.
    pub async fn take(
        &mut self,
        piece: pingora_core::Result<Option<Bytes>>,
        end: bool,
        up: &mut UpstreamSession,
    ) -> Result<(), Disconnected> {
        let piece = piece.map_err(|_| Disconnected::Client)?;
        let end = end || piece.is_none();
        self.read = end;
        let data = piece.unwrap_or_default();
        self.keep(&data);
        self.send(data, end, up).await;
        Ok(())
    }

    async fn send(&mut self, data: Bytes, end: bool, up: &mut UpstreamSession) {
        match self.writer {
            Some(_) => self.pending = Some((data, end)),
            None => self.refused = Box::pin(send(data, end, up)).await.is_err(),
        }
    }

    /// Sends as much of the pending data as the server's window allows. Cancel safe.
    pub async fn progress(&mut self) {
        let (Some(writer), Some((data, end))) = (&mut self.writer, &mut self.pending) else {
            return std::future::pending().await;
        };
        match poll_fn(|context| poll_send(writer, data, *end, context)).await {
            Ok(false) => {}
            Ok(true) => self.pending = self.next_of_replay(),
            Err(_) => {
                self.pending = None;
                self.replay.clear();
                self.refused = true;
            }
        }
    }

    /// The outcome of an answer that was delivered completely.
    pub fn answered(&self, code: u16) -> Outcome {
        Outcome::Answered {
            code,
            reusable: self.read,
        }
    }
}

fn writer(up: &mut UpstreamSession) -> Option<SendStream<Bytes>> {
    match up {
        UpstreamSession::H2(stream) => stream.take_writer(),
        UpstreamSession::H1(_) => None,
    }
}

/// Sends a piece over HTTP/1.1. An HTTP/2 stream has a writer as long as there is a body.
async fn send(data: Bytes, end: bool, up: &mut UpstreamSession) -> pingora_core::Result<()> {
    let UpstreamSession::H1(session) = up else {
        return Ok(());
    };
    // An empty piece would be the end of a chunked body.
    if !data.is_empty() {
        session.write_body(&data).await?;
    }
    if end {
        session.finish_body().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pieces: &[Bytes]) -> Option<VecDeque<Bytes>> {
        let mut replay = Replay::default();
        let fits = pieces.iter().all(|piece| replay.keep(piece));
        fits.then(|| replay.pieces())
    }

    #[test]
    fn the_first_and_large_pieces_are_shared_and_small_ones_are_joined() {
        let large = Bytes::from(vec![b'x'; SHARED]);
        let small = Bytes::from_static(b"small");
        let pieces = [&small, &large, &small, &small, &large, &small];
        let again = kept(&pieces.map(Clone::clone)).unwrap();
        let lengths: Vec<_> = again.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [5, SHARED, 10, SHARED, 5]);
        for shared in [(0, &small), (1, &large), (3, &large)] {
            assert_eq!(again[shared.0].as_ptr(), shared.1.as_ptr());
        }
        assert_eq!(again.into_iter().flatten().count(), 2 * SHARED + 20);
    }

    #[test]
    fn a_body_is_kept_up_to_the_limit_and_can_be_sent_again_more_than_once() {
        let mut replay = Replay::default();
        assert!(replay.keep(&Bytes::from(vec![0; REPLAY_LIMIT - 2])));
        assert!(replay.keep(&Bytes::from_static(b"a")));
        let first = replay.pieces();
        assert!(replay.keep(&Bytes::from_static(b"b")));
        let second = replay.pieces();
        assert_eq!(first.into_iter().flatten().last(), Some(b'a'));
        assert_eq!(second.into_iter().flatten().count(), REPLAY_LIMIT);
        assert!(!replay.keep(&Bytes::from_static(b"c")));
    }

    #[test]
    fn only_so_many_large_bodies_are_kept_at_a_time() {
        static KEPT: AtomicUsize = AtomicUsize::new(0);
        let all: Vec<_> = (0..LARGE_BODIES)
            .map_while(|_| LargeBody::take(&KEPT))
            .collect();
        assert_eq!(all.len(), LARGE_BODIES);
        assert!(LargeBody::take(&KEPT).is_none());
        drop(all);
        assert!(LargeBody::take(&KEPT).is_some());
    }

    #[test]
    fn nothing_is_sent_again_of_an_empty_body() {
        assert_eq!(kept(&[]), Some(VecDeque::new()));
        assert_eq!(kept(&[Bytes::new()]), Some(VecDeque::new()));
    }
}
