//! What connections and requests are made with, and what knows neither: sockets and their limit, pieces of HTTP/2 bodies,
//! writes that are put together, errors, and boxed futures. For `relay` and the listeners.
//!
//! Writes: what there is for a connection is written at once, one TLS record and one system call for the answers of many
//! requests. `h2` writes and flushes each larger DATA frame by itself, and pingora's HTTP/1.1 writes the header of an answer
//! before its body. Here both wait in a buffer of at most one TLS record until the connection has done what there was to do.
//!
//! Pieces of HTTP/2 bodies are read and sent within the windows of both sides. Both sides of a connection must agree on
//! `Content-Length`.

mod dial;
mod errors;
pub mod files;

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use pingora_core::{ErrorType, OrErr};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

pub use self::dial::{dial, set_options};
pub use self::errors::{RedactedError, is_unprocessed};

/// A boxed future whose type the compiler does not know.
pub type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Begins `work` in its box. `Box::pin` would copy all of a new future into the box, though only the arguments are
/// there.
pub fn boxed<W: Future>(work: impl FnOnce() -> W) -> Pin<Box<W>> {
    // In this order: if memory were taken after `work`, that could fail, and `work` would need a place to be dropped
    // from.
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, work()))
}

/// Begins what requests seldom do, out of line. A `Box::pin` in its place would have `work` compiled into the poll of each
/// request, which then has room on the stack for all that it needs, and touches each page of that every time.
#[cold]
#[inline(never)]
pub fn rare<'a, W: Future + Send + 'a>(work: impl FnOnce() -> W) -> Rare<'a, W::Output> {
    boxed(work)
}

/// Locks what is as good after a panic as before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most plaintext of one TLS record.
const RECORD: usize = 16 << 10;

/// A connection whose writes wait for [`Flush`].
pub struct WriteBatch<S>(Arc<Mutex<Batch<S>>>);

/// Flushes a [`WriteBatch`].
pub struct Flush<S>(Arc<Mutex<Batch<S>>>);

struct Batch<S> {
    stream: S,
    /// Not written yet; without memory of its own while empty.
    waiting: BytesMut,
    /// Bytes that may wait.
    most: usize,
    /// What a write in [`Flush`] met, for whoever uses the connection next.
    error: Option<io::Error>,
    /// Flushes are left to [`Flush`].
    defers_flushes: bool,
    /// Something was read since it was last asked.
    has_read: bool,
}

/// For HTTP/2. A flush of [`WriteBatch`] does nothing. Whoever uses the connection must run in [`Flush::run`].
pub fn batched<S>(stream: S) -> (WriteBatch<S>, Flush<S>) {
    let batch = Arc::new(Mutex::new(Batch {
        stream,
        waiting: BytesMut::new(),
        most: RECORD,
        error: None,
        defers_flushes: true,
        has_read: false,
    }));
    let flush = Flush(batch.clone());
    (WriteBatch(batch), flush)
}

/// For HTTP/1.1. A flush is one, because the next request waits for it. Whoever uses the connection must run in
/// [`Flush::run`], because not every write is followed by a flush.
pub fn buffered<S>(stream: S) -> (WriteBatch<S>, Flush<S>) {
    let (stream, flush) = batched(stream);
    lock(&stream.0).defers_flushes = false;
    (stream, flush)
}

/// For servers over HTTP/1.1: nothing waits, because pingora does not flush the pieces of a body.
pub fn unbuffered<S>(stream: S) -> WriteBatch<S> {
    let (stream, _) = buffered(stream);
    lock(&stream.0).most = 0;
    stream
}

impl<S: AsyncWrite + Unpin> Flush<S> {
    /// Whether something was read since the last call.
    pub fn has_read(&self) -> bool {
        std::mem::take(&mut lock(&self.0).has_read)
    }

    /// Runs `work`, which reads and writes the connection. After each poll as much is written as the socket takes.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            lock(&self.0).flush_now(context);
            polled
        })
        .await
    }
}

fn met<S>(batch: &mut Batch<S>) -> io::Result<()> {
    batch.error.take().map_or(Ok(()), Err)
}

impl<S: AsyncWrite + Unpin> Batch<S> {
    /// Takes bytes, or writes them if they are many.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        met(self)?;
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.waiting.len() + size > self.most {
            ready!(self.write(context))?;
        }
        if size > self.most / 2 && self.waiting.is_empty() {
            return Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        }
        for piece in pieces {
            self.waiting.extend_from_slice(piece);
        }
        Poll::Ready(Ok(size))
    }

    /// Writes what is waiting.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.waiting))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write(context))?;
        self.waiting = BytesMut::new();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Also when nothing is waiting: the stream may have an error for whoever writes nothing.
    fn flush_now(&mut self, context: &mut Context<'_>) {
        if self.error.is_none()
            && let Poll::Ready(Err(error)) = self.flush(context)
        {
            self.error = Some(error);
            // Whoever reads, writes or flushes is told.
            context.waker().wake_by_ref();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBatch<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut batch = lock(&self.0);
        // HTTP/2 first reads what has arrived, and then flushes.
        if !batch.defers_flushes {
            met(&mut batch)?;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut batch.stream).poll_read(context, buffer);
        batch.has_read |= buffer.filled().len() > before;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBatch<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_write(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = lock(&self.0);
        met(&mut batch)?;
        match batch.defers_flushes {
            true => Poll::Ready(Ok(())),
            false => batch.flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = lock(&self.0);
        ready!(batch.flush(context))?;
        Pin::new(&mut batch.stream).poll_shutdown(context)
    }
}

impl<S> fmt::Debug for WriteBatch<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WriteBatch")
    }
}

// What pingora wants of a connection besides, for its HTTP/1.1.

#[async_trait]
impl<S: AsyncWrite + Unpin + Send> Shutdown for WriteBatch<S> {
    async fn shutdown(&mut self) {
        // The connection is over, whether the client takes the rest or not.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl<S> UniqueID for WriteBatch<S> {
    fn id(&self) -> UniqueIDType {
        0
    }
}

impl<S> Ssl for WriteBatch<S> {}

impl<S> GetTimingDigest for WriteBatch<S> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl<S> GetProxyDigest for WriteBatch<S> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl<S> GetSocketDigest for WriteBatch<S> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl<S> Peek for WriteBatch<S> {}

/// Reads a piece of an HTTP/2 body, and lets its sender send as much more; `None` at its end. Cancel safe.
pub async fn receive(
    body: &mut RecvStream,
    what: &'static str,
) -> pingora_core::Result<Option<Bytes>> {
    let piece = poll_fn(|context| poll_receive(body, what, context)).await?;
    release(body, piece.as_ref().map_or(0, Bytes::len));
    Ok(piece)
}

/// Lets the sender send so many bytes more.
pub fn release(body: &mut RecvStream, bytes: usize) {
    // Also of a stream that has ended meanwhile.
    let _ = body.flow_control().release_capacity(bytes);
}

/// Reads a piece, and leaves it to the caller to [`release`] it.
pub fn poll_receive(
    body: &mut RecvStream,
    what: &'static str,
    context: &mut Context<'_>,
) -> Poll<pingora_core::Result<Option<Bytes>>> {
    let piece = ready!(body.poll_data(context)).transpose();
    Poll::Ready(piece.or_err(ErrorType::ReadError, what))
}

/// Sends as much of `data` as there is room for. Ready after any progress; returns whether all of it was sent.
pub fn poll_send(
    writer: &mut SendStream<Bytes>,
    data: &mut Bytes,
    end: bool,
    context: &mut Context<'_>,
) -> Poll<Result<bool, h2::Error>> {
    if data.is_empty() {
        if end {
            writer.send_data(Bytes::new(), true)?;
        }
        return Poll::Ready(Ok(true));
    }
    writer.reserve_capacity(data.len());
    let mut room = writer.capacity();
    if room == 0 {
        room = match writer.poll_capacity(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(room) => room.unwrap_or(Err(h2::Reason::CANCEL.into()))?,
        };
        if room == 0 {
            return Poll::Ready(Ok(false));
        }
    }
    let part = data.split_to(room.min(data.len()));
    writer.send_data(part, end && data.is_empty())?;
    Poll::Ready(Ok(data.is_empty()))
}

/// What all headers of this name list, with commas between.
pub fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(name).iter();
    let listed = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    listed.map(<[u8]>::trim_ascii)
}

/// The value of a repeated Content-Length. The values were compared when the request was read.
pub fn single_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lengths = listed(headers, CONTENT_LENGTH);
    let first = lengths.next()?;
    lengths.next()?;
    HeaderValue::from_bytes(first).ok()
}

/// Whether all values of `Content-Length` are the same number (RFC 9110, section 8.6).
pub fn lengths_agree(headers: &HeaderMap) -> bool {
    let mut numbers = listed(headers, CONTENT_LENGTH).map(|digits| {
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    });
    let first = numbers.next();
    first.is_none_or(|first| first.is_some() && numbers.all(|other| other == first))
}

#[cfg(test)]
mod tests;
