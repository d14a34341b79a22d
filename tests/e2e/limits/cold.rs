//! Requests that come at once, before a connection to the apiserver is open.

use std::num::NonZero;
use std::time::Duration;

use tokio::task::JoinSet;

use testkit::cluster::Single;
use testkit::double::Fault;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLIENTS: usize = 5;
/// Of each client.
const REQUESTS: usize = 100;
/// Short requests on one connection.
const STREAMS: usize = 64;

#[tokio::test]
async fn as_many_connections_are_opened_as_requests_at_once_need() {
    let world = Single::new().await;
    // So that all of them are under way at the same time.
    let delay = Duration::from_secs(2);
    world.double.set_fault(PODS, Some(Fault::Delay(delay)));
    let before = world.double.accepted_connections();
    let mut asking = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = world.client().cert("admin").http2();
        for _ in 0..REQUESTS {
            let client = client.clone();
            asking.spawn(async move { client.get(PODS).await.code() });
        }
    }
    let codes = asking.join_all().await;
    assert!(codes.iter().all(|code| *code == 200), "{codes:?}");
    let opened = world.double.accepted_connections() - before;
    // Each serving thread has connections of its own, of which one may be half full; and the probe may have opened one.
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let most = CLIENTS * REQUESTS / STREAMS + threads + 1;
    assert!(
        opened <= most as u64,
        "{opened} connections, {most} at most"
    );
}
