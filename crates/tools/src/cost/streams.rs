//! A client of many watches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use http::Request;
use testkit::client::Client;
use testkit::pki::Pki;
use tokio::task::JoinSet;

use super::lab::AUTHORIZATION;

const PATH: &str =
    "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=1";

/// Watches through a program. Dropping ends them.
pub struct Watches {
    events: Arc<AtomicUsize>,
    _reading: JoinSet<()>,
}

impl Watches {
    /// Opens `count` of them over `connections`; all have begun.
    pub async fn open(to: SocketAddr, pki: &Pki, count: usize, connections: usize) -> Self {
        let events = Arc::new(AtomicUsize::new(0));
        let mut reading = JoinSet::new();
        let mut begun = JoinSet::new();
        for number in 0..connections {
            let share = count / connections + usize::from(number < count % connections);
            begun.spawn(open(Client::new(to, pki), share));
        }
        while let Some(opened) = begun.join_next().await {
            let (connection, bodies) = opened.expect("all watches began");
            reading.spawn(async move {
                // It ends with the watches.
                let _ = connection.await;
            });
            for body in bodies {
                reading.spawn(read(body, Arc::clone(&events)));
            }
        }
        Self {
            events,
            _reading: reading,
        }
    }

    /// How many events have come.
    pub fn count(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }
}

type Connection = tokio::task::JoinHandle<Result<(), h2::Error>>;

async fn open(client: Client, count: usize) -> (Connection, Vec<RecvStream>) {
    let stream = client.connect_raw(&["h2"]).await.expect("a connection");
    let (requests, connection) = h2::client::Builder::new()
        .initial_max_send_streams(count)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut bodies = Vec::new();
    for _ in 0..count {
        let request = Request::get(format!("https://localhost{PATH}"))
            .header("authorization", AUTHORIZATION)
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

async fn read(mut body: RecvStream, events: Arc<AtomicUsize>) {
    while let Some(Ok(data)) = body.data().await {
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        events.fetch_add(lines, Ordering::Relaxed);
        // An error means that the watch has ended.
        let _ = body.flow_control().release_capacity(data.len());
    }
}
