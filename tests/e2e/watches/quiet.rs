//! Watches without events get their final bookmark from a list that passed through the same proxy. With a real
//! kube-apiserver v1.20.2 and etcd.

use serde_json::json;

use crate::routing::real_apiservers::options;
use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, PROTOBUF, SECRETS, last_bookmark, list_revision, proxy, watch_path, write,
};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::wait::eventually;

const WIDGETS: &str = "/apis/example.test/v1/namespaces/default/widgets";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const SERVICES: &str = "/api/v1/services";
const PODS: &str = "/api/v1/pods";
const AS_METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

/// A custom resource and one of its objects, that the proxy knows of.
async fn define_widgets(admin: &Client) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.test"},
        "spec": {"group": "example.test", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "ManyWidgets"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let answer = admin
        .request("POST", definitions, definition.to_string())
        .await;
    assert_eq!(answer.code(), 201, "{}", answer.text());
    let forged = json!({"name": "forged", "namespace": "default", "resourceVersion": "1"});
    let widget = json!({"apiVersion": "example.test/v1", "kind": "Widget", "metadata": {"name": "w"},
        "annotations": {"metadata": forged}, "spec": {"metadata": forged, "items": [{"metadata": forged}]}});
    eventually("the custom resource is served", LONG, async || {
        let answer = admin.request("POST", WIDGETS, widget.to_string()).await;
        (answer.code() == 201).then_some(()).ok_or(answer.text())
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_saw_nothing_is_told_the_newest_revision_if_its_resource_was_listed() {
    let ground = Ground::new().await;
    let server = KubeApiServer::start(options(&ground, "cp-a"), &ground.pki).await;
    let admin = server.admin();
    define_widgets(admin).await;
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    write(admin, SECRETS, "a", &json!({})).await;
    let mut proxy = proxy(&ground, &server, "4s").await;
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
    // Each in another form; of cluster roles there are so many that the answer is compressed.
    for (path, header, value) in [
        (CONFIG_MAPS, "accept", "application/json"),
        (SECRETS, "accept", "application/vnd.kubernetes.protobuf"),
        (ROLES, "accept-encoding", "gzip"),
        (WIDGETS, "accept", "application/json"),
        (PODS, "accept", "application/json"),
    ] {
        let answer = client.header(header, value).get(path).await;
        assert_eq!(answer.code(), 200, "{path}");
    }
    let from = list_revision(admin, CONFIG_MAPS).await;
    let mut watches = Vec::new();
    for (path, accept, given) in [
        (CONFIG_MAPS, "application/json", true),
        ("/api/v1/configmaps", PROTOBUF, true),
        (SECRETS, "application/json", true),
        (SECRETS, PROTOBUF, true),
        (ROLES, "application/json", true),
        (WIDGETS, "application/json", true),
        // Nothing of it is known, or there is nothing.
        (SERVICES, "application/json", false),
        (PODS, "application/json", false),
        // A bookmark would have to have another type.
        (CONFIG_MAPS, AS_METADATA, false),
    ] {
        let client = client.header("accept", accept);
        let watch = Events::open(&client, &watch_path(path, from)).await;
        watches.push((path, accept, given, watch));
    }
    let newest = write(
        admin,
        "/api/v1/namespaces/kube-system/configmaps",
        "elsewhere",
        &json!({}),
    )
    .await;
    proxy.process().signal(Signal::Term);
    for (path, accept, given, watch) in watches {
        let (seen, bytes) = watch.rest().await;
        let bookmark = last_bookmark(&seen);
        // A change of another namespace may be seen, or not, before its watch ends.
        let is_newest = bookmark.is_some_and(|revision| revision >= newest - 1);
        assert_eq!(
            is_newest,
            given,
            "{path} as {accept}: {seen:?} {bytes:?}\n{}",
            proxy.log_tail()
        );
        assert_eq!(bookmark.is_some(), given, "{path} as {accept}");
    }
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}
