//! Random writes while the proxy stops: no watch gets a bookmark above a change that it missed. With the real
//! kube-apiserver and etcd of `quiet`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kube_interop_proxy::watches::frames::EventKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::watches::bookmarks::{
    Events, PROTOBUF, Seen, last_bookmark, list_revision, proxy, watch_path, write,
};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::{KubeApiServer, Need};
use testkit::process::Signal;
use testkit::wait::eventually;

/// A list that tells etcd's revision.
const NEWEST: &str = "/api/v1/secrets?limit=1";
/// At least so many, and fewer than so many: how many watches get a bookmark depends on how fast the machine is.
const ROUNDS: Range<u64> = 3..12;
/// Fewer would prove little.
const GIVEN: usize = 15;
/// Changes of a round while all watches are open.
const CHANGES: i64 = 15;

/// What one watch of a round asks for.
#[derive(Clone, Debug)]
struct Asked {
    collection: String,
    selector: &'static str,
    from_anything: bool,
    bookmarks: bool,
    protobuf: bool,
}

fn asked(random: &mut StdRng) -> Asked {
    let namespace = ["", "namespaces/default/", "namespaces/other/"][random.gen_range(0..3)];
    let resource = ["configmaps", "secrets"][random.gen_range(0..2)];
    Asked {
        collection: format!("/api/v1/{namespace}{resource}"),
        selector: ["", "", "&labelSelector=side%3Dleft"][random.gen_range(0..3)],
        from_anything: random.gen_ratio(1, 8),
        bookmarks: random.gen_ratio(5, 6),
        protobuf: random.gen_ratio(1, 3),
    }
}

/// Creates, changes, relabels and deletes, until it is told to stop.
async fn write_randomly(admin: Client, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        let namespace = ["default", "other"][random.gen_range(0..2)];
        let resource = ["configmaps", "secrets"][random.gen_range(0..2)];
        let collection = format!("/api/v1/namespaces/{namespace}/{resource}");
        let name = format!("r{seed}-{}", random.gen_range(0..5));
        if random.gen_ratio(1, 3) {
            let path = format!("{collection}/{name}");
            admin.request("DELETE", &path, "").await;
        } else {
            let side = ["left", "right"][random.gen_range(0..2)];
            let changed = json!({"metadata": {"labels": {"side": side}}, "data": {"n": random_data(&mut random)}});
            write(&admin, &collection, &name, &changed).await;
        }
        tokio::time::sleep(Duration::from_millis(random.gen_range(0..100))).await;
    }
}

fn random_data(random: &mut StdRng) -> String {
    // Base64, for Secrets.
    "AAAA".repeat(random.gen_range(0..20_000))
}

pub async fn random_writes_while_watches_end_are_never_jumped_over(
    ground: &Ground,
    server: &KubeApiServer,
) {
    let admin = server.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    let created = admin
        .request("POST", "/api/v1/namespaces", namespace.to_string())
        .await;
    assert_eq!(created.code(), 201);
    let mut given = 0;
    for round in 0..ROUNDS.end {
        if round >= ROUNDS.start && given > GIVEN {
            break;
        }
        given += round_of_random_writes(ground, server, round).await;
    }
    assert!(given > GIVEN, "only {given} bookmarks");
}

/// How many watches got a bookmark; none of them is above what its watch missed.
async fn round_of_random_writes(ground: &Ground, server: &KubeApiServer, round: u64) -> usize {
    let admin = server.admin();
    let mut random = StdRng::seed_from_u64(round);
    let mut proxy = proxy(ground, server, "4s").await;
    let client = proxy.client(&ground.pki).cert("admin");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            tokio::spawn(write_randomly(
                admin.fresh(),
                round * 10 + writer,
                stop.clone(),
            ))
        })
        .collect();
    let from = list_revision(admin, NEWEST).await;
    let watches = open(&client, from, &mut random).await;
    let begun = list_revision(admin, NEWEST).await;
    eventually("some is written while all are open", LONG, async || {
        let now = list_revision(admin, NEWEST).await;
        (now >= begun + CHANGES).then_some(()).ok_or(now)
    })
    .await;
    proxy.process().signal(Signal::Term);
    eventually(
        "bookmarks are counted, and what is left",
        LONG,
        async || {
            let given = proxy
                .metric("kube_interop_proxy_last_bookmarks_total", &[])
                .await;
            let left = proxy.metric("kube_interop_proxy_drain_left", &[]).await;
            given >= 1.0 && (1.0..40.0).contains(&left)
        },
    )
    .await;
    let mut ended = Vec::new();
    for (asked, watch) in watches {
        ended.push((asked, watch.await.unwrap().0));
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
    given(server, from, &ended).await
}

/// Watches of all kinds from this revision on.
async fn open(
    client: &Client,
    from: i64,
    random: &mut StdRng,
) -> Vec<(Asked, JoinHandle<(Vec<Seen>, Bytes)>)> {
    let mut watches = Vec::new();
    for _ in 0..40 {
        let asked = asked(random);
        let client = match asked.protobuf {
            true => client.header("accept", PROTOBUF),
            false => client.fresh(),
        };
        let start = if asked.from_anything { 0 } else { from };
        let path = watch_path(&asked.collection, start) + asked.selector;
        let path = match asked.bookmarks {
            true => path,
            false => path.replace("allowWatchBookmarks=true&", ""),
        };
        let watch = Events::open(&client, &path).await;
        watches.push((asked, tokio::spawn(watch.rest())));
    }
    watches
}

/// How many got a bookmark that is ours, each of which is checked.
async fn given(server: &KubeApiServer, from: i64, ended: &[(Asked, Vec<Seen>)]) -> usize {
    let mut given = 0;
    for (asked, seen) in ended {
        let bookmark = last_bookmark(seen);
        // An apiserver with `WatchList` itself says where what exists ends: only then a bookmark of ours may follow.
        let told = asked.from_anything && server.abilities().meets(Need::On("WatchList"));
        if (asked.from_anything && !told) || !asked.bookmarks {
            assert_eq!(bookmark, None, "{asked:?}");
        }
        if let (Some(revision), false) = (bookmark, asked.from_anything) {
            given += 1;
            let missed = missed(server.admin(), asked, from, revision, seen).await;
            assert!(
                missed.is_empty(),
                "{asked:?} was told {revision} and misses {missed:?}"
            );
        }
    }
    given
}

/// What the apiserver itself tells a watch up to `revision`, and this one was not told.
async fn missed(
    admin: &Client,
    asked: &Asked,
    from: i64,
    revision: i64,
    seen: &[Seen],
) -> Vec<Seen> {
    let namespace = if asked.collection.contains("default") {
        "default"
    } else {
        "other"
    };
    let resource = asked.collection.rsplit('/').next().unwrap();
    let collection = format!("/api/v1/namespaces/{namespace}/{resource}");
    let marker = json!({"metadata": {"labels": {"side": "left"}}, "data": {"m": "AAAA".repeat(usize::try_from(revision % 7).unwrap())}});
    let name = format!("marker-{revision}-{}", seen.len());
    let last = write(admin, &collection, &name, &marker).await;
    let path = format!("{}{}", watch_path(&asked.collection, from), asked.selector);
    let mut reference = Events::open(&admin.fresh(), &path).await;
    reference.until(last).await;
    let told: BTreeSet<_> = seen
        .iter()
        .map(|(_, revision, name)| (*revision, name.clone()))
        .collect();
    let all = reference.seen.into_iter();
    all.filter(|(kind, at, name)| {
        *kind == EventKind::Change && *at <= revision && !told.contains(&(*at, name.clone()))
    })
    .collect()
}
