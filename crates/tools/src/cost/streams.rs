//! A client of many watches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use http::Request;
use testkit::client::Client;
use testkit::pki::Pki;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::lab::AUTHORIZATION;

const PATH: &str = "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true";

/// Connections that are opened at a time: who waits too long for a handshake is cut off.
const OPENING: usize = 16;

/// Whose watches they are, and from where.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Users have a certificate, instead of a token.
    pub certificate: bool,
    /// The `resourceVersion`.
    pub from: i64,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            certificate: false,
            from: 1,
        }
    }
}

/// Watches through a program. Dropping ends them.
pub struct Watches {
    events: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    _reading: JoinSet<()>,
}

impl Watches {
    /// Opens `count` of them over `connections`; all have begun.
    pub async fn open(
        to: SocketAddr,
        pki: &Pki,
        count: usize,
        connections: usize,
        kind: Kind,
    ) -> Self {
        let events = Arc::new(AtomicUsize::new(0));
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reading = JoinSet::new();
        let mut begun = JoinSet::new();
        let opening = Arc::new(Semaphore::new(OPENING));
        for number in 0..connections {
            let share = count / connections + usize::from(number < count % connections);
            let client = Client::new(to, pki);
            let client = match kind.certificate {
                true => client.cert("admin"),
                false => client,
            };
            let opening = opening.clone();
            begun.spawn(async move {
                let _permit = opening.acquire_owned().await;
                open(client, share, kind).await
            });
        }
        while let Some(opened) = begun.join_next().await {
            let (connection, bodies) = opened.expect("all watches began");
            reading.spawn(async move {
                // It ends with the watches.
                let _ = connection.await;
            });
            for body in bodies {
                reading.spawn(read(body, Arc::clone(&events), Arc::clone(&ended)));
            }
        }
        Self {
            events,
            ended,
            _reading: reading,
        }
    }

    /// How many have ended.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// How many events have come.
    pub fn count(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }
}

type Connection = tokio::task::JoinHandle<Result<(), h2::Error>>;

async fn open(client: Client, count: usize, kind: Kind) -> (Connection, Vec<RecvStream>) {
    let stream = client.connect_raw(&["h2"]).await.expect("a connection");
    let (requests, connection) = h2::client::Builder::new()
        .initial_max_send_streams(count)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut bodies = Vec::new();
    for _ in 0..count {
        let from = kind.from;
        let mut request = Request::get(format!("https://localhost{PATH}&resourceVersion={from}"));
        if !kind.certificate {
            request = request.header("authorization", AUTHORIZATION);
        }
        let request = request
            .header("accept", "application/json, */*")
            .header(
                "user-agent",
                "kube-controller-manager/v1.36.0 (linux/amd64) kubernetes/0000000/shared-informers",
            )
            .body(())
            .expect("a request");
        let mut requests = requests.clone().ready().await.expect("a stream");
        let (response, _) = requests.send_request(request, true).expect("a stream");
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), 200);
        bodies.push(response.into_body());
    }
    (connection, bodies)
}

async fn read(mut body: RecvStream, events: Arc<AtomicUsize>, ended: Arc<AtomicUsize>) {
    while let Some(Ok(data)) = body.data().await {
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        events.fetch_add(lines, Ordering::Relaxed);
        // An error means that the watch has ended.
        let _ = body.flow_control().release_capacity(data.len());
    }
    ended.fetch_add(1, Ordering::Relaxed);
}
