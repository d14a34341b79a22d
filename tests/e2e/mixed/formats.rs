//! What only today's apiservers have of formats and watches, through the proxy of an old one: CBOR, and watches that
//! begin with all objects (`sendInitialEvents`).

use serde_json::Value;

use super::{CONFIG_MAPS, Mixed, OLD, VERSION, create, old};
use crate::watches::bookmarks::{Events, last_bookmark, watch_path};
use testkit::cluster::{Ground, LONG};
use testkit::etcd::EtcdOptions;
use testkit::process::Signal;

const CBOR: &str = "application/cbor";
/// With which self-described CBOR begins.
const TAG: &[u8] = b"\xd9\xd9\xf7";
const WATCH_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

#[tokio::test]
async fn cbor_is_read_and_written_at_the_one_that_has_it() {
    let gate = ["--feature-gates=CBORServingAndStorage=true"];
    let mixed = Mixed::with(&gate, |options| options).await;
    let [at_old, at_new] = mixed.admins();
    create(&at_old, "one").await;
    let one = format!("{CONFIG_MAPS}/one");
    let cbor = mixed.rerouted().cert("admin").header("accept", CBOR);
    let read = cbor.get(&one).await;
    assert_eq!((read.code(), read.header("content-type")), (200, CBOR));
    assert!(read.body.starts_with(TAG), "{:?}", read.body);

    // Written as it was read, but for one letter; then both read it, each in its own form.
    let mut body = read.body.to_vec();
    // The key, a byte for the length, the value.
    let of_data = |bytes: &[u8]| bytes.starts_with(b"value") && bytes.ends_with(b"x");
    let at = body.windows(7).position(of_data);
    body[at.expect("data of the object") + 6] = b'y';
    let writer = cbor.header("content-type", CBOR);
    let written = writer.request("PUT", &one, body).await;
    assert_eq!(written.code(), 200, "{}", written.text());
    for client in [&at_old, &at_new.header(VERSION, OLD), &at_new] {
        assert_eq!(client.get(&one).await.json()["data"]["value"], "y");
    }

    let mut watch = cbor.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(watch.header("content-type"), "application/cbor-seq");
    let event = watch.next_chunk(LONG).await.unwrap().unwrap();
    assert!(event.starts_with(TAG), "{event:?}");

    // The old one has no CBOR: the new one is asked instead.
    let through = at_old.header("accept", CBOR).get(&one).await;
    let straight = mixed.old.admin().header("accept", CBOR).get(&one).await;
    assert_eq!((through.code(), straight.code()), (200, 406));
    assert_eq!(through.header("content-type"), CBOR);
}

#[tokio::test]
async fn a_watch_that_begins_with_all_objects_ends_with_a_bookmark_for_the_old_apiserver() {
    // With 3.4.23 the new apiserver refuses such watches: its requested progress is not in order.
    let ground = Ground::with(EtcdOptions::v3_5()).await;
    let old = old(&ground).await;
    let mut mixed = Mixed::beside(ground, old, Vec::new(), |options| {
        options
            .set("watch.bookmarkOnShutdown", "true")
            .set("watch.handOver", "true")
            .set("shutdown.drain", "4s")
    })
    .await;
    let [at_old, at_new] = mixed.admins();
    for name in ["one", "two"] {
        create(&at_old, name).await;
    }
    let path = format!("{CONFIG_MAPS}?{WATCH_LIST}");
    let client = mixed.rerouted().cert("admin");
    // As JSON, for the bookmark's annotation.
    let mut watch = client.open(&path).await;
    assert_eq!(watch.status, 200);
    let mut listed = Vec::new();
    let bookmark = loop {
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        let meta = &event["object"]["metadata"];
        match event["type"].as_str() {
            Some("ADDED") => listed.push(meta["name"].clone()),
            _ => break event,
        }
    };
    assert_eq!(bookmark["type"], "BOOKMARK", "{bookmark}");
    let annotations = &bookmark["object"]["metadata"]["annotations"];
    assert_eq!(
        annotations["k8s.io/initial-events-end"], "true",
        "{bookmark}"
    );
    for name in ["one", "two"] {
        assert!(listed.contains(&Value::from(name)), "{listed:?}");
    }
    drop(watch);

    // An old apiserver does not know such watches: the new one is asked instead.
    assert_ne!(mixed.old.admin().get(&path).await.code(), 200);
    let mut through = at_old.open(&path).await;
    assert_eq!(through.status, 200);
    while through.next_event(LONG).await.unwrap().unwrap()["type"] != "BOOKMARK" {}
    drop(through);

    let mut events = Events::open(&client, &path).await;
    events.until(revision(&bookmark)).await;
    create(&at_new, "three").await;
    let three = at_new.get(&format!("{CONFIG_MAPS}/three")).await.json();
    events.until(revision(&three["metadata"])).await;
    mixed.at_old.process().signal(Signal::Term);
    let (seen, _) = events.rest().await;
    let last = last_bookmark(&seen).expect("a last bookmark");
    create(&at_new, "four").await;

    // The old apiserver goes on from there.
    let resumed = watch_path(CONFIG_MAPS, last);
    let mut watch = at_new.header(VERSION, OLD).open(&resumed).await;
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "four", "{event}");
}

/// Of an event, or of an object's metadata.
fn revision(found: &Value) -> i64 {
    let meta = found.get("object").map_or(found, |it| &it["metadata"]);
    let revision = meta["resourceVersion"].as_str();
    revision.expect("a resource version").parse().unwrap()
}
