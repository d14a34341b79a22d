//! A proxy and its real kube-apiserver v1.20.2 get SIGTERM together, as from kubelet, and are started again when both
//! have ended. A client that knows only this node's address asks all the time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PAUSE: Duration = Duration::from_millis(200);
const DELAY: &str = "1s";
const DRAIN: &str = "4s";
/// More than delay and drain.
const SHUTDOWN_DELAY: &str = "7s";
/// How long an apiserver with `APIServerIdentity` lives on without its port.
const MINUTE: Duration = Duration::from_secs(60);

/// One request on a new connection.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: Instant,
    pub answered: Instant,
    pub result: Result<(), String>,
}

/// Asks on a new connection each time.
pub async fn ask(client: Client, asked: Arc<Mutex<Vec<Asked>>>) {
    let mut ticks = interval(PAUSE);
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

async fn pair(a: impl Fn(KubeOptions) -> KubeOptions + Send + 'static) -> Pair {
    let pair = Pair::options().a(a).proxies(|options| {
        let options = options.set("shutdown.delay", DELAY);
        options.set("shutdown.drain", DRAIN)
    });
    pair.start().await
}

/// SIGTERM to proxy and apiserver. Returns when they ended, as seen a little later.
async fn stop(proxy: &mut Proxy, apiserver: &mut KubeApiServer) -> (Instant, Instant) {
    proxy.process().signal(Signal::Term);
    apiserver.process().signal(Signal::Term);
    let (mut proxy_ended, mut apiserver_ended) = (None, None);
    eventually("both have ended", 2 * MINUTE, async || {
        if proxy_ended.is_none() && proxy.process().exited().is_some() {
            proxy_ended = Some(Instant::now());
        }
        if apiserver_ended.is_none() && apiserver.process().exited().is_some() {
            apiserver_ended = Some(Instant::now());
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
    let mut pair = pair(lives_on).await;
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let client = pair.proxy_a.client(&pair.ground.pki).cert("admin");
    let asking = tokio::spawn(ask(client, asked.clone()));
    let signalled = Instant::now();
    let (proxy_ended, apiserver_ended) = stop(&mut pair.proxy_a, &mut pair.a).await;
    asking.abort();
    let took = |ended: Instant| ended.duration_since(signalled);
    let (proxy, apiserver) = (took(proxy_ended), took(apiserver_ended));
    println!("the apiserver ended after {apiserver:?}, its proxy after {proxy:?}");
    assert!(apiserver > MINUTE, "it lives on: {apiserver:?}");
    assert!(proxy > apiserver && proxy < apiserver + Duration::from_secs(5));
    let asked = asked.lock().unwrap().clone();
    let refused: Vec<_> = asked
        .iter()
        .filter(|asked| asked.result.is_err() && asked.answered < apiserver_ended)
        .collect();
    assert!(asked.len() > 200 && refused.is_empty(), "{refused:?}");

    // The other one is stopped alone: its apiserver has connections, too.
    let alone = Instant::now();
    assert!(pair.proxy_b.terminate().await.success());
    let drained = Duration::from_secs(10);
    assert!(alone.elapsed() < drained, "{:?}", alone.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_this_node_is_served_until_both_have_ended() {
    let stops_late =
        |options: KubeOptions| options.arg(&format!("--shutdown-delay-duration={SHUTDOWN_DELAY}"));
    let Pair {
        ground,
        mut a,
        b: _b,
        mut proxy_a,
        proxy_b: _proxy_b,
    } = pair(stops_late).await;
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let client = proxy_a.client(&ground.pki).cert("admin");
    let asking = tokio::spawn(ask(client, asked.clone()));
    // A watch that the drain ends.
    let watcher = proxy_a.client(&ground.pki).cert("admin");
    let _watch = watcher.open(&format!("{CONFIG_MAPS}?watch=true")).await;

    let signalled = Instant::now();
    let (proxy_ended, apiserver_ended) = stop(&mut proxy_a, &mut a).await;
    a.start_again();
    proxy_a.start_again().await;
    let ready = Instant::now();
    eventually("served again", LONGER, async || {
        let asked = asked.lock().unwrap();
        let last = asked.last().unwrap();
        last.at > ready && last.result.is_ok()
    })
    .await;
    asking.abort();

    let asked = asked.lock().unwrap().clone();
    let failed: Vec<_> = asked.iter().filter(|asked| asked.result.is_err()).collect();
    let since = |at: Instant| at.saturating_duration_since(signalled).as_secs_f64();
    println!(
        "after SIGTERM the proxy ended in {:.1} s, the apiserver in {:.1} s, ready again after {:.1} s",
        since(proxy_ended),
        since(apiserver_ended),
        since(ready)
    );
    let (first, last) = (failed.first(), failed.last());
    if let (Some(first), Some(last)) = (first, last) {
        println!(
            "{} of {} requests not served, from {:.1} s to {:.1} s: {:?} … {:?}",
            failed.len(),
            asked.len(),
            since(first.at),
            since(last.answered),
            first.result,
            last.result
        );
    }
    // The end of a process is seen a little later.
    let slack = Duration::from_millis(500);
    let early: Vec<_> = failed
        .iter()
        .filter(|asked| asked.answered + slack < proxy_ended)
        .collect();
    assert!(early.is_empty(), "while the proxy was there: {early:?}");
    assert!(
        proxy_ended > apiserver_ended - Duration::from_secs(2),
        "the proxy ended {:?} before its apiserver",
        apiserver_ended - proxy_ended
    );
}
