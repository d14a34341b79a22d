//! The beginning of a request's body, which is kept while another server may get the request. Pure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};

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
pub(super) struct Replay {
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
    pub(super) fn keep(&mut self, piece: &Bytes) -> bool {
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
    pub(super) fn pieces(&mut self) -> VecDeque<Bytes> {
        self.end_tail();
        self.pieces.iter().cloned().collect()
    }
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
