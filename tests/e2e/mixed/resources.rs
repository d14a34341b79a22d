//! What only the old apiserver serves, through the proxy of the new one: built-in and custom resources, discovery.

use serde_json::json;

use super::{CONFIG_MAPS, Mixed, create};
use crate::routing::real_apiservers::LONGER;
use crate::watches::resources::WIDGETS;
use testkit::cluster::{HPAS, HPAS_IN_DEFAULT, LONG, REROUTED};
use testkit::kubectl::Kubectl;
use testkit::wait::eventually;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

pub(super) async fn what_only_the_old_apiserver_serves_is_served_by_it(mixed: &Mixed) {
    what_the_new_apiserver_lacks_is_served_by_the_old_one(mixed).await;
    objects_of_either_version_are_read_by_the_other(mixed).await;
    custom_resources_are_served_by_the_one_that_knows_them(mixed).await;
    discovery_at_the_new_one_names_what_the_old_one_serves(mixed).await;
}

async fn what_the_new_apiserver_lacks_is_served_by_the_old_one(mixed: &Mixed) {
    let direct = mixed.new.admin();
    assert_eq!(direct.get(HPAS).await.code(), 404);
    assert_eq!(direct.get(SECRETS).await.code(), 404);
    let [_, admin] = mixed.admins();
    let mut watch = admin.open(&format!("{SECRETS}?watch=true")).await;
    assert_eq!(watch.status, 200);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}});
    let made = admin.request("POST", SECRETS, secret.to_string()).await;
    assert_eq!(made.code(), 201, "{}", made.text());
    let mut event = watch.next_event(LONG).await.unwrap().unwrap();
    while event["object"]["metadata"]["name"] != "one" {
        event = watch.next_event(LONG).await.unwrap().unwrap();
    }
    assert_eq!(event["type"], "ADDED");
    let scaler = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"}, "spec": {"maxReplicas": 2,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let made = admin
        .request("POST", HPAS_IN_DEFAULT, scaler.to_string())
        .await;
    assert_eq!(made.code(), 201, "{}", made.text());
    let labels = [("code", "201"), ("resource", "horizontalpodautoscalers")];
    let once = |count| count == 1.0;
    mixed.at_new.until_metric(REROUTED, &labels, once).await;

    // A missing object is missing, and what nobody serves is unknown.
    let missing = admin.get(&format!("{SECRETS}/two")).await;
    assert_eq!(missing.json()["details"]["name"], "two");
    assert_eq!(missing.code(), 404);
    let nobodys = "/apis/nobodys.test/v1/things";
    let (through, straight) = (admin.get(nobodys).await, direct.get(nobodys).await);
    assert_eq!((through.code(), through.text()), (404, straight.text()));
}

async fn objects_of_either_version_are_read_by_the_other(mixed: &Mixed) {
    let [at_old, at_new] = mixed.admins();
    create(&at_old, "by-old").await;
    create(&at_new, "by-new").await;
    for reader in [&at_old, &at_new, mixed.old.admin(), mixed.new.admin()] {
        let list = reader.get(CONFIG_MAPS).await.json();
        let items = list["items"].as_array().unwrap().iter();
        let names: Vec<_> = items.map(|item| &item["metadata"]["name"]).collect();
        for name in ["by-old", "by-new"] {
            assert!(names.contains(&&json!(name)), "{list}");
        }
    }
    // A watch at one of them goes on at the other where it ended.
    let revision = mixed.old.admin().get(CONFIG_MAPS).await.json();
    let revision = revision["metadata"]["resourceVersion"].as_str().unwrap();
    create(&at_old, "later").await;
    for client in [&at_old, &at_new] {
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={revision}");
        let mut watch = client.open(&path).await;
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["object"]["metadata"]["name"], "later", "{event}");
    }
}

async fn custom_resources_are_served_by_the_one_that_knows_them(mixed: &Mixed) {
    let [at_old, at_new] = mixed.admins();
    WIDGETS
        .define(&at_old, [&at_old, &at_new].into_iter())
        .await;
    let path = WIDGETS.path();
    assert_eq!(mixed.new.admin().get(&path).await.code(), 404);
    let mut watch = at_new.open(&format!("{path}?watch=true")).await;
    WIDGETS.create(&at_new, "one", json!({})).await;
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "one", "{event}");
    for _ in 0..20 {
        let list = at_new.get(&path).await;
        assert_eq!(list.code(), 200, "{}", list.text());
    }
    let missing = at_new.get(&format!("{path}/two")).await;
    assert_eq!(missing.code(), 404);
    assert_eq!(missing.json()["details"]["name"], "two");
    WIDGETS.delete(&at_new, "one").await;

    // Gone at the one that knew it is gone.
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.test";
    let deleted = at_new.request("DELETE", definition, "").await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    eventually("nobody serves it", LONGER, async || {
        let answer = at_new.get(&path).await;
        (answer.code() == 404).then_some(()).ok_or(answer.text())
    })
    .await;
}

async fn discovery_at_the_new_one_names_what_the_old_one_serves(mixed: &Mixed) {
    let [_, admin] = mixed.admins();
    eventually("the old one's groups are merged", LONG, async || {
        admin.get("/apis").await.text().contains("\"autoscaling\"")
    })
    .await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let client = admin.header("accept", aggregated);
    for (path, name) in [("/apis", "horizontalpodautoscalers"), ("/api", "secrets")] {
        let answer = client.get(path).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
        assert_eq!(answer.json()["kind"], "APIGroupDiscoveryList");
        assert!(answer.text().contains(name), "{path}: {}", answer.text());
        let straight = mixed.new.admin().header("accept", aggregated);
        let straight = straight.get(path).await;
        assert!(!straight.text().contains(name), "{path}");
    }
    let kubectl = Kubectl::new(
        mixed.at_new.addr(),
        &mixed.ground.pki,
        mixed.ground.dir.path(),
    );
    let kubectl = kubectl.cert(&mixed.ground.pki, "admin");
    kubectl.run(&["create", "secret", "generic", "s"]).await;
    kubectl.run(&["create", "configmap", "c"]).await;
    let seen = kubectl
        .run(&["get", "secrets,configmaps,hpa", "-o", "name"])
        .await;
    for name in ["secret/s", "configmap/c"] {
        assert!(seen.lines().any(|line| line == name), "{seen}");
    }
}
