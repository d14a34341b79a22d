//! An HTTP server that answers as a test says, as a tower service.

use super::*;

/// A response body: some bytes, then its end, or no end if `endless`. Counts the bytes that are read.
#[derive(Debug, Default)]
pub(super) struct TestBody {
    pub(super) left: Bytes,
    pub(super) endless: bool,
    pub(super) length_known: bool,
    pub(super) read: Arc<AtomicUsize>,
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left.is_empty() {
            return match self.endless {
                true => Poll::Pending,
                false => Poll::Ready(None),
            };
        }
        let length = self.left.len().min(1000);
        let piece = self.left.split_to(length);
        self.read.fetch_add(length, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match self.length_known {
            true => SizeHint::with_exact(self.left.len() as u64),
            false => SizeHint::default(),
        }
    }
}

/// Received requests, with the time since the server's start.
type Seen = Arc<StdMutex<Vec<(Duration, Request<Bytes>)>>>;

/// A server that gives these replies in order, then 200 for ever.
#[derive(Clone)]
pub(super) struct Server {
    replies: Arc<StdMutex<VecDeque<Reply>>>,
    pub(super) seen: Seen,
    pub(super) start: Instant,
}

impl Server {
    pub(super) fn new(replies: Vec<Reply>) -> Self {
        Self {
            replies: Arc::new(StdMutex::new(replies.into())),
            seen: Arc::default(),
            start: Instant::now(),
        }
    }

    pub(super) fn times(&self) -> Vec<u64> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(at, _)| at.as_secs()).collect()
    }
}

impl Service<Request<Sent>> for Server {
    type Response = Response<TestBody>;
    type Error = BoxError;
    type Future = Ready<Reply>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        let (head, body) = request.into_parts();
        let mut body = pin!(body.collect());
        let Poll::Ready(Ok(body)) = body.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("the body is not there at once");
        };
        let request = Request::from_parts(head, body.to_bytes());
        let at = self.start.elapsed();
        self.seen.lock().unwrap().push((at, request));
        let reply = self.replies.lock().unwrap().pop_front();
        ready(reply.unwrap_or_else(|| says(200, None, "fine")))
    }
}
