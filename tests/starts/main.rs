//! Proxies that start while every core is busy. A target of its own: other tests would wait for the cores.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests: a failure is a panic with a message"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, patient};
use testkit::double::{ServedResource, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const NOBODYS: &str = "/apis/no.such.group/v1/things";

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
