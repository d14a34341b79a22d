use std::collections::VecDeque;
use std::sync::Mutex;

use arc_swap::ArcSwap;
use http::HeaderName;

use super::fake::{Reply, Server};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

type Seen = Arc<Mutex<Vec<Request<Bytes>>>>;

/// A server that gives these replies in order, then always 200; and the requests that arrived.
async fn server(replies: Vec<Reply>) -> (Server, Seen) {
    let replies = Mutex::new(VecDeque::from(replies));
    let seen = Seen::default();
    let log = seen.clone();
    let server = Server::start(move |request| {
        log.lock().unwrap().push(request);
        let next = replies.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Reply::new(200, &[], "fine"))
    })
    .await;
    (server, seen)
}

fn wait(status: u16, seconds: &str) -> Reply {
    Reply::new(status, &[("retry-after", seconds)], "wait")
}

fn plain(server: &Server) -> Client {
    server.client(HeaderMap::new(), MINUTE)
}

async fn call(
    client: &mut Client,
    method: Method,
    body: Option<&'static str>,
) -> Result<ClientResponse, ClientError> {
    let deadline = Instant::now() + MINUTE;
    client
        .call(
            method,
            "/x?y=1",
            HeaderMap::new(),
            body.map(Bytes::from),
            deadline,
        )
        .await
}

#[tokio::test]
async fn after_new_credentials_the_next_request_opens_a_new_connection() {
    let (server, _) = server(Vec::new()).await;
    let credentials = Arc::new(ArcSwap::from_pointee(server.credentials()));
    let mut client = server.client_with(
        credentials.clone(),
        server.address,
        "server.test",
        HeaderMap::new(),
        MINUTE,
    );
    for connections in [1, 1, 2, 2] {
        if connections == 2 && server.connections() == 1 {
            credentials.store(Arc::new(server.credentials()));
        }
        client.get("/x").await.unwrap();
        assert_eq!(server.connections(), connections);
    }
    // The probe must not blame the server for it.
    assert!(client.end.is_none());
}

#[tokio::test]
async fn a_write_is_sent_again_with_its_body_when_the_server_says_when() {
    let (server, seen) = server(vec![wait(429, "0"), wait(503, "0")]).await;
    let answer = call(&mut plain(&server), Method::PUT, Some("{}"))
        .await
        .unwrap();
    assert_eq!(
        (answer.status, &*answer.body),
        (StatusCode::OK, &b"fine"[..])
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for request in &*seen {
        assert_eq!(request.method(), Method::PUT);
        assert_eq!(request.uri(), "/x?y=1");
        assert_eq!(request.headers()[CONTENT_TYPE], media_type::JSON);
        assert_eq!(request.body(), "{}");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn the_seconds_that_a_server_asks_for_are_waited() {
    let (server, seen) = server(vec![wait(429, "1")]).await;
    let start = Instant::now();
    let answer = call(&mut plain(&server), Method::POST, Some("{}")).await;
    assert_eq!(answer.unwrap().status, StatusCode::OK);
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn after_ten_retries_the_last_answer_counts() {
    let (server, seen) = server((0..20).map(|_| wait(429, "0")).collect()).await;
    let answer = call(&mut plain(&server), Method::DELETE, None).await;
    assert_eq!(answer.unwrap().status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(seen.lock().unwrap().len(), 11);
}

#[tokio::test]
async fn a_wait_beyond_the_deadline_is_not_begun() {
    let (server, seen) = server(vec![wait(503, "60")]).await;
    let start = Instant::now();
    let answer = call(&mut plain(&server), Method::GET, None).await;
    assert_eq!(answer.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(start.elapsed() < MINUTE / 2);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_broken_get_is_repeated_over_a_new_connection() {
    let (server, seen) = server(vec![Reply::Break, Reply::Break]).await;
    let answer = call(&mut plain(&server), Method::GET, None).await;
    assert_eq!(answer.unwrap().status, StatusCode::OK);
    assert_eq!(seen.lock().unwrap().len(), 3);
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_broken_write_is_not_repeated() {
    let (server, seen) = server(vec![Reply::Break]).await;
    let answer = call(&mut plain(&server), Method::POST, Some("{}")).await;
    assert!(
        matches!(answer, Err(ClientError::Exchange(_))),
        "{answer:?}"
    );
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn get_tries_once_whatever_comes() {
    let (server, seen) = server(vec![wait(429, "0"), Reply::Break]).await;
    let mut client = plain(&server);
    let answer = client.get("/readyz").await.unwrap();
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    let answer = client.get("/readyz").await;
    assert!(
        matches!(answer, Err(ClientError::Exchange(_))),
        "{answer:?}"
    );
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn silence_ends_with_the_time_of_one_try_and_is_not_repeated() {
    let (server, seen) = server(vec![Reply::Silence]).await;
    let time = Duration::from_millis(200);
    let mut client = server.client(HeaderMap::new(), time);
    let answer = call(&mut client, Method::GET, None).await;
    assert!(
        matches!(answer, Err(ClientError::Timeout(t)) if t == time),
        "{answer:?}"
    );
    // The connection with the open exchange is not used again.
    assert!(call(&mut client, Method::GET, None).await.is_ok());
    assert_eq!((seen.lock().unwrap().len(), server.connections()), (2, 2));
}

#[tokio::test]
async fn a_deadline_shortens_a_try() {
    let (server, _seen) = server(vec![Reply::Silence]).await;
    let start = Instant::now();
    let deadline = start + Duration::from_millis(200);
    let answer = plain(&server)
        .call(Method::GET, "/", HeaderMap::new(), None, deadline)
        .await;
    assert!(matches!(answer, Err(ClientError::Timeout(_))), "{answer:?}");
    assert!(start.elapsed() < MINUTE / 2);
}

#[tokio::test]
async fn a_refused_connection_is_told_at_once() {
    let (server, _seen) = server(vec![]).await;
    // Bound but not listening: no other process can take the port.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = nobody.local_addr().unwrap();
    let mut client = server.client_for(address, "server.test", HeaderMap::new(), MINUTE);
    let answer = call(&mut client, Method::GET, None).await;
    assert!(matches!(answer, Err(ClientError::Refused)), "{answer:?}");
}

#[tokio::test]
async fn a_server_with_another_name_is_told_nothing() {
    let (server, seen) = server(vec![]).await;
    let mut client = server.client_for(server.address, "other.test", HeaderMap::new(), MINUTE);
    let answer = call(&mut client, Method::GET, None).await;
    assert!(matches!(answer, Err(ClientError::Connect(_))), "{answer:?}");
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_serves_request_after_request_until_it_is_reset() {
    let (server, _seen) = server(vec![]).await;
    let mut client = plain(&server);
    for _ in 0..3 {
        client.get("/").await.unwrap();
    }
    assert_eq!((server.connections(), client.connections()), (1, 1));
    client.reset();
    client.get("/").await.unwrap();
    assert_eq!((server.connections(), client.connections()), (2, 2));
}

#[tokio::test]
async fn every_request_asserts_the_identity_whatever_else_it_says() {
    let (server, seen) = server(vec![]).await;
    let names = RequestHeaders {
        username: vec![
            HeaderName::from_static("x-user"),
            HeaderName::from_static("x-second"),
        ],
        uid: vec![],
        group: vec![HeaderName::from_static("x-group")],
        extra_prefixes: vec![],
    };
    let who = identity(&names, "me", &["a", "b"]).unwrap();
    let mut client = server.client(who, MINUTE);
    let headers = [
        (
            HeaderName::from_static("x-user"),
            HeaderValue::from_static("you"),
        ),
        (ACCEPT, HeaderValue::from_static("text/plain")),
    ];
    client
        .get_with("/", HeaderMap::from_iter(headers))
        .await
        .unwrap();
    let seen = seen.lock().unwrap();
    let sent = seen[0].headers();
    let all = |name: &str| sent.get_all(name).iter().collect::<Vec<_>>();
    assert_eq!(all("x-user"), ["me"]);
    assert_eq!(all("x-group"), ["a", "b"]);
    assert_eq!(all("accept"), ["text/plain"]);
    assert_eq!(all("host"), ["server.test"]);
    assert!(all("x-second").is_empty() && all("content-type").is_empty());
}

#[test]
fn a_user_that_is_no_header_value_is_an_error() {
    let names = RequestHeaders {
        username: vec![HeaderName::from_static("x-user")],
        uid: vec![],
        group: vec![HeaderName::from_static("x-group")],
        extra_prefixes: vec![],
    };
    for (user, groups) in [("a\nb", vec![]), ("a", vec!["b\r"])] {
        let made = identity(&names, user, &groups);
        assert!(made.is_err(), "{made:?}");
    }
}

#[tokio::test]
async fn a_cut_connection_is_told_from_a_closed_one() {
    let close = || Reply::new(200, &[("connection", "close")], "");
    let (server, _) = server(vec![close(), Reply::Break]).await;
    let mut client = plain(&server);
    client.get("/x").await.unwrap();
    assert_eq!(client.ended().await, ConnectionEnd::Closed);
    // It ends during a request and is reported afterwards.
    client.get("/x").await.unwrap_err();
    assert_eq!(client.ended().await, ConnectionEnd::Broken);
}

#[tokio::test]
async fn the_end_of_an_idle_connection_is_told_once() {
    let (server, _) = server(Vec::new()).await;
    let mut client = plain(&server);
    client.get("/x").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), client.ended()).await;
    assert!(early.is_err(), "{early:?}");
    // The server stops with all its connections.
    drop(server);
    assert_eq!(client.ended().await, ConnectionEnd::Broken);
    let again = tokio::time::timeout(Duration::from_millis(50), client.ended()).await;
    assert!(again.is_err(), "{again:?}");
}
