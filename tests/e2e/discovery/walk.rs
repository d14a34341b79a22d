//! Everything in merged discovery can be used, and both of its formats list the same.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::discovery::documents::{BETA, Mixed, V2, is_listable};
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::double::{v1_20, v1_26, v1_36};
use testkit::streaming::Response;
use testkit::wait::eventually;

#[tokio::test]
async fn everything_that_is_listed_can_be_used() {
    for preset in [v1_20(), v1_26(), v1_36()] {
        let is_legacy = preset.aggregated.is_empty();
        let mixed = Mixed::merged(preset).await;
        let legacy = legacy_lists(&mixed.admin()).await;
        assert!(legacy.contains("/apis/autoscaling/v1/horizontalpodautoscalers"));
        assert!(legacy.contains("/apis/apps/v1/controllerrevisions"));
        for path in &legacy {
            let answer = mixed.admin().get(path).await;
            assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
        }
        if !is_legacy {
            assert_eq!(aggregated_lists(&mixed.admin()).await, legacy);
        }
    }
}

/// A document. On a busy machine a peer may need longer than clients are to wait: then it is refused for the moment.
pub async fn served(client: &Client, path: &str) -> Response {
    let answer = eventually(path, LONGER, async || {
        let answer = client.get(path).await;
        match answer.code() {
            503 => Err(answer.text()),
            _ => Ok(answer),
        }
    });
    let answer = answer.await;
    assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
    answer
}

/// Paths of everything that can be listed, by the legacy documents.
pub async fn legacy_lists(client: &Client) -> BTreeSet<String> {
    let mut documents = vec!["/api/v1".to_owned()];
    let groups = client.get("/apis").await.json();
    for group in groups["groups"].as_array().unwrap() {
        let whole = format!("/apis/{}", group["name"].as_str().unwrap());
        let whole = served(client, &whole).await;
        // An apiserver without the group's APIServices gives them in an order of its own.
        assert_eq!(names(&whole.json()), names(group));
        for version in group["versions"].as_array().unwrap() {
            documents.push(format!(
                "/apis/{}",
                version["groupVersion"].as_str().unwrap()
            ));
        }
    }
    let mut paths = BTreeSet::new();
    for document in documents {
        let answer = served(client, &document).await;
        for resource in answer.json()["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            if !name.contains('/') && is_listable(resource) {
                paths.insert(format!("{document}/{name}"));
            }
        }
    }
    paths
}

/// Of a group's versions.
fn names(group: &Value) -> BTreeSet<&str> {
    let versions = group["versions"].as_array().into_iter().flatten();
    let names = versions.map(|version| version["groupVersion"].as_str().unwrap());
    names.collect()
}

/// The same by aggregated discovery.
async fn aggregated_lists(client: &Client) -> BTreeSet<String> {
    let client = client.header("accept", &format!("{V2},{BETA}"));
    let mut paths = BTreeSet::new();
    for root in ["/api", "/apis"] {
        for group in client.get(root).await.json()["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                assert_eq!(version["freshness"], "Current");
                let version_name = version["version"].as_str().unwrap();
                let base = [root, name, version_name]
                    .into_iter()
                    .filter(|part| !part.is_empty());
                let base = base.collect::<Vec<_>>().join("/");
                let resources = version["resources"].as_array().unwrap().iter();
                let listable = resources.filter(|resource| is_listable(resource));
                paths.extend(
                    listable.map(|resource| {
                        format!("{base}/{}", resource["resource"].as_str().unwrap())
                    }),
                );
            }
        }
    }
    paths
}
