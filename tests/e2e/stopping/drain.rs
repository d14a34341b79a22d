//! Many watches that end at once: the effects on the proxy, its etcd and its clients. With a real kube-apiserver
//! v1.20.2.

use std::time::{Duration, Instant};

use crate::routing::real_apiservers::options;
use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, SECRETS, last_bookmark, list_revision, proxy, watch_path, write,
};
use serde_json::json;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::process::Signal;

/// kube-apiserver and the proxy take 250 of a connection.
const OF_A_CONNECTION: usize = 200;
const WATCHES: usize = 2000;
const DRAIN: Duration = Duration::from_secs(6);

/// Watches that etcd serves.
async fn watchers(etcd: &Client) -> i64 {
    let text = etcd.get("/metrics").await.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[tokio::test]
async fn thousands_of_watches_end_with_a_bookmark_spread_over_the_drain_and_ask_etcd_once() {
    let ground = Ground::new().await;
    let server = KubeApiServer::start(options(&ground, "cp-a"), &ground.pki).await;
    let admin = server.admin();
    let mut proxy = proxy(&ground, &server, "6s").await;
    let from = list_revision(admin, CONFIG_MAPS).await;
    let admin_of_proxy = proxy.client(&ground.pki).cert("admin");
    let empty = proxy.process().memory().unwrap();
    let mut watches = Vec::new();
    for index in 0..WATCHES {
        let client = match index % OF_A_CONNECTION {
            0 => Some(admin_of_proxy.fresh()),
            _ => None,
        };
        if let Some(client) = client {
            watches.push((client, Vec::new()));
        }
        let (client, of_client) = watches.last_mut().unwrap();
        of_client.push(Events::open(client, &watch_path(CONFIG_MAPS, from)).await);
    }
    let change = write(admin, CONFIG_MAPS, "a", &json!({})).await;
    for watch in watches.iter_mut().flat_map(|(_, watches)| watches) {
        watch.until(change).await;
    }
    let newest = write(admin, SECRETS, "x", &json!({})).await;
    let etcd = Client::new(ground.etcd.addr(), &ground.pki)
        .trusting("etcd-ca")
        .cert("etcd-client")
        .server_name("localhost");
    let (open, before) = (proxy.process().memory().unwrap(), watchers(&etcd).await);
    proxy.process().signal(Signal::Term);
    let stopped = Instant::now();
    let reading: Vec<_> = watches
        .into_iter()
        .flat_map(|(_, watches)| watches)
        .map(|watch| {
            tokio::spawn(async move {
                let (seen, _) = watch.rest().await;
                (last_bookmark(&seen), Instant::now())
            })
        })
        .collect();
    tokio::time::sleep_until((stopped + DRAIN / 3).into()).await;
    let (draining, during) = (proxy.process().memory().unwrap(), watchers(&etcd).await);
    let mut ends = Vec::new();
    for watch in reading {
        let (bookmark, end) = watch.await.unwrap();
        assert!(
            bookmark.is_some_and(|revision| revision >= newest),
            "{bookmark:?} < {newest}"
        );
        ends.push(end - stopped);
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
    // What the proxy follows for itself goes on while it drains.
    assert!(
        during <= before + 1,
        "{during} watches of etcd, {before} before"
    );
    let each = |kib: usize| kib as f64 / WATCHES as f64;
    println!(
        "KiB a watch: {:.1} open, {:.1} more in the drain",
        each(open - empty),
        each(draining.saturating_sub(open))
    );
    assert!(
        each(draining.saturating_sub(open)) < 10.0,
        "{} KiB more in the drain",
        draining.saturating_sub(open)
    );
    let busiest = (0..DRAIN.as_secs())
        .map(|second| ends.iter().filter(|end| end.as_secs() == second).count());
    let busiest = busiest.max().unwrap();
    println!("the busiest second ends {busiest} of {WATCHES}");
    assert!(
        busiest < WATCHES * 2 / 5,
        "{busiest} of {WATCHES} in one second"
    );
}
