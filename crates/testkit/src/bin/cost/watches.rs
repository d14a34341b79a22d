//! Memory of idle watches, and processor time of their events.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use testkit::client::Client;
use testkit::cluster::Ground;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::lab::{AUTHORIZATION, Lab, Subject};

const PATH: &str =
    "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=1";
/// Until what was allocated to open them is given back.
const PAUSE: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 4000)]
    count: usize,
    #[arg(long, default_value_t = 80)]
    connections: usize,
}

pub async fn measure(program: &Path, options: &Options) {
    println!(
        "{} idle watches over {} connections",
        options.count, options.connections
    );
    let lab = Lab::new().await;
    for name in ["HAProxy", "proxy"] {
        let mut subject = match name {
            "HAProxy" => lab.haproxy().await,
            _ => lab.proxy(program, &["taskset", "-c", "1"]).await,
        };
        of(&lab.ground, &mut subject, name, options).await;
    }
}

async fn of(ground: &Ground, subject: &mut Subject, name: &str, options: &Options) {
    let before = subject.process().memory().expect("it runs");
    let mut open = JoinSet::new();
    for _ in 0..options.connections {
        let watches = options.count / options.connections;
        open.spawn(watch(ground_client(ground, subject.address()), watches));
    }
    let mut held = Vec::new();
    while let Some(connection) = open.join_next().await {
        held.push(connection.expect("all watches began"));
    }
    sleep(PAUSE).await;
    let cpu = subject.process().cpu().expect("it runs");
    sleep(PAUSE).await;
    let idle = subject.process().cpu().expect("it runs") - cpu;
    let after = subject.process().memory().expect("it runs");
    let each = (after - before) as f64 / options.count as f64;
    println!(
        "{name:>8}: {each:.1} KiB a watch, {before} to {after} KiB; {idle:?} of processor time in {PAUSE:?}"
    );
}

fn ground_client(ground: &Ground, address: SocketAddr) -> Client {
    Client::new(address, &ground.pki)
}

/// Opens watches on one connection. They end with what is returned.
async fn watch(client: Client, count: usize) -> Vec<h2::RecvStream> {
    let stream = client.connect_raw(&["h2"]).await.expect("a connection");
    let (requests, connection) = h2::client::Builder::new()
        .initial_max_send_streams(count)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
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
    bodies
}
