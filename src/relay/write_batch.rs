//! Writes what HTTP/2 has for a connection at once: one TLS record and one system call for the answers of many requests.
//!
//! `h2` writes and flushes each DATA frame by itself. Here frames wait in a buffer of at most one TLS record until
//! [`Flush`] sees that the connection has nothing more to do now.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most plaintext of one TLS record.
const RECORD: usize = 16 << 10;

/// A connection whose writes wait for [`Flush`].
pub struct WriteBatch<S>(Arc<Mutex<Batch<S>>>);

/// Flushes a [`WriteBatch`]. Both belong to one task.
pub struct Flush<S>(Arc<Mutex<Batch<S>>>);

struct Batch<S> {
    stream: S,
    /// Not written yet; without memory of its own while empty.
    waiting: BytesMut,
    unflushed: bool,
    /// What a write in [`Flush`] met: for the next flush of HTTP/2.
    error: Option<io::Error>,
}

/// Whoever uses the connection must run in [`Flush::run`].
pub fn batched<S>(stream: S) -> (WriteBatch<S>, Flush<S>) {
    let batch = Arc::new(Mutex::new(Batch {
        stream,
        waiting: BytesMut::new(),
        unflushed: false,
        error: None,
    }));
    (WriteBatch(batch.clone()), Flush(batch))
}

impl<S: AsyncWrite + Unpin> Flush<S> {
    /// Runs `work`, which reads and writes the connection. Whenever it waits, everything is written.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                lock(&self.0).flush_now(context);
            }
            polled
        })
        .await
    }
}

impl<S: AsyncWrite + Unpin> Batch<S> {
    /// Takes bytes, or writes them if they are many.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.waiting.len() + size > RECORD {
            ready!(self.write(context))?;
        }
        self.unflushed = true;
        if size > RECORD / 2 && self.waiting.is_empty() {
            return Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        }
        if self.waiting.capacity() == 0 {
            self.waiting.reserve(RECORD);
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
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn flush_now(&mut self, context: &mut Context<'_>) {
        if !self.unflushed || self.error.is_some() {
            return;
        }
        if let Poll::Ready(Err(error)) = self.flush(context) {
            self.error = Some(error);
            // HTTP/2 flushes again whenever it is polled.
            context.waker().wake_by_ref();
        }
    }
}

fn lock<S>(batch: &Mutex<Batch<S>>) -> MutexGuard<'_, Batch<S>> {
    batch.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBatch<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(context, buffer)
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

    /// Leaves the flush to [`Flush`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(lock(&self.0).error.take().map_or(Ok(()), Err))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = lock(&self.0);
        ready!(batch.flush(context))?;
        Pin::new(&mut batch.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// What arrived, one piece for each write; `None` for a flush.
    type Arrived = Vec<Option<Vec<u8>>>;

    /// A socket that takes as many bytes as there is room for.
    #[derive(Default)]
    struct Socket {
        arrived: Mutex<Arrived>,
        room: AtomicUsize,
        broken: bool,
    }

    impl Socket {
        fn with_room(room: usize) -> Arc<Self> {
            Arc::new(Self {
                room: AtomicUsize::new(room),
                ..Self::default()
            })
        }

        fn arrived(&self) -> Arrived {
            std::mem::take(&mut self.arrived.lock().unwrap())
        }
    }

    struct Writer(Arc<Socket>);

    impl AsyncWrite for Writer {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.0.broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let taken = self.0.room.load(Ordering::Relaxed).min(bytes.len());
            self.0.room.fetch_sub(taken, Ordering::Relaxed);
            if taken == 0 {
                return Poll::Pending;
            }
            let mut arrived = self.0.arrived.lock().unwrap();
            arrived.push(Some(bytes[..taken].to_vec()));
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.arrived.lock().unwrap().push(None);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll<F: Future>(work: &mut Pin<Box<F>>) -> Poll<F::Output> {
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Writes and flushes each piece, and waits for ever.
    async fn write_each(batch: &mut WriteBatch<Writer>, pieces: &[Vec<u8>]) {
        for piece in pieces {
            batch.write_all(piece).await.unwrap();
            batch.flush().await.unwrap();
        }
        std::future::pending().await
    }

    #[test]
    fn small_pieces_are_one_write() {
        let socket = Socket::with_room(usize::MAX);
        let (mut batch, flush) = batched(Writer(socket.clone()));
        let pieces = [vec![b'a'; 300], vec![b'b'; 1000], vec![b'c'; 1]];
        let mut work = Box::pin(flush.run(write_each(&mut batch, &pieces)));
        assert!(poll(&mut work).is_pending());
        assert_eq!(socket.arrived(), [Some(pieces.concat()), None]);
        // Nothing is left to be flushed.
        assert!(poll(&mut work).is_pending());
        assert_eq!(socket.arrived(), []);
    }

    #[test]
    fn large_pieces_are_not_copied_and_stay_in_order() {
        let socket = Socket::with_room(usize::MAX);
        let (mut batch, flush) = batched(Writer(socket.clone()));
        let pieces = [vec![b'a'; 300], vec![b'b'; RECORD], vec![b'c'; 1]];
        let mut work = Box::pin(flush.run(write_each(&mut batch, &pieces)));
        assert!(poll(&mut work).is_pending());
        let expected: Vec<_> = pieces.iter().cloned().map(Some).chain([None]).collect();
        assert_eq!(socket.arrived(), expected);
    }

    #[test]
    fn a_full_socket_holds_up_what_does_not_fit() {
        let socket = Socket::with_room(100);
        let (mut batch, flush) = batched(Writer(socket.clone()));
        let pieces = vec![vec![b'a'; 1000]; 20];
        let mut work = Box::pin(flush.run(write_each(&mut batch, &pieces)));
        assert!(poll(&mut work).is_pending());
        assert_eq!(socket.arrived(), [Some(vec![b'a'; 100])]);
        assert!(lock(&flush.0).waiting.len() <= RECORD);
        socket.room.store(usize::MAX, Ordering::Relaxed);
        assert!(poll(&mut work).is_pending());
        let arrived = socket.arrived();
        assert_eq!(arrived.last(), Some(&None));
        let bytes: Vec<u8> = arrived.into_iter().flatten().flatten().collect();
        assert_eq!(bytes.len(), 20_000 - 100);
        assert_eq!(lock(&flush.0).waiting.capacity(), 0);
    }

    #[test]
    fn an_error_arrives_with_the_next_flush() {
        let socket = Arc::new(Socket {
            broken: true,
            ..Socket::default()
        });
        let (mut batch, flush) = batched(Writer(socket));
        let mut waits = std::iter::once(()).fuse();
        let wait =
            std::future::poll_fn(|_| waits.next().map_or(Poll::Ready(()), |()| Poll::Pending));
        let mut work = Box::pin(flush.run(async {
            batch.write_all(b"a").await.unwrap();
            wait.await;
            batch.flush().await.unwrap_err().kind()
        }));
        let task = Arc::new(Task::default());
        let waker = task.clone().into();
        let begun = work.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(begun.is_pending());
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(&mut work), Poll::Ready(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn a_shutdown_writes_first_what_waits() {
        let socket = Socket::with_room(usize::MAX);
        let (mut batch, flush) = batched(Writer(socket.clone()));
        let mut work = Box::pin(flush.run(async {
            batch.write_all(b"a").await.unwrap();
            batch.shutdown().await.unwrap();
        }));
        assert!(poll(&mut work).is_ready());
        assert_eq!(socket.arrived(), [Some(b"a".to_vec()), None]);
    }
}
