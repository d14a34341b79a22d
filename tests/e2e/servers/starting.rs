//! A server that starts: nobody is sent to it before its peers know of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single, assert_refused, patient};
use testkit::double::{ServedResource, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

const NOBODYS: &str = "/apis/no.such.group/v1/things";
/// `peer.leaseTTL` of a proxy that is not `patient`.
const LEASE_TTL: Duration = Duration::from_secs(3);

/// Keeps every core busy while it lives.
struct Load(Arc<AtomicBool>);

impl Load {
    fn on_all_cores() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores {
            let ended = ended.clone();
            std::thread::spawn(move || while !ended.load(Ordering::Relaxed) {});
        }
        Self(ended)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a proxy whose apiserver alone serves something, and asks for it through `other` as soon as it is ready.
async fn start(ground: &Ground, other: &Client, number: usize) {
    let group = format!("only-{number}.example");
    let things = ServedResource::new(&group, "v1", "things", "Thing");
    let double = ground.double(v1_20().with(things)).await;
    // One in ten has no configured ID.
    let id = match number % 10 {
        0 => String::new(),
        _ => format!("b{number}"),
    };
    let options = patient(ground.proxy(&id, double.addr()));
    let mut proxy = Proxy::start(options.until(Until::Spawned)).await;
    let client = proxy.client(&ground.pki).http2();
    eventually("it is ready", LONG, async || {
        match client.try_get("/readyz").await {
            Ok(answer) if answer.code() == 200 => Ok(()),
            Ok(answer) => Err(answer.text()),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await;
    let path = format!("/apis/{group}/v1/things");
    let answer = other.get(&path).await;
    assert_ne!(answer.code(), 404, "start {number}: {}", answer.text());
    eventually("it is served", LONG, async || {
        let answer = other.get(&path).await;
        assert_ne!(answer.code(), 404, "start {number}: {}", answer.text());
        answer.code() == 200
    })
    .await;
    assert_eq!(proxy.admin_get("/readyz").await.code(), 200);
    proxy.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_starts_under_load_none_is_a_moment_of_false_404s() {
    let ground = Ground::new().await;
    let a = ground.double(v1_20()).await;
    let options = patient(ground.proxy("a", a.addr()));
    let other = Proxy::start(options.until(Until::Ready)).await;
    let other = other.client(&ground.pki).cert("admin").http2();
    assert_eq!(other.get(NOBODYS).await.code(), 404);
    {
        let _load = Load::on_all_cores();
        let starts = stream::iter(0..50).map(|number| start(&ground, &other, number));
        starts.buffer_unordered(5).collect::<Vec<()>>().await;
    }
    assert_eq!(other.get(NOBODYS).await.code(), 404);
}

#[tokio::test]
async fn a_proxy_without_an_id_is_known_before_its_apiserver_is_ready() {
    let ground = Ground::new().await;
    let a = ground.double(v1_20()).await;
    let b = ground.double(v1_20()).await;
    b.set_ready(false);
    let other = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let asked = other.client(&ground.pki).cert("admin");
    assert_eq!(asked.get(NOBODYS).await.code(), 404);
    let proxy = Proxy::start(ground.proxy("", b.addr())).await;
    eventually("somebody comes", LONG, async || {
        asked.get(NOBODYS).await.code() == 503
    })
    .await;
    let facts = other.statusz().await["facts"].clone();
    assert_eq!(facts["unnamed"], json!([proxy.addr().to_string()]));
    assert_eq!(facts["claims"], json!([]), "it is nobody's second proxy");
    holds("for as long as it is not known", LEASE_TTL, async || {
        asked.get(NOBODYS).await.code() == 503
    })
    .await;
    b.set_ready(true);
    eventually("it is ready", LONG, async || proxy.is_ready().await).await;
    eventually("what it serves is known", LONG, async || {
        asked.get(NOBODYS).await.code() == 404
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_cannot_write_is_not_ready_and_says_why() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let mut etcd = ground.etcd.client().await;
    let options = || Some(AlarmOptions::new());
    let alarm = |action| (action, AlarmType::Nospace);
    let (action, kind) = alarm(AlarmAction::Activate);
    etcd.alarm(action, kind, options()).await.unwrap();
    let proxy = Proxy::start(ground.proxy("a", double.addr())).await;
    let failure = "[-]published failed: peers cannot know yet what this server serves";
    eventually("the reason is told", LONG, async || {
        let text = proxy.admin_get("/readyz").await.text();
        let lines: Vec<_> = text.lines().filter(|it| it.starts_with("[-]")).collect();
        let told = matches!(&lines[..], [one] if one.starts_with(failure) && one.contains("space"));
        told.then_some(()).ok_or(text)
    })
    .await;
    let client = proxy.client(&ground.pki);
    assert_refused(&client.get("/readyz").await, "[-]published failed");
    let (action, kind) = alarm(AlarmAction::Deactivate);
    etcd.alarm(action, kind, options()).await.unwrap();
    eventually("it is ready", LONG, async || proxy.is_ready().await).await;
    assert_eq!(client.get("/readyz").await.code(), 200);
}

#[tokio::test]
async fn an_etcd_that_fails_later_takes_nobodys_readiness_away() {
    let mut single = Single::new().await;
    let client = single.client();
    single.ground.etcd.kill();
    holds("it stays ready", LEASE_TTL * 2, async || {
        let answer = client.get("/readyz").await;
        match single.proxy.is_ready().await && answer.code() == 200 {
            true => Ok(()),
            false => Err(answer.text()),
        }
    })
    .await;
}
