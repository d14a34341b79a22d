//! A real kube-apiserver v1.20.2 and its proxy end and start one after the other, or the apiserver alone, while a client
//! that knows only this node's address asks all the time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::together::{Asked, CONFIG_MAPS, ask};
use crate::routing::real_apiservers::LONGER;
use testkit::cluster::Ground;
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// A node, the node's client, and a peer.
struct World {
    apiserver: KubeApiServer,
    proxy: Proxy,
    asked: Arc<Mutex<Vec<Asked>>>,
    asking: JoinHandle<()>,
    _peer: (KubeApiServer, Proxy),
    ground: Ground,
}

impl World {
    async fn new() -> Self {
        let ground = Ground::bootstrapped().await;
        let apiserver = ground.kube("cp-a").arg("--shutdown-delay-duration=2s");
        let apiserver = KubeApiServer::start(apiserver, &ground.pki).await;
        let peer = KubeApiServer::start(ground.kube("cp-b"), &ground.pki).await;
        let proxy = |id, server: &KubeApiServer| {
            let options = ground.proxy(id, server.addr());
            let options = options
                .set("shutdown.delay", "1s")
                .set("shutdown.drain", "3s");
            Proxy::start(options.until(Until::Live))
        };
        let (proxy, peers_proxy) = tokio::join!(proxy("a", &apiserver), proxy("b", &peer));
        eventually("they know each other", LONGER, async || {
            for proxy in [&proxy, &peers_proxy] {
                let targets = proxy.metric("kube_interop_proxy_peers", &[("state", "target")]);
                if !proxy.is_ready().await || targets.await != 1.0 {
                    return false;
                }
            }
            true
        })
        .await;
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let client = proxy.client(&ground.pki).cert("admin");
        let asking = tokio::spawn(ask(client, asked.clone()));
        Self {
            apiserver,
            proxy,
            asked,
            asking,
            _peer: (peer, peers_proxy),
            ground,
        }
    }

    async fn end_apiserver(&mut self) {
        self.apiserver.process().signal(Signal::Term);
        self.apiserver.process().wait(LONGER).await;
    }

    /// Until a request that begins now or later is served.
    async fn until_served(&self) {
        let now = Instant::now();
        eventually("served", LONGER, async || {
            let asked = self.asked.lock().unwrap();
            let mut late = asked.iter().filter(|asked| asked.at > now);
            late.any(|asked| asked.result.is_ok())
        })
        .await;
    }

    /// Since the last time.
    fn failed(&self) -> Vec<Asked> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.retain(|asked| asked.result.is_err());
        asked
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_one_node_does_not_miss_an_apiserver_that_ends_before_its_proxy() {
    let mut world = World::new().await;
    an_apiserver_is_replaced_behind_its_proxy(&mut world).await;
    a_proxy_ends_after_its_apiserver_and_starts_before_it(&mut world).await;
    world.asking.abort();
}

/// As kubelet from 1.29 on does with a native sidecar.
async fn a_proxy_ends_after_its_apiserver_and_starts_before_it(world: &mut World) {
    world.end_apiserver().await;
    // A peer serves it, and the drain ends it.
    let watcher = world.proxy.client(&world.ground.pki).cert("admin");
    let mut watch = watcher.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(watch.status, 200);
    world.proxy.process().signal(Signal::Term);
    let status = world.proxy.process().wait(LONGER).await;
    assert_eq!(status.code(), Some(0));
    let ended = Instant::now();
    while watch
        .next_chunk(LONGER)
        .await
        .expect("a clean end")
        .is_some()
    {}

    world.proxy.start_again().await;
    world.until_served().await;
    world.apiserver.start_again();
    eventually("all is ready", LONGER, async || {
        world.proxy.is_ready().await
    })
    .await;
    world.until_served().await;
    // The end of a process is seen a little later.
    let slack = Duration::from_millis(500);
    let mut failed = world.failed();
    failed.retain(|asked| asked.answered + slack < ended);
    assert!(failed.is_empty(), "while the proxy was there: {failed:?}");
}

/// As with a proxy that is a static pod of its own.
async fn an_apiserver_is_replaced_behind_its_proxy(world: &mut World) {
    world.end_apiserver().await;
    world.until_served().await;
    world.apiserver.start_again();
    eventually("the new one is ready", LONGER, async || {
        world.proxy.is_ready().await
    })
    .await;
    world.until_served().await;
    let failed = world.failed();
    assert!(failed.is_empty(), "{failed:?}");
}
