//! A real kube-apiserver v1.20.2 and its proxy end and start, together or one after the other, while a client that knows
//! only this node's address asks all the time. The peer's apiserver is a double.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::rebalancing::nothing_is_lost;
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{Ground, lists};
use testkit::double::{Double, v1_20};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PAUSE: Duration = Duration::from_millis(200);
/// For a minute of requests.
const LONG_PAUSE: Duration = Duration::from_millis(400);
const DELAY: &str = "1s";
const DRAIN: &str = "3s";
/// More than delay and drain.
const SHUTDOWN_DELAY: &str = "6s";
/// How long an apiserver with `APIServerIdentity` lives on without its port.
const MINUTE: Duration = Duration::from_secs(60);
/// After its signal: delay, drain, and 75 s for an apiserver that shuts down.
const PROXY_GIVES_UP: Duration = Duration::from_secs(1 + 3 + 75);

/// One request on a new connection.
#[derive(Debug, Clone)]
struct Asked {
    at: Instant,
    answered: Instant,
    result: Result<(), String>,
}

/// Asks on a new connection each time.
async fn ask(client: Client, pause: Duration, asked: Arc<Mutex<Vec<Asked>>>) {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let at = Instant::now();
        let result = match client.fresh().try_get(CONFIG_MAPS).await {
            Ok(answer) if answer.code() == 200 => Ok(()),
            Ok(answer) => Err(format!("{} {}", answer.code(), answer.text())),
            Err(error) => Err(format!("{error:#}")),
        };
        let answered = Instant::now();
        asked.lock().unwrap().push(Asked {
            at,
            answered,
            result,
        });
    }
}

/// A node, and a peer.
struct NodeAndPeer {
    apiserver: KubeApiServer,
    proxy: Proxy,
    asked: Arc<Mutex<Vec<Asked>>>,
    peers_double: Double,
    peers_proxy: Proxy,
    ground: Ground,
}

impl NodeAndPeer {
    async fn new(change: impl Fn(KubeOptions) -> KubeOptions) -> Self {
        let ground = Ground::bootstrapped().await;
        let apiserver = change(ground.kube("cp-a"));
        let apiserver = KubeApiServer::start(apiserver, &ground.pki).await;
        let peers_double = ground.double(v1_20()).await;
        let proxy = |id, addr| {
            let options = ground.proxy(id, addr);
            let options = options
                .set("shutdown.delay", DELAY)
                .set("shutdown.drain", DRAIN);
            Proxy::start(options.until(Until::Live))
        };
        let (proxy, peers_proxy) = tokio::join!(
            proxy("a", apiserver.addr()),
            proxy("b", peers_double.addr())
        );
        for (proxy, other) in [(&proxy, "b"), (&peers_proxy, "a")] {
            eventually("they know each other", LONGER, async || {
                proxy.is_ready().await && lists(&proxy.statusz().await, other, "apps")
            })
            .await;
        }
        Self {
            apiserver,
            proxy,
            asked: Arc::default(),
            peers_double,
            peers_proxy,
            ground,
        }
    }

    /// An administrator at the node's proxy, on a connection of its own.
    fn admin(&self) -> Client {
        self.proxy.client(&self.ground.pki).cert("admin")
    }

    /// The node's client begins to ask.
    fn ask(&self, pause: Duration) -> JoinHandle<()> {
        tokio::spawn(ask(self.admin(), pause, self.asked.clone()))
    }

    async fn end_apiserver(&mut self) {
        self.apiserver.process().signal(Signal::Term);
        self.apiserver.process().wait(LONGER).await;
    }

    /// Returns when it is ready, and a client's request after that was served.
    async fn start_apiserver_again(&mut self) {
        self.apiserver.start_again();
        eventually("the new one is ready", LONGER, async || {
            self.proxy.is_ready().await
        })
        .await;
        self.until_served().await;
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

/// What failed while the proxy was there.
fn before(failed: Vec<Asked>, ended: Instant) -> Vec<Asked> {
    // The end of a process is seen a little later.
    let slack = Duration::from_millis(500);
    let early = failed.into_iter();
    early
        .filter(|asked| asked.answered + slack < ended)
        .collect()
}

/// SIGTERM to proxy and apiserver. Returns when they ended, as seen a little later.
async fn stop(proxy: &mut Proxy, apiserver: &mut KubeApiServer) -> (Instant, Instant) {
    proxy.process().signal(Signal::Term);
    apiserver.process().signal(Signal::Term);
    let (mut proxy_ended, mut apiserver_ended) = (None, None);
    eventually("both have ended", 2 * MINUTE, async || {
        // Of two that have ended since the last look the apiserver was the first.
        if apiserver_ended.is_none() && apiserver.process().exited().is_some() {
            apiserver_ended = Some(Instant::now());
        }
        if proxy_ended.is_none() && proxy.process().exited().is_some() {
            proxy_ended = Some(Instant::now());
        }
        proxy_ended.is_some() && apiserver_ended.is_some()
    })
    .await;
    (proxy_ended.unwrap(), apiserver_ended.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apiserver_that_lives_on_without_its_port_keeps_its_proxy_and_nothing_else_does() {
    let lives_on = |options: KubeOptions| {
        let options = options.cached().feature_gate("APIServerIdentity=true");
        options.arg("--shutdown-delay-duration=5s")
    };
    let mut node = NodeAndPeer::new(lives_on).await;
    let asking = node.ask(LONG_PAUSE);
    let signalled = Instant::now();
    let (proxy_ended, apiserver_ended) = stop(&mut node.proxy, &mut node.apiserver).await;
    asking.abort();
    let took = |ended: Instant| ended.duration_since(signalled);
    let (proxy, apiserver) = (took(proxy_ended), took(apiserver_ended));
    println!("the apiserver ended after {apiserver:?}, its proxy after {proxy:?}");
    assert!(apiserver > MINUTE, "it lives on: {apiserver:?}");
    assert!(proxy > apiserver && proxy < PROXY_GIVES_UP);
    let asked = node.asked.lock().unwrap().clone();
    let refused: Vec<_> = asked
        .iter()
        .filter(|asked| asked.result.is_err() && asked.answered < apiserver_ended)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    // One each 0.4 s if answers are quick. Who waits for a connection gives up after 3 s.
    let least = apiserver.as_secs() as usize / 2;
    assert!(asked.len() > least, "{} of {least}", asked.len());

    // The other one is stopped alone: its apiserver has connections, too.
    let direct = Client::new(node.peers_double.addr(), &node.ground.pki).cert("admin");
    let watch = direct.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(watch.status, 200);
    let alone = Instant::now();
    assert!(node.peers_proxy.terminate().await.success());
    // It does not wait for its apiserver: that could last 75 s.
    let drained = Duration::from_secs(30);
    assert!(alone.elapsed() < drained, "{:?}", alone.elapsed());
    drop(watch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_one_node_is_served_for_as_long_as_its_proxy_is_there() {
    let mut node = NodeAndPeer::new(|options| {
        let delay = format!("--shutdown-delay-duration={SHUTDOWN_DELAY}");
        options.arg(&delay).arg("--goaway-chance=0.02")
    })
    .await;
    // Its apiserver ends connections at random.
    let client = node.admin().http2().timeout(LONGER);
    nothing_is_lost(&node.proxy, &client).await;
    let asking = node.ask(PAUSE);
    an_apiserver_is_replaced_behind_its_proxy(&mut node).await;
    a_proxy_ends_after_its_apiserver_and_starts_before_it(&mut node).await;
    both_end_together(&mut node).await;
    asking.abort();
}

/// As with a proxy that is a static pod of its own.
async fn an_apiserver_is_replaced_behind_its_proxy(node: &mut NodeAndPeer) {
    node.end_apiserver().await;
    node.until_served().await;
    node.start_apiserver_again().await;
    let failed = node.failed();
    assert!(failed.is_empty(), "{failed:?}");
}

/// As kubelet from 1.29 on does with a native sidecar.
async fn a_proxy_ends_after_its_apiserver_and_starts_before_it(node: &mut NodeAndPeer) {
    node.end_apiserver().await;
    // A peer serves it, and the drain ends it.
    let watcher = node.admin();
    let mut watch = watcher.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(watch.status, 200);
    node.proxy.process().signal(Signal::Term);
    let status = node.proxy.process().wait(LONGER).await;
    assert_eq!(status.code(), Some(0));
    let ended = Instant::now();
    while watch
        .next_chunk(LONGER)
        .await
        .expect("a clean end")
        .is_some()
    {}

    node.proxy.start_again().await;
    node.until_served().await;
    node.start_apiserver_again().await;
    let early = before(node.failed(), ended);
    assert!(early.is_empty(), "while the proxy was there: {early:?}");
}

/// Both get SIGTERM at the same moment, as from kubelet, and are started again when both have ended.
async fn both_end_together(node: &mut NodeAndPeer) {
    // A watch that the drain ends.
    let watcher = node.admin();
    let _watch = watcher.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    let signalled = Instant::now();
    let (proxy_ended, apiserver_ended) = stop(&mut node.proxy, &mut node.apiserver).await;
    node.apiserver.start_again();
    node.proxy.start_again().await;
    node.proxy.wait_ready().await;
    let ready = Instant::now();
    node.until_served().await;

    let failed = node.failed();
    let since = |at: Instant| at.saturating_duration_since(signalled).as_secs_f64();
    println!(
        "after SIGTERM the proxy ended in {:.1} s, the apiserver in {:.1} s, ready again after {:.1} s",
        since(proxy_ended),
        since(apiserver_ended),
        since(ready)
    );
    if let (Some(first), Some(last)) = (failed.first(), failed.last()) {
        println!(
            "{} requests not served, from {:.1} s to {:.1} s: {:?} … {:?}",
            failed.len(),
            since(first.at),
            since(last.answered),
            first.result,
            last.result
        );
    }
    let early = before(failed, proxy_ended);
    assert!(early.is_empty(), "while the proxy was there: {early:?}");
    assert!(
        proxy_ended > apiserver_ended - Duration::from_secs(2),
        "the proxy ended {:?} before its apiserver",
        apiserver_ended - proxy_ended
    );
}
