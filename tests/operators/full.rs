//! As many clients as the limit of open files allows, and then a peer that connects.

use tokio::net::{TcpSocket, TcpStream};

use testkit::addr::Loopback;
use testkit::cluster::{LONG, Single};
use testkit::registry::Registry;
use testkit::wait::eventually;

/// Files that the proxy may have, and how many of them clients may.
const FILES: usize = 200;
const CLIENTS: usize = (FILES - 64) / 2;

async fn open(single: &Single) -> f64 {
    let name = "kube_interop_proxy_connections";
    single.proxy.metric(name, &[]).await
}

#[tokio::test]
async fn a_peer_is_let_in_when_clients_have_taken_all_that_they_may() {
    let single = Single::with(|options| options.files(FILES)).await;
    let peer = Loopback::new();
    let registry = Registry::new(single.ground.etcd.client().await, "/registry");
    let live = format!(
        r#"{{"endpoint":"{}","initialized":true}}"#,
        peer.socket(6443)
    );
    registry.put(&registry.live("b"), &live).await;
    eventually("the peer is known", LONG, async || {
        let status = single.proxy.statusz().await;
        let mut peers = status["peers"].as_array().unwrap().iter();
        peers.any(|peer| peer["id"] == "b" && peer["live"] == true)
    })
    .await;

    let client = single.client();
    let mut connected = Vec::new();
    // Some are the proxy's own.
    for _ in 0..2 * CLIENTS {
        connected.extend(client.connect_raw(&["http/1.1"]).await.ok());
    }
    assert_eq!(open(&single).await, CLIENTS as f64);

    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(peer.socket(0)).unwrap();
    let from_peer = socket.connect(single.proxy.addr()).await.unwrap();
    eventually("the peer is let in", LONG, async || {
        open(&single).await == (CLIENTS + 1) as f64
    })
    .await;

    let name = "kube_interop_proxy_refused_connections_total";
    let before = single.proxy.metric(name, &[]).await;
    let client = TcpStream::connect(single.proxy.addr()).await.unwrap();
    eventually("a client is not", LONG, async || {
        single.proxy.metric(name, &[]).await > before
    })
    .await;
    drop((from_peer, client, connected));
}
