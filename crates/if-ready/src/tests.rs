use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use tokio::time::Instant;

use super::*;

mod server;

use server::{Server, TestBody};

type Sent = Full<Bytes>;
type Reply = Result<Response<TestBody>, BoxError>;

fn says(status: u16, retry_after: Option<&'static str>, body: &'static str) -> Reply {
    let mut answer = Response::new(TestBody {
        left: Bytes::from_static(body.as_bytes()),
        ..TestBody::default()
    });
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    let retry_after = retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value)));
    answer.headers_mut().extend(retry_after);
    Ok(answer)
}

fn fails(kind: io::ErrorKind) -> Reply {
    Err(io::Error::from(kind).into())
}

fn layer() -> IfReadyLayer<Sent> {
    IfReadyLayer::new(|body| Some(body.clone()))
}

fn request(method: Method) -> Request<Sent> {
    let mut request = Request::new(Full::new(Bytes::from_static(b"{\"a\":1}")));
    *request.method_mut() = method;
    *request.uri_mut() = "/x?y=1".parse().unwrap();
    request
}

async fn ask(server: &Server, method: Method) -> Reply {
    layer().layer(server.clone()).call(request(method)).await
}

async fn text(reply: Reply) -> (u16, Bytes) {
    let answer = reply.unwrap();
    let status = answer.status().as_u16();
    (status, answer.collect().await.unwrap().to_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_request_asks_for_readiness_unless_it_does_already() {
    let server = Server::new(vec![]);
    let mut client = layer()
        .value(HeaderValue::from_static("please"))
        .layer(server.clone());
    client.call(request(Method::GET)).await.unwrap();
    let mut own = request(Method::GET);
    own.headers_mut()
        .insert(IF_READY, HeaderValue::from_static("own"));
    client.call(own).await.unwrap();
    ask(&server, Method::GET).await.unwrap();
    let seen = server.seen.lock().unwrap();
    let values = seen.iter().map(|(_, request)| &request.headers()[IF_READY]);
    assert_eq!(values.collect::<Vec<_>>(), ["please", "own", "true"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_byte_for_byte_when_the_server_says_when() {
    let server = Server::new(vec![
        says(503, Some("5"), "wait"),
        says(429, Some("0"), "wait"),
        says(500, Some("2"), "wait"),
        says(201, None, "done"),
    ]);
    let mut first = request(Method::POST);
    first.extensions_mut().insert("extension");
    first
        .headers_mut()
        .append("a", HeaderValue::from_static("b"));
    let answer = layer().layer(server.clone()).call(first).await;
    assert_eq!(text(answer).await, (201, Bytes::from("done")));
    assert_eq!(server.times(), [0, 5, 5, 7]);
    for (_, request) in &*server.seen.lock().unwrap() {
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/x?y=1");
        assert_eq!(request.headers()["a"], "b");
        assert_eq!(request.extensions().get(), Some(&"extension"));
        assert_eq!(request.body(), "{\"a\":1}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_ten_retries_the_last_answer_is_the_answer() {
    let mut replies: Vec<_> = (0..10).map(|_| says(503, Some("1"), "wait")).collect();
    replies.push(says(503, Some("1"), "eleventh"));
    let server = Server::new(replies);
    let answer = ask(&server, Method::DELETE).await;
    assert_eq!(text(answer).await, (503, Bytes::from("eleventh")));
    assert_eq!(server.times(), (0..=10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn there_may_be_fewer_retries() {
    for most in [0, 1, 3] {
        let server = Server::new((0..9).map(|_| says(429, Some("1"), "")).collect());
        let mut client = layer().most_retries(most).layer(server.clone());
        let answer = client.call(request(Method::PUT)).await;
        assert_eq!(text(answer).await.0, 429);
        assert_eq!(server.times(), (0..=u64::from(most)).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_number_of_seconds_an_answer_stands() {
    let date = "Fri, 31 Dec 2100 23:59:59 GMT";
    for reply in [
        says(503, None, ""),
        says(503, Some(date), ""),
        says(404, Some("1"), ""),
        says(200, Some("1"), ""),
    ] {
        let status = reply.as_ref().unwrap().status();
        let server = Server::new(vec![reply]);
        assert_eq!(ask(&server, Method::GET).await.unwrap().status(), status);
        assert_eq!(server.times(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_waited_unless_there_is_a_longest() {
    let server = Server::new(vec![says(503, Some("3600"), "")]);
    assert_eq!(text(ask(&server, Method::GET).await).await.0, 200);
    assert_eq!(server.times(), [0, 3600]);

    let server = Server::new(vec![says(503, Some("60"), ""), says(503, Some("61"), "")]);
    let limited = layer().longest_wait(Duration::from_secs(60));
    let answer = limited.layer(server.clone()).call(request(Method::GET));
    assert_eq!(text(answer.await).await.0, 503);
    assert_eq!(server.times(), [0, 60]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_get_is_repeated_after_a_second_and_a_broken_write_is_not() {
    use io::ErrorKind::{ConnectionReset, UnexpectedEof};
    let server = Server::new(vec![fails(ConnectionReset), fails(UnexpectedEof)]);
    assert_eq!(text(ask(&server, Method::GET).await).await.0, 200);
    assert_eq!(server.times(), [0, 1, 2]);
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
        let server = Server::new(vec![fails(ConnectionReset)]);
        ask(&server, method).await.unwrap_err();
        assert_eq!(server.times(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_ten_retries_the_last_error_is_the_error() {
    let reset = || fails(io::ErrorKind::ConnectionReset);
    let server = Server::new((0..20).map(|_| reset()).collect());
    let error = ask(&server, Method::GET).await.err().unwrap();
    let error = error.downcast::<io::Error>().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(server.times(), (0..=10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_would_fail_again_is_not_repeated() {
    use io::ErrorKind::{ConnectionRefused, InvalidData, TimedOut};
    for kind in [ConnectionRefused, InvalidData, TimedOut] {
        let server = Server::new(vec![fails(kind)]);
        ask(&server, Method::GET).await.unwrap_err();
        assert_eq!(server.times(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_had_twice_is_sent_once() {
    let once = IfReadyLayer::new(|_| None);
    for reply in [
        says(503, Some("1"), ""),
        fails(io::ErrorKind::ConnectionReset),
    ] {
        let server = Server::new(vec![reply]);
        let answer = once.layer(server.clone()).call(request(Method::GET)).await;
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 503));
        assert_eq!(server.times(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_answer_that_is_not_wanted_is_read_and_a_long_one_is_not() {
    // Length, whether it is announced, whether the body is endless, bytes read of it, seconds until the next attempt.
    for (length, length_known, endless, read, then) in [
        (2000, true, false, 2000, 1),
        (2000, false, false, 2000, 1),
        (100_000, true, false, 0, 1),
        (100_000, false, false, 3000, 1),
        (10, false, true, 10, 2),
    ] {
        let mut reply = says(503, Some("1"), "").unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        *reply.body_mut() = TestBody {
            left: Bytes::from(vec![0; length]),
            endless,
            length_known,
            read: count.clone(),
        };
        let server = Server::new(vec![Ok(reply)]);
        assert_eq!(text(ask(&server, Method::GET).await).await.0, 200);
        assert_eq!(count.load(Ordering::Relaxed), read, "of {length}");
        assert_eq!(server.times(), [0, then]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_watch_is_there_with_its_header() {
    let mut reply = says(200, None, "event").unwrap();
    reply.body_mut().endless = true;
    let server = Server::new(vec![Ok(reply)]);
    let mut answer = ask(&server, Method::GET).await.unwrap();
    let frame = answer.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "event");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_any_longer_ends_it() {
    let server = Server::new(vec![says(503, Some("5"), "")]);
    let answer = timeout(Duration::from_secs(3), ask(&server, Method::GET)).await;
    assert!(answer.is_err());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.times(), [0]);
}

#[tokio::test(start_paused = true)]
async fn while_one_request_waits_others_pass() {
    let server = Server::new(vec![says(503, Some("60"), "")]);
    let mut client = layer().layer(server.clone());
    let (slow, fast) = (
        client.call(request(Method::GET)),
        client.call(request(Method::GET)),
    );
    let (slow, fast) = tokio::join!(slow, async {
        (fast.await, server.start.elapsed().as_secs())
    });
    assert_eq!(fast.1, 0);
    assert_eq!(text(fast.0).await.0, 200);
    assert_eq!(text(slow).await.0, 200);
    assert_eq!(server.times(), [0, 0, 60]);
}

/// A client that is not ready at first and wakes only the last waiter. Each request makes it busy again.
#[derive(Clone, Default)]
struct Busy {
    free: Arc<AtomicBool>,
    waker: Arc<StdMutex<Option<Waker>>>,
}

impl Busy {
    fn set_free(&self) {
        self.free.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

impl Service<Request<Sent>> for Busy {
    type Response = Response<TestBody>;
    type Error = BoxError;
    type Future = Ready<Reply>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.free.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        *self.waker.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }

    fn call(&mut self, _: Request<Sent>) -> Self::Future {
        assert!(self.free.swap(false, Ordering::SeqCst), "it was not ready");
        ready(says(200, None, ""))
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_a_busy_client_one_after_the_other_and_none_is_forgotten() {
    let busy = Busy::default();
    let mut client = layer().layer(busy.clone());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        tasks.spawn(client.call(request(Method::GET)));
    }
    // One that was given up while it waited leaves the place to the next.
    let given_up = timeout(Duration::ZERO, client.call(request(Method::GET)));
    assert!(given_up.await.is_err());
    for _ in 0..5 {
        busy.set_free();
        let answer = timeout(Duration::from_secs(1), tasks.join_next()).await;
        assert_eq!(text(answer.unwrap().unwrap().unwrap()).await.0, 200);
    }
}

#[test]
fn what_a_server_says_of_itself() {
    for (value, expected) in [
        (Some("true"), Some(true)),
        (Some("false"), Some(false)),
        (Some("soon"), None),
        (None, None),
    ] {
        let value = value.map(|value| (READY, HeaderValue::from_static(value)));
        assert_eq!(is_ready(&value.into_iter().collect()), expected);
    }
}
