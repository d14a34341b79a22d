//! A new proxy is started while the old one drains, at the same addresses with the same file.

use std::time::Duration;

use super::sigterm::until_it_drains;
use testkit::client::Client;
use testkit::cluster::{LONG, Single};
use testkit::process::Signal;
use testkit::steady::Steady;
use testkit::wait::eventually;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn ask(client: Client) -> Result<(), String> {
    // A connection that the old one ignores is tried again by the kernel after a second.
    let answer = client.fresh().try_get(PODS).await;
    let answer = answer.map_err(|error| format!("{error:#}"))?;
    let (code, text) = (answer.code(), answer.text());
    (code == 200).then_some(()).ok_or(format!("{code} {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_takes_over_without_a_failed_request() {
    let mut world = Single::with(|options| options.set("shutdown.drain", "10s")).await;
    let client = world.client().cert("admin");
    let hanging = client.timeout(LONG);
    let _hanging = tokio::spawn(async move { hanging.try_get("/_double/hang").await });
    eventually("it hangs", LONG, async || {
        world.double.count("/_double/hang") == 1
    })
    .await;
    let asking: Vec<_> = [client.http1(), client.http2()]
        .into_iter()
        .map(|client| {
            Steady::start("requests", Duration::from_millis(20), 10_000, move || {
                ask(client.clone())
            })
        })
        .collect();
    world.proxy.process().signal(Signal::Term);
    until_it_drains(&client).await;
    let mut old = world.proxy.start_successor();
    assert_eq!(old.wait(LONG).await.code(), Some(0));
    world.proxy.wait_ready().await;
    assert_eq!(client.fresh().get("/readyz").await.code(), 200);
    for asking in asking {
        println!("{} requests", asking.stop().await);
    }
    let log = std::fs::read_to_string(world.proxy.process().log()).unwrap();
    assert_eq!(log.matches("another proxy is stopping here").count(), 1);
    assert_eq!(log.matches("stopped").count(), 1);
    assert_eq!(world.proxy.terminate().await.code(), Some(0));
}

#[tokio::test]
async fn beside_a_proxy_that_is_not_stopping_no_other_starts() {
    let mut world = Single::new().await;
    let mut first = world.proxy.start_successor();
    assert_eq!(world.proxy.process().wait(LONG).await.code(), Some(1));
    let log = world.proxy.log_tail();
    assert!(log.contains("cannot listen on"), "{log}");
    assert!(first.exited().is_none());
    assert_eq!(world.client().get("/version").await.code(), 200);
}
