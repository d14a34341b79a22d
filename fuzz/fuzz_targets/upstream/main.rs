//! What servers answer, legal or not: each request gets one answer that HTTP allows, or a reset; its body is what one
//! server sent for it, and whole if it ends.
#![no_main]

mod parts;
mod server;
#[path = "../world/mod.rs"]
mod world;

use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, StatusCode};
use libfuzzer_sys::fuzz_target;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::parts::{Part, pattern};
use self::server::{Hostile, Sent};
use self::world::{Client, LONG, WORLD};

const MOST_REQUESTS: usize = 4;
const PATHS: [&str; 6] = [
    "/api/v1/namespaces/default/pods",
    "/api/v1/pods?watch=true&resourceVersion=200&allowWatchBookmarks=true",
    "/api/v1/namespaces/default/pods/a/log?follow=true",
    "/apis/apps/v1/deployments",
    "/apis/example.com/v1/things?watch=true&resourceVersion=200",
    "/apis/example.com/v1/namespaces/default/widgets/a",
];

#[derive(Debug, Arbitrary)]
struct Input {
    client: Client,
    http2: bool,
    requests: Vec<Asked>,
    /// What is done on the connections to servers, in the order in which they come. Later ones are closed at once.
    connections: Vec<Vec<Part>>,
}

#[derive(Debug, Clone, Arbitrary)]
struct Asked {
    method: u8,
    path: u8,
    /// Bytes of its body, if it has one.
    body: Option<u16>,
    accepts_protobuf: bool,
}

fuzz_target!(|input: Input| {
    world::runtime().block_on(run(input));
});

async fn run(input: Input) {
    let mut tasks = JoinSet::new();
    let service = WORLD.service(&mut tasks);
    let sent = Arc::new(Mutex::new(Sent::default()));
    let servers = WORLD.servers();
    let hostile = Hostile::new(
        input.connections,
        sent.clone(),
        WORLD.server_tls(input.http2),
    );
    for listener in [servers.local, servers.peer] {
        tasks.spawn(hostile.clone().run(listener));
    }
    let (stream, serving) = service.http2(input.client);
    let serving = tokio::spawn(serving);
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut asked = JoinSet::new();
    for request in input.requests.into_iter().take(MOST_REQUESTS) {
        let sent = input.http2.then(|| sent.clone());
        // A watch may wait for ever.
        let asking = timeout(LONG, ask(requests.clone(), request, sent));
        asked.spawn(asking);
    }
    drop(requests);
    while let Some(result) = asked.join_next().await {
        // Its end is the expected one.
        let _ = result.expect("no panic");
    }
    connection.abort();
    timeout(LONG, serving)
        .await
        .expect("its task ends")
        .expect("no panic");
    sleep(LONG).await;
    assert_eq!(service.running(), 0, "requests go on without their client");
}

/// `sent`: over HTTP/2, what servers sent.
async fn ask(requests: SendRequest<Bytes>, asked: Asked, sent: Option<Arc<Mutex<Sent>>>) {
    let methods = [
        Method::GET,
        Method::POST,
        Method::HEAD,
        Method::DELETE,
        Method::PATCH,
    ];
    let method = methods[usize::from(asked.method) % methods.len()].clone();
    let path = PATHS[usize::from(asked.path) % PATHS.len()];
    let protobuf = "application/vnd.kubernetes.protobuf";
    let accept = if asked.accepts_protobuf {
        protobuf
    } else {
        "application/json"
    };
    let request = Request::builder()
        .method(method.clone())
        .uri(format!("https://kubernetes{path}"))
        .header("accept", accept)
        .body(())
        .expect("a request");
    let Ok(mut requests) = requests.ready().await else {
        return;
    };
    let Ok((response, mut body)) = requests.send_request(request, asked.body.is_none()) else {
        return;
    };
    if let Some(length) = asked.body {
        // It may be reset.
        let _ = body.send_data(vec![b'x'; length.into()].into(), true);
    }
    let response = match response.await {
        Ok(response) => response,
        Err(error) => return check(&error),
    };
    let (head, mut body) = response.into_parts();
    assert!(!head.status.is_informational(), "{}", head.status);
    let from = head
        .headers
        .get("x-double")
        .map(|value| value.to_str().expect("text").to_owned());
    let mut read = Vec::new();
    let mut whole = true;
    while let Some(data) = body.data().await {
        match data {
            Ok(data) => {
                let _ = body.flow_control().release_capacity(data.len());
                read.extend(data);
            }
            Err(error) => {
                check(&error);
                whole = false;
                break;
            }
        }
    }
    if let Err(error) = body.trailers().await {
        check(&error);
        whole = false;
    }
    let (Some(from), Some(sent)) = (from, sent) else {
        return;
    };
    assert_eq!(read, pattern(0, read.len()), "a body that no server sent");
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    if whole && method != Method::HEAD && !bodiless {
        let sent = sent.lock().expect("a lock").of(&from);
        // A watch whose server is gone ends as if its server had ended it: a reset would make its client list again.
        let is_cut_watch = sent.is_none() && path.contains("watch=true");
        assert!(
            is_cut_watch || sent == Some(read.len()),
            "a body that ends before its end: {sent:?} of {path}"
        );
    }
}

/// The proxy sends nothing that a client must not accept.
fn check(error: &h2::Error) {
    assert!(!error.is_library(), "{error}");
}
