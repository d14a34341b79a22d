use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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

    fn broken() -> Arc<Self> {
        Arc::new(Self {
            broken: true,
            ..Self::default()
        })
    }

    fn arrived(&self) -> Arrived {
        std::mem::take(&mut self.arrived.lock().unwrap())
    }
}

struct Writer(Arc<Socket>);

/// Nothing ever arrives.
impl AsyncRead for Writer {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

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
        if self.0.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
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
    assert!(poll(&mut work).is_pending());
    assert_eq!(socket.arrived(), [None]);
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
    for written in [&b"a"[..], b""] {
        let socket = Socket::broken();
        let (mut batch, flush) = batched(Writer(socket));
        let mut waits = std::iter::once(());
        let wait =
            std::future::poll_fn(|_| waits.next().map_or(Poll::Ready(()), |()| Poll::Pending));
        let mut work = Box::pin(flush.run(async {
            batch.write_all(written).await.unwrap();
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
}

#[test]
fn a_flush_of_http1_waits_until_everything_is_written() {
    let socket = Socket::with_room(100);
    let (mut batch, flush) = buffered(Writer(socket.clone()));
    let mut work = Box::pin(flush.run(async {
        batch.write_all(&[b'a'; 60]).await.unwrap();
        batch.write_all(&[b'b'; 60]).await.unwrap();
        batch.flush().await.unwrap();
    }));
    assert!(poll(&mut work).is_pending());
    assert_eq!(
        socket.arrived(),
        [Some([[b'a'; 60], [b'b'; 60]].concat()[..100].to_vec())]
    );
    socket.room.store(usize::MAX, Ordering::Relaxed);
    assert!(poll(&mut work).is_ready());
    assert_eq!(socket.arrived(), [Some(vec![b'b'; 20]), None, None]);
}

#[test]
fn http1_writes_what_is_there_when_it_waits_for_more() {
    let socket = Socket::with_room(usize::MAX);
    let (mut batch, flush) = buffered(Writer(socket.clone()));
    let mut work = Box::pin(flush.run(async {
        batch.write_all(b"a").await.unwrap();
        std::future::pending::<()>().await;
    }));
    assert!(poll(&mut work).is_pending());
    assert_eq!(socket.arrived(), [Some(b"a".to_vec()), None]);
}

#[test]
fn an_error_ends_a_read_of_http1_and_none_of_http2() {
    let socket = Socket::broken();
    let writer = || Writer(socket.clone());
    for ((mut batch, flush), ends) in [(buffered(writer()), true), (batched(writer()), false)] {
        let mut work = Box::pin(flush.run(async {
            batch.write_all(b"a").await.unwrap();
            tokio::task::yield_now().await;
            batch.read_u8().await.map_err(|error| error.kind())
        }));
        assert!(poll(&mut work).is_pending());
        let read = poll(&mut work);
        let expected = match ends {
            true => Poll::Ready(Err(io::ErrorKind::BrokenPipe)),
            false => Poll::Pending,
        };
        assert_eq!(read, expected);
    }
}

#[test]
fn a_shutdown_writes_first_what_waits() {
    let socket = Socket::with_room(usize::MAX);
    let (mut batch, flush) = batched(Writer(socket.clone()));
    let mut work = Box::pin(flush.run(async {
        batch.write_all(b"a").await.unwrap();
        AsyncWriteExt::shutdown(&mut batch).await.unwrap();
    }));
    assert!(poll(&mut work).is_ready());
    assert_eq!(socket.arrived(), [Some(b"a".to_vec()), None, None]);
}

#[test]
fn lengths_agree_however_often_they_are_said() {
    let one = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_LENGTH, HeaderValue::from_str(value).unwrap());
        }
        lengths_agree(&headers)
    };
    for values in [&[][..], &["5"], &["5", "5"], &["5, 5"], &["0", "00"]] {
        assert!(one(values), "{values:?}");
    }
    for values in [
        &["5", "6"][..],
        &["5,6"],
        &["+5"],
        &[""],
        &["5,"],
        &["99999999999999999999"],
    ] {
        assert!(!one(values), "{values:?}");
    }
}

#[test]
fn what_goes_to_a_server_over_http1_waits_for_no_flush() {
    let socket = Socket::with_room(usize::MAX);
    let mut stream = unbuffered(Writer(socket.clone()));
    let mut work = Box::pin(stream.write_all(b"a"));
    assert!(matches!(poll(&mut work), Poll::Ready(Ok(()))));
    assert_eq!(socket.arrived(), [Some(b"a".to_vec())]);
}
