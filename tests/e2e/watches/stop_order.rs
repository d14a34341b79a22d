//! How watches end when apiserver and proxy stop in one order or another, as the containers of a pod can: each ends
//! cleanly, and with its last bookmark. With a real kube-apiserver v1.20.2 and etcd, on the raw streams.

use serde_json::json;

use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, PROTOBUF, SECRETS, last_bookmark, list_revision, proxy_with, until_proved,
    watch_path, write,
};
use crate::watches::resources::POD_TEMPLATES;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

/// Watches of each resource in each format and protocol.
const OF_EACH: usize = 2;
const DRAIN: &str = "4s";

/// What there is of a watch's resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objects {
    /// An object that the watch itself delivered.
    Delivered,
    /// Objects that no watch delivered.
    Quiet,
    /// No object at all.
    Empty,
}

/// An open watch, and what it is called when it fails.
struct Watch {
    name: String,
    objects: Objects,
    events: Events,
}

/// `delay`: the apiserver's shutdown delay.
async fn apiserver(delay: &str) -> (Ground, KubeApiServer) {
    let ground = Ground::bootstrapped().await;
    let options = ground.kube("cp-a");
    let options = options.arg(&format!("--shutdown-delay-duration={delay}"));
    let server = KubeApiServer::start(options, &ground.pki).await;
    (ground, server)
}

/// `delay`: the proxy's.
async fn watched(ground: &Ground, server: &KubeApiServer, delay: &str) -> Watched {
    let admin = server.admin();
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    write(admin, SECRETS, "a", &json!({})).await;
    let proxy = proxy_with(ground, server, |options| {
        options
            .set("shutdown.delay", delay)
            .set("shutdown.drain", DRAIN)
    })
    .await;
    let mut watches = open_watches(ground, server, &proxy).await;
    let change = write(admin, CONFIG_MAPS, "a", &json!({"data": {"x": "1"}})).await;
    for watch in &mut watches {
        if watch.objects == Objects::Delivered {
            watch.events.until(change).await;
        }
    }
    until_proved(&proxy, 3).await;
    // In another namespace than the watches, and never the same.
    let elsewhere = "/api/v1/namespaces/kube-system/configmaps";
    let data = json!({"data": {"since": change.to_string()}});
    let newest = write(admin, elsewhere, "x", &data).await;
    assert!(newest > change);
    Watched {
        proxy,
        watches,
        newest,
    }
}

/// A proxy, and the watches through it.
struct Watched {
    proxy: Proxy,
    watches: Vec<Watch>,
    /// The revision that bookmarks must reach.
    newest: i64,
}

impl Watched {
    /// Once the proxy has ended.
    async fn ends(self) -> Vec<End> {
        let reading = self.watches.into_iter().map(|watch| {
            let end = tokio::spawn(watch.events.try_rest());
            (watch.name, end)
        });
        let mut ends = Vec::new();
        for (name, end) in reading.collect::<Vec<_>>() {
            let bookmark = end.await.unwrap().map(|(seen, _)| last_bookmark(&seen));
            ends.push(End {
                name,
                bookmark: bookmark.map(|revision| revision.is_some_and(|it| it >= self.newest)),
            });
        }
        let mut proxy = self.proxy;
        assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
        ends
    }
}

async fn open_watches(ground: &Ground, server: &KubeApiServer, proxy: &Proxy) -> Vec<Watch> {
    let from = list_revision(server.admin(), CONFIG_MAPS).await;
    let json = proxy.client(&ground.pki).cert("admin");
    let protobuf = json.header("accept", PROTOBUF);
    let empty = POD_TEMPLATES.path();
    let mut watches = Vec::new();
    for (format, client) in [
        ("JSON, HTTP/1.1", json.http1()),
        ("JSON, HTTP/2", json.http2()),
        ("protobuf, HTTP/1.1", protobuf.http1()),
        ("protobuf, HTTP/2", protobuf.http2()),
    ] {
        for (objects, collection) in [
            (Objects::Delivered, CONFIG_MAPS),
            (Objects::Quiet, SECRETS),
            (Objects::Empty, &empty),
        ] {
            for _ in 0..OF_EACH {
                let events = Events::open(&client, &watch_path(collection, from)).await;
                watches.push(Watch {
                    name: format!("{objects:?}, {format}"),
                    objects,
                    events,
                });
            }
        }
    }
    watches
}

/// How a watch ended: whether with a bookmark that is new enough, or why not cleanly.
struct End {
    name: String,
    bookmark: Result<bool, String>,
}

/// All ended cleanly and with a bookmark.
fn assert_ends(ends: &[End]) {
    let is_wrong = |end: &End| match &end.bookmark {
        Ok(true) => None,
        Ok(false) => Some(format!("{}: no bookmark", end.name)),
        Err(why) => Some(format!("{}: {why}", end.name)),
    };
    let wrong: Vec<_> = ends.iter().filter_map(is_wrong).collect();
    assert!(wrong.is_empty(), "of {}: {wrong:#?}", ends.len());
}

/// Both get SIGTERM at the same moment.
async fn both_stop((ground, mut server): (Ground, KubeApiServer), delay: &str) -> Vec<End> {
    let mut watched = watched(&ground, &server, delay).await;
    server.process().signal(Signal::Term);
    watched.proxy.process().signal(Signal::Term);
    watched.ends().await
}

#[tokio::test]
async fn both_stop_and_the_apiserver_is_there_when_the_drain_begins() {
    assert_ends(&both_stop(apiserver("2s").await, "0s").await);
}

#[tokio::test]
async fn both_stop_and_the_apiserver_takes_nothing_new_when_the_drain_begins() {
    assert_ends(&both_stop(apiserver("1s").await, "2s").await);
}

#[tokio::test]
async fn the_proxy_alone_stops_and_then_both_and_the_apiserver_has_no_delay() {
    let (ground, server) = apiserver("0s").await;
    let mut alone = watched(&ground, &server, "0s").await;
    alone.proxy.process().signal(Signal::Term);
    assert_ends(&alone.ends().await);
    assert_ends(&both_stop((ground, server), "0s").await);
}

#[tokio::test]
async fn the_apiserver_is_killed_while_the_proxy_drains() {
    let (ground, mut server) = apiserver("7s").await;
    let mut watched = watched(&ground, &server, "0s").await;
    let all = watched.watches.len() as f64;
    server.process().signal(Signal::Term);
    watched.proxy.process().signal(Signal::Term);
    eventually("some have ended, and some not", LONG, async || {
        let left = watched
            .proxy
            .try_metric("kube_interop_proxy_drain_left")
            .await;
        left.is_some_and(|left| 0.0 < left && left < all)
            .then_some(())
            .ok_or(format!("{left:?}"))
    })
    .await;
    server.kill();
    assert_ends(&watched.ends().await);
}
