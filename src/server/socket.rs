//! A client's connection, as HTTP reads and writes it. It reports what its socket accepts ([`Outflow`]), and can be cut off
//! by those who count unread answers.
//!
//! Over HTTP/2 it is also watched for header blocks that take more than one frame, and for frames that ask for nothing:
//! PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, empty DATA and unknown ones.
//!
//! h2 decodes a header block while it arrives, and keeps the fields until it is complete: up to 3 MiB for 1 MiB of
//! fields. So such a block has a limit of [`HEADER_TIMEOUT`], and takes one of the few slots for large headers, except
//! on a peer's connection. h2 also reads all available data before any request is handled; after a large block reading
//! pauses until other tasks have run.
//!
//! Requests and answers explain some frames that ask for nothing: clients reset requests, and open windows while they
//! read. A client beyond its budget is not read until the budget has grown again, so that it breaks nothing of its own.
//!
//! [`Outflow`]: crate::relay::client::Outflow

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::relay::client::unread::UnreadBudget;
use crate::relay::client::{Downstream, IncomingHeaderSlot};
use crate::relay::service::HEADER_TIMEOUT;

/// A block of more bytes may have many fields: each byte may stand for one.
const MANY: usize = 2 << 10;

/// Length of the client's connection preface.
const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Bytes of a frame that asks for nothing that count as another one.
const FRAME: usize = 256;

/// A client's connection.
pub struct ClientSocket<S> {
    stream: S,
    downstream: Arc<Downstream>,
    unread: Arc<UnreadBudget>,
    /// It is in the list of blocked sockets.
    listed: Option<u64>,
    /// Of HTTP/2.
    frames: Option<FrameWatch>,
}

impl<S> ClientSocket<S> {
    pub fn new(stream: S, downstream: Arc<Downstream>, unread: Arc<UnreadBudget>) -> Self {
        Self {
            stream,
            downstream,
            unread,
            listed: None,
            frames: None,
        }
    }

    /// Watches the frames of HTTP/2; nothing was read yet.
    pub(super) fn watch_frames(&mut self, of_a_peer: bool) {
        self.frames = Some(FrameWatch {
            of_a_peer,
            frames: Frames::new(),
            block: None,
            budget: FrameBudget::new(Instant::now()),
            pause: None,
        });
    }

    /// Runs a write or flush of the stream, which returns how many bytes it has written, unless it was cut off.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>>
    where
        S: Unpin,
    {
        let outflow = &self.downstream.outflow;
        if outflow.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = write(Pin::new(&mut self.stream), context);
        match (&polled, self.listed) {
            (Poll::Ready(written), _) => {
                let bytes = *written.as_ref().unwrap_or(&0);
                outflow.wrote(bytes);
                if let Some(frames) = &mut self.frames {
                    frames.budget.sent(bytes);
                }
                self.unlist();
            }
            // Otherwise it was given up meanwhile, and nobody would wake the task.
            (Poll::Pending, Some(id)) if self.unread.goes_on(id, context.waker()) => {}
            (Poll::Pending, Some(_)) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (Poll::Pending, None) => {
                outflow.is_full();
                self.listed = Some(self.unread.list_socket(outflow, context.waker()));
            }
        }
        polled
    }

    fn unlist(&mut self) {
        if let Some(id) = self.listed.take() {
            self.unread.unlist(id);
        }
    }
}

impl<S> Drop for ClientSocket<S> {
    fn drop(&mut self) {
        self.unlist();
        self.downstream.outflow.end();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(frames) = &mut this.frames {
            ready!(frames.poll_may_read(context))?;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if let Some(frames) = &mut this.frames {
            let accepted = &this.downstream.accepted;
            frames.read(buffer.filled().get(before..).unwrap_or_default(), accepted);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(context, |stream, context| {
            stream.poll_write_vectored(context, slices)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll(context, |stream, context| {
            stream.poll_flush(context).map_ok(|()| 0)
        });
        flushed.map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.poll(context, |stream, context| {
            stream.poll_shutdown(context).map_ok(|()| 0)
        });
        shut.map_ok(drop)
    }
}

/// What is known of a client's frames.
struct FrameWatch {
    of_a_peer: bool,
    frames: Frames,
    block: Option<Block>,
    budget: FrameBudget,
    /// Ends before the next read.
    pause: Option<JoinHandle<()>>,
}

impl FrameWatch {
    /// Ready when the client may be read. An error: a header takes too long.
    fn poll_may_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            // The result does not matter.
            let _ = ready!(Pin::new(pause).poll(context));
            self.pause = None;
        }
        let block = self.block.as_mut();
        match block.is_some_and(|block| block.is_over(context)) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Ready(Ok(())),
        }
    }

    /// `accepted`: requests that were begun since the last call. They explain frames.
    fn read(&mut self, bytes: &[u8], accepted: &AtomicUsize) {
        if self.frames.read(bytes) {
            // This task runs after all tasks that are ready now.
            self.pause = Some(tokio::spawn(async {}));
        }
        let mut idle = std::mem::take(&mut self.frames.idle);
        if accepted.load(Ordering::Relaxed) > 0 {
            let count = i64::try_from(accepted.swap(0, Ordering::Relaxed)).unwrap_or(0);
            idle -= count * (1 + OF_A_REQUEST);
        }
        if let Some(time) = self.budget.read(idle, Instant::now) {
            self.pause = Some(tokio::spawn(tokio::time::sleep(time)));
        }
        if !self.frames.open {
            self.block = None;
        } else if self.block.is_none() {
            self.block = Some(Block {
                slot: (!self.of_a_peer).then(IncomingHeaderSlot::take),
                deadline: Box::pin(tokio::time::sleep(HEADER_TIMEOUT)),
            });
        }
    }
}

/// An incomplete header block.
struct Block {
    /// `None` for a peer: its connection carries other requests.
    slot: Option<IncomingHeaderSlot>,
    deadline: Pin<Box<Sleep>>,
}

impl Block {
    /// Whether it took too long, or lost its slot.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let slot = self.slot.as_mut();
        slot.is_some_and(|slot| slot.poll_lost(context).is_ready())
            || self.deadline.as_mut().poll(context).is_ready()
    }
}

/// A parser of frame headers.
#[derive(Debug, Default)]
struct Frames {
    /// Payload bytes to skip.
    skip: usize,
    head: [u8; 9],
    have: usize,
    /// A block is incomplete.
    open: bool,
    /// Bytes of the last block.
    size: usize,
    /// Frames that asked for nothing, as far as is known: those of requests are counted when they were begun.
    idle: i64,
}

impl Frames {
    fn new() -> Self {
        Self {
            skip: PREFACE,
            ..Self::default()
        }
    }

    /// Parses bytes. Returns whether a block of many fields ended.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut many = false;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let wanted = self.head.len() - self.have;
            let taken = wanted.min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            if let Some(slot) = self.head.get_mut(self.have..self.have + taken) {
                slot.copy_from_slice(head);
            }
            self.have += taken;
            bytes = rest;
            if self.have < self.head.len() {
                return many;
            }
            self.have = 0;
            many |= self.begin_frame();
        }
    }

    fn begin_frame(&mut self) -> bool {
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        match kind {
            HEADERS => {
                self.size = self.skip;
                self.idle += 1;
            }
            CONTINUATION => self.size += self.skip,
            DATA if self.skip > 0 || flags & END_STREAM != 0 => return false,
            _ => {
                self.idle += i64::try_from(1 + self.skip / FRAME).unwrap_or(i64::MAX);
                return false;
            }
        }
        self.open = flags & END_HEADERS == 0;
        !self.open && self.size > MANY
    }
}

/// Frames at once, as many as Go's server lets wait.
const MOST: i64 = 10_000;
const PER_SECOND: i64 = 1000;
/// Frames that one request explains.
const OF_A_REQUEST: i64 = 8;
/// Bytes of answers that explain one frame. A client of Go opens two windows for each 4 KiB.
const BYTES: usize = 128;

struct FrameBudget {
    left: i64,
    /// It has grown until then.
    grown: Instant,
}

impl FrameBudget {
    fn new(now: Instant) -> Self {
        Self {
            left: MOST,
            grown: now,
        }
    }

    /// So many bytes were sent to the client.
    fn sent(&mut self, bytes: usize) {
        self.earn(i64::try_from(bytes / BYTES).unwrap_or(MOST));
    }

    /// These frames were read. Returns the time until the client may be read again, if it has sent too many.
    fn read(&mut self, frames: i64, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if frames <= 0 {
            self.earn(frames.saturating_neg());
            return None;
        }
        self.left = self.left.saturating_sub(frames);
        if self.left >= 0 {
            return None;
        }
        let now = now();
        let time = now.saturating_duration_since(self.grown).as_millis();
        self.grown = now;
        self.earn(i64::try_from(time).unwrap_or(MOST) * PER_SECOND / 1000);
        let missing = u64::try_from(self.left.saturating_neg()).unwrap_or(0);
        (missing > 0).then(|| Duration::from_millis(missing * 1000 / PER_SECOND as u64))
    }

    fn earn(&mut self, frames: i64) {
        self.left = self.left.saturating_add(frames).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::Waker;

    use prometheus::Registry;
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::relay::client::unread::UnreadMetrics;
    use crate::request::caller::ClientConnection;

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_takes_nothing_is_cut_off_unless_something_long_is_on_it() {
        let unread = UnreadBudget::new(UnreadMetrics::new(&Registry::new()).unwrap());
        let client = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), 0, Vec::new());
        let downstream = Arc::new(Downstream::new(client));
        let (ours, _theirs) = tokio::io::duplex(10);
        let mut socket = ClientSocket::new(ours, downstream.clone(), Arc::new(unread));
        socket.write_all(&[0; 10]).await.unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(socket.write(&[0])).poll(&mut context).is_pending());
        let long = downstream.outflow.unlimited();
        tokio::time::sleep(Duration::from_secs(150)).await;
        assert!(pin!(socket.write(&[0])).poll(&mut context).is_pending());
        drop(long);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(socket.write(&[0]).await.is_err());
    }

    fn frame(kind: u8, flags: u8, size: usize) -> Vec<u8> {
        let size = u32::try_from(size).unwrap();
        let [_, a, b, c] = size.to_be_bytes();
        let head = [a, b, c, kind, flags, 0, 0, 0, 1];
        // A payload that looks like a header block that is never complete.
        [&head[..], &vec![HEADERS; size as usize]].concat()
    }

    /// Whether blocks are open after each frame, and which were of many fields, however the bytes come.
    fn follow(frames: &[Vec<u8>], pieces: usize) -> Vec<(bool, bool)> {
        let mut reader = Frames::new();
        assert!(!reader.read(&[b'P'; PREFACE]));
        let followed = frames.iter().map(|frame| {
            let many = frame.chunks(pieces).map(|piece| reader.read(piece));
            let many = many.fold(false, |many, one| many | one);
            (reader.open, many)
        });
        followed.collect()
    }

    #[test]
    fn frames_that_ask_for_nothing_are_counted() {
        const PING: u8 = 6;
        for (kind, flags, size, expected) in [
            (PING, 0, 8, 1),
            (4, 0, 0, 1),
            (200, 0, 16 << 10, 65),
            (DATA, 0, 0, 1),
            (DATA, END_STREAM, 0, 0),
            (DATA, 0, 1, 0),
            (HEADERS, 0, 300, 1),
            (CONTINUATION, 0, 0, 0),
        ] {
            let mut reader = Frames::new();
            reader.read(&[b'P'; PREFACE]);
            reader.read(&frame(kind, flags, size));
            assert_eq!(reader.idle, expected, "{kind} {size}");
        }
    }

    #[test]
    fn blocks_are_seen_among_other_frames() {
        let frames = [
            frame(4, 0, 36),
            frame(HEADERS, END_HEADERS | 1, 300),
            frame(0, END_HEADERS, 10_000),
            frame(HEADERS, 1, 2000),
            frame(CONTINUATION, 0, 10),
            frame(CONTINUATION, END_HEADERS, 100),
            frame(HEADERS, END_HEADERS, 3000),
            frame(HEADERS, 0, 0),
            frame(CONTINUATION, END_HEADERS, 1),
        ];
        let expected = [
            (false, false),
            (false, false),
            (false, false),
            (true, false),
            (true, false),
            (false, true),
            (false, true),
            (true, false),
            (false, false),
        ];
        for pieces in [1, 8, 9, 4096, 20_000] {
            assert_eq!(follow(&frames, pieces), expected, "{pieces}");
        }
    }

    /// The pause after `frames` more, so many seconds after the beginning.
    fn paused(budget: &mut FrameBudget, begun: Instant, frames: i64, seconds: u64) -> Option<u64> {
        let now = || begun + Duration::from_secs(seconds);
        let pause = budget.read(frames, now)?;
        Some(pause.as_millis().try_into().unwrap())
    }

    #[test]
    fn who_floods_is_read_at_a_bounded_rate() {
        let begun = Instant::now();
        let mut budget = FrameBudget::new(begun);
        assert_eq!(paused(&mut budget, begun, MOST, 0), None);
        assert_eq!(paused(&mut budget, begun, 2000, 0), Some(2000));
        assert_eq!(paused(&mut budget, begun, 1000, 2), Some(1000));
        // It grows for as long as that, and not above its size.
        assert_eq!(paused(&mut budget, begun, 1000, 1_000_000), None);
        assert_eq!(
            paused(&mut budget, begun, MOST + 1000, 1_000_000),
            Some(1000)
        );
    }

    #[test]
    fn requests_and_answers_explain_frames() {
        let begun = Instant::now();
        let mut budget = FrameBudget::new(begun);
        for _ in 0..10 * MOST {
            assert_eq!(paused(&mut budget, begun, -OF_A_REQUEST, 0), None);
            assert_eq!(paused(&mut budget, begun, OF_A_REQUEST, 0), None);
            budget.sent(4096);
            assert_eq!(paused(&mut budget, begun, 32, 0), None);
            budget.sent(BYTES * 32);
        }
        // An answer to a PING explains none.
        budget.sent(17);
        assert_eq!(budget.left, MOST);
        assert!(paused(&mut budget, begun, MOST + 1, 0).is_some());
    }
}
