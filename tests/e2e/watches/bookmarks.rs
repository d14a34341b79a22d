//! The last bookmark of a watch when the proxy stops, with a real kube-apiserver v1.20.2 and etcd.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use kube_interop_proxy::watches::frames::{
    Event, EventKind, FrameFate, FrameFormat, Frames, UnknownFrame,
};
use serde_json::{Value, json};

use testkit::client::{Client, Streaming};
use testkit::cluster::{Ground, LONG};
use testkit::double::kept;
use testkit::etcd::Etcd;
use testkit::kube::{KubeApiServer, Need};
use testkit::process::Signal;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SERVICE_ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const LIMIT_RANGES: &str = "/api/v1/namespaces/default/limitranges";
/// There are none, and none of the next either.
const POD_TEMPLATES: &str = "/api/v1/podtemplates";
const CONTROLLERS: &str = "/api/v1/replicationcontrollers";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";

pub async fn proxy(ground: &Ground, server: &KubeApiServer, drain: &str) -> Proxy {
    proxy_with(ground, server, |options| {
        options.set("shutdown.drain", drain)
    })
    .await
}

pub async fn proxy_with(
    ground: &Ground,
    server: &KubeApiServer,
    change: impl Fn(ProxyOptions) -> ProxyOptions,
) -> Proxy {
    let options = ground
        .proxy("a", server.addr())
        .set("watch.bookmarkOnShutdown", "true")
        .env(
            "RUST_LOG",
            "info,kube_interop_proxy::watches=debug,kube_interop_proxy::relay::watch=debug",
        );
    Proxy::start(change(options).until(Until::Ready)).await
}

/// Writes an object, whether it was there or not; its resource version.
pub async fn write(admin: &Client, collection: &str, name: &str, more: &Value) -> i64 {
    let kind = match collection {
        EVENTS => "Event",
        path if path.ends_with("secrets") => "Secret",
        SERVICE_ACCOUNTS => "ServiceAccount",
        _ => "ConfigMap",
    };
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object["metadata"]["name"] = name.into();
    let path = format!("{collection}/{name}");
    let mut answer = admin.request("PUT", &path, object.to_string()).await;
    if answer.code() == 404 {
        answer = admin.request("POST", collection, object.to_string()).await;
    }
    assert!(
        matches!(answer.code(), 200 | 201),
        "{path}: {}",
        answer.text()
    );
    revision_of(&answer.json())
}

fn revision_of(object: &Value) -> i64 {
    let revision = object["metadata"]["resourceVersion"].as_str();
    revision
        .unwrap_or_else(|| panic!("{object}"))
        .parse()
        .unwrap()
}

pub async fn list_revision(admin: &Client, collection: &str) -> i64 {
    revision_of(&admin.get(collection).await.json())
}

pub fn watch_path(collection: &str, from: i64) -> String {
    format!("{collection}?watch=true&allowWatchBookmarks=true&resourceVersion={from}")
}

/// One event: what it is, its revision and the object's name.
pub type Seen = (EventKind, i64, String);

/// The events of a watch, in either format.
pub struct Events {
    stream: Streaming,
    frames: Frames,
    pub seen: Vec<Seen>,
    bytes: BytesMut,
}

impl Events {
    pub async fn open(client: &Client, path: &str) -> Self {
        let stream = client.open(path).await;
        assert_eq!(stream.status, 200, "{path}");
        let format = FrameFormat::of_answer(&stream.headers).unwrap();
        Self {
            stream,
            frames: Frames::new(format),
            seen: Vec::new(),
            bytes: BytesMut::new(),
        }
    }

    /// Reads once; whether there may be more. `None`: the watch is told that it is too old.
    pub async fn next(&mut self) -> Option<bool> {
        match self.try_read().await {
            Err(why) if why.contains("too old") => None,
            read => Some(read.unwrap_or_else(|why| panic!("no clean end: {why}"))),
        }
    }

    async fn read(&mut self) -> bool {
        let read = self.try_read().await;
        read.unwrap_or_else(|why| panic!("no clean end: {why}"))
    }

    /// Reads once; whether there may be more.
    async fn try_read(&mut self) -> Result<bool, String> {
        let piece = self.stream.next_chunk(LONG).await;
        let Some(piece) = piece.map_err(|error| format!("{error:#}"))? else {
            return Ok(false);
        };
        let seen = &mut self.seen;
        self.bytes.extend_from_slice(&piece);
        let mut each = |event: Result<Event<'_>, UnknownFrame>| match event {
            Ok(Event::Object(event)) => {
                seen.push((event.kind, event.revision, event.name.into_owned()));
                Ok(FrameFate::Passes)
            }
            _ => Err(format!("not understood: {piece:?}")),
        };
        let mut left = piece.clone();
        while self.frames.next(&mut left, true, &mut each)?.is_some() {}
        Ok(true)
    }

    pub async fn until(&mut self, revision: i64) {
        while self.seen.iter().all(|(_, seen, _)| *seen < revision) {
            assert!(
                self.read().await,
                "ended before {revision}: {:?}",
                self.seen
            );
        }
    }

    pub async fn rest(self) -> (Vec<Seen>, Bytes) {
        let rest = self.try_rest().await;
        rest.unwrap_or_else(|why| panic!("no clean end: {why}"))
    }

    /// The rest, or why the stream did not end cleanly.
    pub async fn try_rest(mut self) -> Result<(Vec<Seen>, Bytes), String> {
        while self.try_read().await? {}
        match self.frames.kept() == 0 {
            true => Ok((self.seen, self.bytes.freeze())),
            false => Err("cut in the middle of a frame".to_owned()),
        }
    }
}

/// Waits until the proxy knows that these many watched resources are stored in its etcd, and their kinds.
pub async fn until_proved(proxy: &Proxy, resources: usize) {
    eventually(
        "it is proved where resources are stored",
        LONG,
        async || {
            let log = proxy.log_tail();
            let proofs = log.matches("stored_here: Some(true), kind: Some(");
            (proofs.count() >= resources).then_some(()).ok_or(log)
        },
    )
    .await;
}

pub fn last_bookmark(seen: &[Seen]) -> Option<i64> {
    let (kind, revision, _) = seen.last()?;
    (*kind == EventKind::Bookmark).then_some(*revision)
}

/// An apiserver that keeps Events and PodTemplates in another etcd, and LimitRanges in a copy of the ground's.
struct ThreeEtcds {
    server: KubeApiServer,
    copy: Etcd,
    /// Of a LimitRange, which has the same key and revision in the first etcd.
    moved: i64,
    _other: Etcd,
    ground: Ground,
}

impl ThreeEtcds {
    async fn new() -> Self {
        let mut ground = Ground::bootstrapped().await;
        let moved = json!({"apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "moved", "namespace": "default"}, "spec": {"limits": []}});
        let mut etcd = ground.etcd.client().await;
        let moved = kept::write(&mut etcd, "/registry/limitranges/default/moved", &moved).await;
        ground.etcd.back_up().await;
        let other = Etcd::start(ground.dir.path(), &ground.pki).await;
        let mut copy = Etcd::start(ground.dir.path(), &ground.pki).await;
        copy.become_copy_of(&ground.etcd).await;
        let (of_other, of_copy) = (other.endpoint(), copy.endpoint());
        let overrides = format!(
            "--etcd-servers-overrides=/events#{of_other},/podtemplates#{of_other},/limitranges#{of_copy}"
        );
        let kube = ground.kube("cp-a").arg(&overrides);
        Self {
            server: KubeApiServer::start(kube, &ground.pki).await,
            copy,
            moved,
            _other: other,
            ground,
        }
    }
}

#[tokio::test]
async fn a_watch_that_the_proxy_ends_is_told_how_far_it_has_come() {
    let mut etcds = ThreeEtcds::new().await;
    no_revision_of_one_etcd_is_given_for_what_was_moved_to_a_copy_of_it(&etcds).await;
    let ThreeEtcds { ground, server, .. } = &mut etcds;
    no_revision_of_one_etcd_is_given_for_what_is_in_another(ground, server).await;
    a_quiet_one_is_told_the_newest_revision_and_goes_on_from_there(ground, server).await;
    bookmarks_of_the_apiserver_are_understood_and_followed_by_ours(ground, server).await;
    a_crd_that_is_named_like_a_built_in_resource_does_not_hide_its_changes(ground, server).await;
    etcd_may_restart_during_the_drain_and_what_it_compacted_proves_nothing(ground, server).await;
}

async fn a_quiet_one_is_told_the_newest_revision_and_goes_on_from_there(
    ground: &Ground,
    server: &KubeApiServer,
) {
    let admin = server.admin();
    let mut proxy = proxy(ground, server, "4s").await;
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    let from = list_revision(admin, CONFIG_MAPS).await;
    let client = proxy.client(&ground.pki).cert("admin");
    let mut watches = Vec::new();
    for client in [
        client.http1(),
        client.http2(),
        client.header("accept", PROTOBUF),
    ] {
        for collection in [CONFIG_MAPS, "/api/v1/configmaps"] {
            watches.push(Events::open(&client, &watch_path(collection, from)).await);
        }
    }
    let plain = format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}");
    let without = Events::open(&client, &plain).await;
    let change = write(admin, CONFIG_MAPS, "a", &json!({"data": {"x": "1"}})).await;
    for watch in &mut watches {
        watch.until(change).await;
    }
    let mut newest = 0;
    for name in ["x", "y", "x"] {
        newest = write(admin, SECRETS, name, &json!({})).await;
    }
    assert_eq!(open_watches(&proxy, "true").await, 6.0);
    assert_eq!(open_watches(&proxy, "false").await, 1.0);
    proxy.process().signal(Signal::Term);
    let mut bookmarks = BTreeSet::new();
    for watch in watches {
        let (seen, bytes) = watch.rest().await;
        let revision = last_bookmark(&seen)
            .unwrap_or_else(|| panic!("no bookmark: {seen:?}\n{}", proxy.log_tail()));
        assert!(revision >= newest, "{revision} < {newest}");
        assert!(contains(&bytes, revision.to_string().as_bytes()) && contains(&bytes, b"BOOKMARK"));
        bookmarks.insert(revision);
    }
    let (seen, _) = without.rest().await;
    assert!(
        seen.iter().all(|(kind, ..)| *kind == EventKind::Change),
        "{seen:?}"
    );
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));

    let next = write(admin, CONFIG_MAPS, "a", &json!({"data": {"x": "2"}})).await;
    for revision in bookmarks {
        let mut again = Events::open(admin, &watch_path(CONFIG_MAPS, revision)).await;
        again.until(next).await;
        assert_eq!(again.seen, [(EventKind::Change, next, "a".to_owned())]);
    }
}

async fn open_watches(proxy: &Proxy, followed: &str) -> f64 {
    proxy
        .metric("kube_interop_proxy_watches", &[("bookmarks", followed)])
        .await
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

async fn bookmarks_of_the_apiserver_are_understood_and_followed_by_ours(
    ground: &Ground,
    server: &KubeApiServer,
) {
    let admin = server.admin();
    let mut proxy = Proxy::start(
        ground
            .proxy("a", server.addr())
            .set("watch.bookmarkOnShutdown", "true")
            .set("shutdown.delay", "10s")
            .until(Until::Ready),
    )
    .await;
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    let client = proxy.client(&ground.pki).cert("admin");
    let mut watches = Vec::new();
    for client in [client.fresh(), client.header("accept", PROTOBUF)] {
        // kube-apiserver sends a bookmark two seconds before the end.
        let path = format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=6");
        for from in ["&resourceVersion=0", ""] {
            watches.push(Events::open(&client, &format!("{path}{from}")).await);
        }
    }
    // 1.20 sends none to a watch that nothing happened in.
    write(admin, CONFIG_MAPS, "a", &json!({"data": {"x": "1"}})).await;
    let other = write(admin, SECRETS, "other", &json!({})).await;
    proxy.process().signal(Signal::Term);
    // From 1.21 on its own bookmarks follow etcd's progress: they may be as new as ours.
    let by_progress = server.abilities().meets(Need::Since(21));
    let mut ended = Vec::new();
    for watch in watches {
        let (seen, _) = watch.rest().await;
        let first = seen.iter().find(|(kind, ..)| *kind == EventKind::Bookmark);
        ended.push(match (first, last_bookmark(&seen)) {
            (Some(first), Some(last)) => last >= other && (by_progress || first.1 < other),
            _ => panic!("{seen:?}"),
        });
    }
    assert_eq!(ended, [true; 4]);
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

async fn no_revision_of_one_etcd_is_given_for_what_is_in_another(
    ground: &Ground,
    server: &KubeApiServer,
) {
    let admin = server.admin();
    let event = |count| json!({"involvedObject": {"namespace": "default"}, "count": count});
    for (id, named) in [("a", "[events]"), ("b", "[]")] {
        let options = ground
            .proxy(id, server.addr())
            .set("watch.bookmarkOnShutdown", "true")
            .set("etcd.otherResources", named)
            .set("shutdown.drain", "4s");
        let mut proxy = Proxy::start(options.until(Until::Ready)).await;
        write(admin, EVENTS, "e", &event(1)).await;
        write(admin, CONFIG_MAPS, "a", &json!({})).await;
        let client = proxy.client(&ground.pki).cert("admin");
        let mut watches = Vec::new();
        for collection in [EVENTS, "/apis/events.k8s.io/v1/events", CONFIG_MAPS] {
            let list = admin.get(collection).await.json();
            watches.push(Events::open(&client, &watch_path(collection, revision_of(&list))).await);
        }
        // There is none: the list's own revision says that it is another etcd.
        let path = watch_path(POD_TEMPLATES, list_revision(admin, POD_TEMPLATES).await);
        let empty = Events::open(&client, &path).await;
        let in_other = write(admin, EVENTS, "e", &event(2)).await;
        let change = write(admin, CONFIG_MAPS, "a", &json!({"data": {"id": id}})).await;
        for (watch, revision) in watches.iter_mut().zip([in_other, in_other, change]) {
            watch.until(revision).await;
        }
        let of_round = format!("elsewhere-{id}");
        write(admin, SECRETS, &of_round, &json!({})).await;
        proxy.process().signal(Signal::Term);
        let mut bookmarks = Vec::new();
        for watch in watches.into_iter().chain([empty]) {
            bookmarks.push(last_bookmark(&watch.rest().await.0).is_some());
        }
        assert_eq!(
            bookmarks,
            [false, false, true, false],
            "otherResources: {named}"
        );
        assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
    }
}

/// The configuration does not name it.
async fn no_revision_of_one_etcd_is_given_for_what_was_moved_to_a_copy_of_it(etcds: &ThreeEtcds) {
    let ThreeEtcds { ground, server, .. } = etcds;
    let admin = server.admin();
    for name in ["before-1", "before-2", "before-3"] {
        write(admin, SECRETS, name, &json!({})).await;
    }
    let mut proxy = proxy(ground, server, "4s").await;
    let client = proxy.client(&ground.pki).cert("admin");
    let from = list_revision(admin, LIMIT_RANGES).await;
    assert!(from < list_revision(admin, SECRETS).await);
    let quiet = Events::open(&client, &watch_path(LIMIT_RANGES, from)).await;
    let path = format!("{}&timeoutSeconds=6", watch_path(LIMIT_RANGES, 0));
    let mut existing = Events::open(&client, &path).await;
    existing.until(etcds.moved).await;
    let path = watch_path(SECRETS, list_revision(admin, SECRETS).await);
    let secrets = Events::open(&client, &path).await;
    write(admin, SERVICE_ACCOUNTS, "x", &json!({})).await;
    proxy.process().signal(Signal::Term);
    // Later versions tell, shortly before the end, where they are in the other one.
    let of_copy = etcds.copy.client().await.status().await.unwrap();
    let of_copy = of_copy.header().unwrap().revision();
    let mut given = Vec::new();
    for watch in [quiet, existing, secrets] {
        let bookmark = last_bookmark(&watch.rest().await.0);
        given.push(bookmark.is_some_and(|revision| revision > of_copy));
    }
    assert_eq!(given, [false, false, true], "{}", proxy.log_tail());
}

async fn etcd_may_restart_during_the_drain_and_what_it_compacted_proves_nothing(
    ground: &mut Ground,
    server: &KubeApiServer,
) {
    let admin = server.admin();
    let mut proxy = proxy(ground, server, "12s").await;
    let client = proxy.client(&ground.pki).cert("admin");
    let early = list_revision(admin, CONTROLLERS).await;
    let mut etcd = ground.etcd.client().await;
    let compacted = write(admin, CONFIG_MAPS, "a", &json!({})).await;
    etcd.compact(compacted, None).await.unwrap();
    let late = write(admin, CONFIG_MAPS, "a", &json!({"data": {"x": "1"}})).await;
    let mut watches = Vec::new();
    // So many that some of them end late.
    let of_maps = [(CONFIG_MAPS, late); 10];
    let of_none = [(CONTROLLERS, early), (CONTROLLERS, late)];
    for (collection, from) in of_none.into_iter().chain(of_maps) {
        watches.push(Events::open(&client, &watch_path(collection, from)).await);
    }
    let newest = write(admin, SECRETS, "newest", &json!({})).await;
    // What it cannot remove ends during the drain.
    ground.etcd.kill();
    proxy.process().signal(Signal::Term);
    eventually("it could not leave", LONG, async || {
        proxy
            .log_tail()
            .contains("the live key could not be removed")
    })
    .await;
    ground.etcd.start_again().await;
    let mut given = Vec::new();
    for watch in watches {
        let bookmark = last_bookmark(&watch.rest().await.0);
        given.push(bookmark.map(|revision| revision >= newest));
    }
    let expected = [&[None][..], &[Some(true); 11]].concat();
    assert_eq!(given, expected, "{}", proxy.log_tail());
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

/// The apiserver lags behind etcd when the proxy stops.
async fn a_crd_that_is_named_like_a_built_in_resource_does_not_hide_its_changes(
    ground: &Ground,
    server: &mut KubeApiServer,
) {
    const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut proxy = proxy(ground, server, "6s").await;
    let policy = |name: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"podSelector": {}}})
    };
    let names = json!({"plural": "networkpolicies", "singular": "networkpolicy", "kind": "NetworkPolicy",
        "listKind": "NetworkPolicyList"});
    let version = json!({"name": "v9", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "networkpolicies.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, x"}},
        "spec": {"group": "networking.k8s.io", "scope": "Namespaced", "names": names, "versions": [version]},
    });
    let admin = server.admin();
    let made = admin.request("POST", DEFINITIONS, definition.to_string());
    assert_eq!(made.await.code(), 201);
    eventually("the proxy knows the definition", LONG, async || {
        proxy.statusz().await["custom"]["definitions"]["networking.k8s.io"].is_array()
    })
    .await;
    let client = proxy.client(&ground.pki).cert("admin");
    let path = watch_path(POLICIES, list_revision(admin, POLICIES).await);
    let mut watch = Events::open(&client, &path).await;
    let seen = policy("seen").to_string();
    let seen = admin.request("POST", POLICIES, seen).await;
    watch.until(revision_of(&seen.json())).await;
    write(admin, CONFIG_MAPS, "something-else", &json!({})).await;
    until_proved(&proxy, 1).await;
    server.process().signal(Signal::Stop);
    // As another apiserver does it.
    let key = "/registry/networkpolicies/default/missed";
    let mut etcd = ground.etcd.client().await;
    let missed = kept::write(&mut etcd, key, &policy("missed")).await;
    kept::write(&mut etcd, "/registry/elsewhere", &json!({})).await;
    proxy.process().signal(Signal::Term);
    let (seen, _) = watch.rest().await;
    let bookmark = last_bookmark(&seen);
    server.process().signal(Signal::Cont);
    server.wait_ready().await;
    assert_eq!(bookmark, Some(missed - 1), "{seen:?}");
}
