//! Watches without events get their final bookmark, whatever they watch and in which form: the proxy asks the apiserver
//! for the metadata of one object. With real apiservers and etcd.

use bytes::Bytes;
use serde_json::json;

use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, PROTOBUF, SECRETS, last_bookmark, list_revision, proxy, watch_path, write,
};
use crate::watches::{bookmark_rounds, hand_over, resources};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::modern::ModernApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const WIDGETS: &str = "/apis/example.test/v1/namespaces/default/widgets";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const PODS: &str = "/api/v1/pods";
const GADGETS: &str = "/apis/example.test/v1/gadgets";
const OLD_INGRESSES: &str = "/apis/extensions/v1beta1/ingresses";
const JSON: &str = "application/json";
const CBOR: &str = "application/cbor";
const AS_METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const AS_METADATA_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Watches `path` from `from`, and says what it is if it gets no bookmark.
struct Quiet {
    what: String,
    events: Events,
}

impl Quiet {
    async fn open(client: &Client, (path, accept): (&str, &str), from: i64) -> Self {
        let separator = if path.contains('?') { '&' } else { '?' };
        let target =
            format!("{path}{separator}watch=true&allowWatchBookmarks=true&resourceVersion={from}");
        let client = client.header("accept", accept);
        Self {
            what: format!("{path} as {accept}"),
            events: Events::open(&client, &target).await,
        }
    }

    /// The last bookmark, if it is the last event.
    async fn end(self) -> (String, Option<i64>, Bytes) {
        let (seen, bytes) = self.events.rest().await;
        (self.what, last_bookmark(&seen), bytes)
    }
}

#[tokio::test]
async fn watches_of_one_apiserver_are_told_all_and_how_far_they_have_come() {
    let ground = Ground::bootstrapped().await;
    let options = ground.kube("cp-a").betas_of("extensions");
    let mut server = KubeApiServer::start(options, &ground.pki).await;
    one_that_saw_nothing_is_told_the_newest_revision(&ground, &server).await;
    bookmark_rounds::random_writes_while_watches_end_are_never_jumped_over(&ground, &server).await;
    hand_over::watches_wait_for_the_only_apiserver(&ground, &mut server).await;
}

async fn one_that_saw_nothing_is_told_the_newest_revision(ground: &Ground, server: &KubeApiServer) {
    let admin = server.admin();
    for custom in [resources::WIDGETS, resources::GADGETS] {
        custom.define(admin, std::iter::once(admin)).await;
    }
    resources::WIDGETS.create(admin, "w", json!({})).await;
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    write(admin, SECRETS, "a", &json!({})).await;
    let mut proxy = proxy(ground, server, "4s").await;
    let client = proxy.client(&ground.pki).cert("admin");
    eventually("the proxy knows of the definition", LONG, async || {
        client.get(WIDGETS).await;
        let custom = [("decision", "custom")];
        proxy
            .metric("kube_interop_proxy_requests_total", &custom)
            .await
            > 0.0
    })
    .await;
    // The list went straight to the apiserver.
    let from = list_revision(admin, CONFIG_MAPS).await;
    let mut watches = Vec::new();
    for asked in [
        (CONFIG_MAPS, JSON),
        ("/api/v1/configmaps", PROTOBUF),
        ("/api/v1/configmaps?labelSelector=app%3Dx", JSON),
        ("/api/v1/configmaps?fieldSelector=metadata.name%3Dx", JSON),
        (SECRETS, PROTOBUF),
        (ROLES, JSON),
        (WIDGETS, JSON),
        (CONFIG_MAPS, AS_METADATA),
        (CONFIG_MAPS, AS_METADATA_PROTOBUF),
        (CONFIG_MAPS, AS_TABLE),
        (WIDGETS, AS_TABLE),
        (WIDGETS, AS_METADATA),
        // There is nothing.
        (PODS, JSON),
        ("/api/v1/namespaces/default/pods", PROTOBUF),
        (PODS, AS_METADATA_PROTOBUF),
        (PODS, AS_TABLE),
        (GADGETS, JSON),
        (GADGETS, AS_METADATA),
        ("/apis/batch/v1/jobs", JSON),
        ("/apis/networking.k8s.io/v1/ingresses", PROTOBUF),
    ] {
        watches.push(Quiet::open(&client, asked, from).await);
    }
    if server.abilities().serves("extensions/v1beta1") {
        // Kept where those of networking.k8s.io are.
        watches.push(Quiet::open(&client, (OLD_INGRESSES, JSON), from).await);
    }
    let newest = write(
        admin,
        "/api/v1/namespaces/kube-system/secrets",
        "elsewhere",
        &json!({}),
    )
    .await;
    proxy.process().signal(Signal::Term);
    for watch in watches {
        let (what, bookmark, bytes) = watch.end().await;
        // Secrets change once more; a watch of them in another namespace may be told so or not.
        let least = newest - i64::from(!what.starts_with(OLD_INGRESSES));
        assert!(
            bookmark.is_some_and(|revision| revision >= least),
            "{what}: {bookmark:?} < {newest}: {bytes:?}\n{}",
            proxy.log_tail()
        );
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}

/// The formats of today's apiservers, with one of k8s.io/apiserver 0.36. CBOR is passed on as it comes, without a bookmark.
#[tokio::test]
async fn a_watch_in_cbor_passes_unchanged() {
    let ground = Ground::new().await;
    let gate = ["--feature-gates=CBORServingAndStorage=true"];
    let server = ModernApiServer::start(ground.dir.path(), &ground.pki, &ground.etcd, &gate).await;
    let admin = server.admin();
    let options = ground
        .proxy("a", server.addr())
        .set("watch.bookmarkOnShutdown", "true")
        .set("shutdown.drain", "4s");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    let client = proxy.client(&ground.pki).cert("admin");
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    let from = list_revision(admin, CONFIG_MAPS).await;
    let path = watch_path(CONFIG_MAPS, from - 1);
    let mut streams = Vec::new();
    for client in [&client, admin] {
        let stream = client.header("accept", CBOR).open(&path).await;
        assert_eq!(stream.header("content-type"), "application/cbor-seq");
        streams.push(stream);
    }
    let mut events = Vec::new();
    for stream in &mut streams {
        let mut event = stream.next_chunk(LONG).await.unwrap().unwrap().to_vec();
        // The apiserver writes the fields of each in another order.
        event.sort_unstable();
        events.push(event);
    }
    assert_eq!(events[0], events[1]);
    let mut others = Vec::new();
    for accept in [JSON, AS_METADATA, AS_TABLE] {
        others.push(Quiet::open(&client, (CONFIG_MAPS, accept), from).await);
    }
    let put = ground
        .etcd
        .client()
        .await
        .put("/elsewhere", "x", None)
        .await;
    let newest = put.unwrap().header().unwrap().revision();
    proxy.process().signal(Signal::Term);
    for watch in others {
        let (what, bookmark, bytes) = watch.end().await;
        assert!(
            bookmark.is_some_and(|revision| revision >= newest),
            "{what}: {bookmark:?} < {newest}: {bytes:?}\n{}",
            proxy.log_tail()
        );
    }
    let mut rest = Vec::new();
    while let Some(data) = streams[0].next_chunk(LONG).await.expect("a clean end") {
        rest.extend_from_slice(&data);
    }
    assert_eq!(rest, b"", "no bookmark");
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}
