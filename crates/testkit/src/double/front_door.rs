//! Ends HTTP/2 connections with a GOAWAY after an anonymous request, like apiservers since 1.29 and in the bytes of
//! Go's server.
//!
//! `UnauthenticatedHTTP2DOSMitigation` answers an anonymous request, and a 401, with `Connection: close`. Go sends one
//! GOAWAY with the highest stream that it has seen. It still answers streams up to that one and silently discards
//! later ones. It closes the connection a second after the last answer. (hyper's own graceful shutdown first pings the
//! client, so that hardly any stream is lost.) Discarded header blocks are not decoded: a client must not rely on
//! their entries in the HPACK table.

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Between the last answer and the end, Go's `goAwayTimeout`.
const GRACE: Duration = Duration::from_secs(1);
const PREFACE: usize = 24;
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const END_STREAM: u8 = 1;

/// The state of one connection, shared with the handlers of its requests.
#[derive(Default)]
pub struct FrontDoor(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The highest stream seen.
    highest: u32,
    /// Streams without an end.
    open: HashSet<u32>,
    leaving: Leaving,
    reader: Option<Waker>,
}

#[derive(Clone, Copy, Default)]
enum Leaving {
    #[default]
    No,
    /// To be said before the next frame.
    Asked,
    /// With this last stream.
    Said(u32),
}

impl FrontDoor {
    /// Ends the connection after its open streams.
    pub fn leave(&self) {
        let mut known = self.0.lock().unwrap();
        if matches!(known.leaving, Leaving::No) {
            known.leaving = Leaving::Asked;
        }
    }

    /// A frame's head from the client. Whether the frame counts, and whether it begins a stream.
    fn arrives(&self, head: Head) -> (bool, bool) {
        let mut known = self.0.lock().unwrap();
        let begins = head.kind == HEADERS && head.stream > known.highest;
        if let Leaving::Said(last) = known.leaving
            && head.stream > last
        {
            return (false, false);
        }
        if begins {
            known.highest = head.stream;
            known.open.insert(head.stream);
        }
        if head.kind == RESET {
            known.open.remove(&head.stream);
        }
        (true, begins)
    }

    /// A frame's head to the client.
    fn leaves(&self, head: Head) {
        let mut known = self.0.lock().unwrap();
        let ends = head.kind <= HEADERS && head.flags & END_STREAM != 0;
        if ends || head.kind == RESET {
            known.open.remove(&head.stream);
            if let Some(reader) = known.reader.take() {
                reader.wake();
            }
        }
    }

    /// The GOAWAY, once, if there is one to be said.
    fn goaway(&self) -> Option<[u8; 17]> {
        let mut known = self.0.lock().unwrap();
        let Leaving::Asked = known.leaving else {
            return None;
        };
        let last = known.highest;
        known.leaving = Leaving::Said(last);
        let mut frame = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        frame[9..13].copy_from_slice(&last.to_be_bytes());
        Some(frame)
    }

    /// Whether GOAWAY was sent and all streams that it covers are answered. Wakes the reader when that may have
    /// changed.
    fn is_done(&self, context: &Context<'_>) -> bool {
        let mut known = self.0.lock().unwrap();
        known.reader = Some(context.waker().clone());
        matches!(known.leaving, Leaving::Said(_)) && known.open.is_empty()
    }
}

#[derive(Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn of(bytes: [u8; HEAD]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }
}

/// How far the frames of one direction were followed.
struct Frames {
    head: [u8; HEAD],
    /// The incomplete header.
    known: usize,
    /// Of the payload, or of the client's preface.
    left: usize,
}

impl Frames {
    fn after(preface: usize) -> Self {
        Self {
            head: [0; HEAD],
            known: 0,
            left: preface,
        }
    }

    fn at_boundary(&self) -> bool {
        self.known == 0 && self.left == 0
    }

    /// Takes bytes up to the end of a head or a payload: how many, and the head if one is complete.
    fn step(&mut self, bytes: &[u8]) -> (usize, Option<Head>) {
        if self.left > 0 {
            let taken = self.left.min(bytes.len());
            self.left -= taken;
            return (taken, None);
        }
        let taken = (HEAD - self.known).min(bytes.len());
        self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
        self.known += taken;
        if self.known < HEAD {
            return (taken, None);
        }
        let head = Head::of(self.head);
        (self.known, self.left) = (0, head.length);
        (taken, Some(head))
    }
}

/// A server's side of a connection of HTTP/2, with its front door.
pub struct Watched<T> {
    inner: T,
    /// `None`: it is left alone.
    door: Option<Arc<FrontDoor>>,
    reading: Frames,
    /// Read and not looked at yet.
    raw: BytesMut,
    /// Looked at, and for the server.
    passed: BytesMut,
    /// Whether the payload that comes is.
    passes: bool,
    /// A stream was begun: the server is to see to it before the next one.
    rest: bool,
    writing: Frames,
    own: BytesMut,
    closing: Option<Pin<Box<Sleep>>>,
}

impl<T> Watched<T> {
    pub fn new(inner: T, door: Option<Arc<FrontDoor>>) -> Self {
        Self {
            inner,
            door,
            reading: Frames::after(PREFACE),
            raw: BytesMut::new(),
            passed: BytesMut::new(),
            passes: true,
            rest: false,
            writing: Frames::after(0),
            own: BytesMut::new(),
            closing: None,
        }
    }

    /// Processes input up to the end of a frame that begins a stream.
    fn look(&mut self, door: &FrontDoor) {
        while !self.raw.is_empty() {
            let (taken, head) = self.reading.step(&self.raw);
            let bytes = self.raw.split_to(taken);
            match head {
                Some(head) => {
                    let begins;
                    (self.passes, begins) = door.arrives(head);
                    self.rest |= begins;
                    if self.passes {
                        self.passed.extend_from_slice(&self.reading.head);
                    }
                }
                // An incomplete header is not passed on yet.
                None if self.reading.known > 0 => {}
                None if self.passes => self.passed.extend_from_slice(&bytes),
                None => {}
            }
            if self.rest && self.reading.at_boundary() {
                return;
            }
        }
    }
}

impl<T: AsyncRead + Unpin> Watched<T> {
    /// Fills `raw`; `false` at the end.
    fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [0; 4096];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
        self.raw.extend_from_slice(read.filled());
        Poll::Ready(Ok(!read.filled().is_empty()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(door) = this.door.clone() else {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        };
        loop {
            if !this.passed.is_empty() {
                let count = this.passed.len().min(buffer.remaining());
                buffer.put_slice(&this.passed.split_to(count));
                return Poll::Ready(Ok(()));
            }
            if std::mem::take(&mut this.rest) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if door.is_done(context) {
                let closing = this.closing.get_or_insert_with(|| Box::pin(sleep(GRACE)));
                if closing.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(()));
                }
            }
            if this.raw.is_empty() && !ready!(this.fill(context))? {
                return Poll::Ready(Ok(()));
            }
            this.look(&door);
        }
    }
}

impl<T: AsyncWrite + Unpin> Watched<T> {
    fn write_own(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.own.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &self.own))?;
            self.own.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// How much of `bytes` may go before the next boundary between frames.
    fn until_boundary(&self, bytes: &[u8]) -> usize {
        let (known, left) = (self.writing.known, self.writing.left);
        if left > 0 {
            return left.min(bytes.len());
        }
        (HEAD - known).min(bytes.len())
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Some(door) = this.door.clone() else {
            return Pin::new(&mut this.inner).poll_write(context, bytes);
        };
        ready!(this.write_own(context))?;
        let mut most = bytes.len();
        if this.writing.at_boundary() {
            if let Some(frame) = door.goaway() {
                this.own.extend_from_slice(&frame);
                ready!(this.write_own(context))?;
            }
        } else {
            most = this.until_boundary(bytes);
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write(context, &bytes[..most]))?;
        let mut done = 0;
        while done < written {
            let (taken, head) = this.writing.step(&bytes[done..written]);
            done += taken;
            if let Some(head) = head {
                door.leaves(head);
            }
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_own(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
