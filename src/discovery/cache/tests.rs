use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request};
use serde_json::{Value, json};

use super::*;
use crate::client::fake::{Reply, Server};

const LONG: Duration = Duration::from_secs(10);

/// A peer that answers as it is told, and remembers what it was asked.
struct Peer {
    server: Server,
    asked: Arc<Mutex<Vec<Request<Bytes>>>>,
}

impl Peer {
    async fn new(answer: impl Fn(&str, &HeaderMap) -> Reply + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<_>>> = Arc::default();
        let seen = asked.clone();
        let server = Server::start(move |request| {
            let reply = answer(request.uri().path(), request.headers());
            seen.lock().unwrap().push(request);
            reply
        })
        .await;
        Self { server, asked }
    }

    async fn read(
        &self,
        cache: &mut DocumentCache,
        want: &WantedDocuments,
    ) -> Result<(), ReadError> {
        let mut client = self.server.client(HeaderMap::new(), LONG);
        cache.read(&mut client, want).await
    }

    /// Paths asked for since the last call.
    fn paths(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked
            .iter()
            .map(|request| request.uri().path().to_owned())
            .collect()
    }
}

fn of(group: &str, version: &str) -> GroupVersion {
    GroupVersion {
        group: group.to_owned(),
        version: version.to_owned(),
    }
}

fn want(group_versions: &[(&str, &str)]) -> WantedDocuments {
    let group_versions = group_versions.iter();
    WantedDocuments {
        group_versions: group_versions.map(|it| of(it.0, it.1)).collect(),
        openapi: BTreeSet::new(),
    }
}

fn list(resources: &[&str]) -> Value {
    let resource =
        |name: &&str| json!({"name": name, "namespaced": true, "kind": "Thing", "verbs": ["get"]});
    json!({"kind": "APIResourceList", "resources": resources.iter().map(resource).collect::<Vec<_>>()})
}

/// All that was read.
fn served(cache: &DocumentCache) -> Vec<String> {
    let all = cache.versions.iter();
    let all = all.map(|(of, version)| (of.group.clone(), version.clone()));
    let all = Document::from_iter(all).served();
    let document = cache.document(&all);
    let mut names = Vec::new();
    for group in &document.groups {
        for version in &group.versions {
            let resources = version.resources.iter();
            names.extend(
                resources.map(|it| format!("{}/{}/{}", group.name(), version.name, it.name)),
            );
        }
    }
    names
}

/// `/apis` lies about what there is.
fn documents(path: &str, broken: bool) -> Reply {
    let document = match path {
        "/apis" => json!({"kind": "APIGroupList", "groups": []}),
        "/api/v1" => list(&["pods", "pods/log"]),
        "/apis/batch/v1" if broken => return Reply::new(500, &[], "broken"),
        "/apis/batch/v1" => list(&["jobs"]),
        "/apis/apps/v1" => list(&["deployments"]),
        _ => return Reply::new(404, &[], "404 page not found"),
    };
    Reply::new(
        200,
        &[("content-type", "application/json")],
        document.to_string(),
    )
}

#[tokio::test]
async fn only_the_documents_of_wanted_group_versions_are_read() {
    let peer = Peer::new(|path, _| documents(path, false)).await;
    let mut cache = DocumentCache::default();
    let some = want(&[("batch", "v1"), ("", "v1")]);
    peer.read(&mut cache, &some).await.unwrap();
    assert_eq!(peer.paths(), ["/apis", "/api/v1", "/apis/batch/v1"]);
    assert_eq!(served(&cache), ["/v1/pods", "batch/v1/jobs"]);
    let fewer = want(&[("batch", "v1")]);
    peer.read(&mut cache, &fewer).await.unwrap();
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
}

#[tokio::test]
async fn of_documents_only_what_is_wanted_is_taken() {
    let document = |path: &str| match path {
        "/apis" => json!({"groups": []}),
        _ => list(&[
            "pods",
            "pods/log",
            "pods/status",
            "nodes",
            "nodes/status",
            "secrets",
        ]),
    };
    let peer = Peer::new(move |path, _| Reply::new(200, &[], document(path).to_string())).await;
    let mut cache = DocumentCache::default();
    peer.read(&mut cache, &want(&[("", "v1")])).await.unwrap();
    let wanted: ServedSet = [
        ("pods", ""),
        ("pods", "log"),
        ("nodes", "status"),
        ("gone", ""),
    ]
    .map(|(resource, subresource)| {
        let gvr = GvrRef {
            group: "",
            version: "v1",
            resource,
            subresource,
        };
        gvr.owned()
    })
    .into();
    let mut expected = wanted.clone();
    expected.retain(|gvr| gvr.resource != "gone");
    assert_eq!(cache.document(&wanted).served(), expected);
    assert_eq!(cache.document(&ServedSet::new()), Document::default());
}

#[tokio::test]
async fn groups_and_versions_are_in_the_servers_order() {
    let peer = Peer::new(move |path, _| {
        let versions = ["v2", "v2beta1", "v1"].map(|version| json!({"version": version}));
        let document = match path {
            "/apis" => json!({"groups": [
                {"name": "unwanted", "versions": versions},
                {"name": "batch", "versions": versions},
                {"name": "apps", "versions": [{"version": "v1"}]},
            ]}),
            _ => list(&["jobs"]),
        };
        Reply::new(200, &[], document.to_string())
    })
    .await;
    let mut cache = DocumentCache::default();
    let all = want(&[
        ("", "v1"),
        ("apps", "v1"),
        ("batch", "v1"),
        ("batch", "v2"),
        ("batch", "v2beta1"),
        ("hidden", "v1"),
        ("hidden", "v2"),
    ]);
    peer.read(&mut cache, &all).await.unwrap();
    let expected = "/v1/jobs batch/v2/jobs batch/v2beta1/jobs batch/v1/jobs apps/v1/jobs hidden/v1/jobs hidden/v2/jobs";
    assert_eq!(served(&cache).join(" "), expected);
}

#[tokio::test]
async fn a_group_version_that_fails_keeps_what_was_read_of_it_and_holds_up_no_other() {
    let broken = Arc::new(Mutex::new(false));
    let is_broken = broken.clone();
    let peer = Peer::new(move |path, _| documents(path, *is_broken.lock().unwrap())).await;
    let mut cache = DocumentCache::default();
    peer.read(&mut cache, &want(&[("batch", "v1")]))
        .await
        .unwrap();
    *broken.lock().unwrap() = true;
    let more = want(&[("batch", "v1"), ("apps", "v1")]);
    let error = peer.read(&mut cache, &more).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/apis/batch/v1 answered 500 Internal Server Error"
    );
    assert_eq!(served(&cache), ["apps/v1/deployments", "batch/v1/jobs"]);
}

#[tokio::test]
async fn what_fails_as_a_whole_changes_nothing() {
    let peer = Peer::new(|path, _| documents(path, false)).await;
    let mut cache = DocumentCache::default();
    let jobs = want(&[("batch", "v1")]);
    peer.read(&mut cache, &jobs).await.unwrap();
    for (status, body) in [(503, "not ready"), (403, "forbidden"), (200, "no document")] {
        let answer = move |_: &str, _: &HeaderMap| Reply::new(status, &[], body);
        let broken = Peer::new(answer).await;
        assert!(broken.read(&mut cache, &jobs).await.is_err());
        assert_eq!(served(&cache), ["batch/v1/jobs"]);
    }
    let gone = Peer::new(|_, _| Reply::Break).await;
    assert!(matches!(
        gone.read(&mut cache, &jobs).await,
        Err(ReadError::Client(_))
    ));
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
}

#[tokio::test]
async fn openapi_is_read_in_the_forms_that_are_wanted_and_let_go_of_afterwards() {
    let peer = Peer::new(|path, headers| match path {
        "/openapi/v2" => {
            let protobuf = headers[ACCEPT]
                .as_bytes()
                .starts_with(b"application/com.github");
            let (etag, body) = if protobuf {
                ("\"p\"", "protobuf")
            } else {
                ("\"j\"", "json")
            };
            match headers.get(IF_NONE_MATCH) {
                Some(known) if known == etag => Reply::new(304, &[], ""),
                _ => Reply::new(200, &[("etag", etag)], body),
            }
        }
        path => documents(path, false),
    })
    .await;
    let mut cache = DocumentCache::default();
    let mut wanted = want(&[("batch", "v1")]);
    wanted.openapi = [
        OpenApiFormat::V3Index,
        OpenApiFormat::V2Protobuf,
        OpenApiFormat::V2Json,
    ]
    .into();
    for _ in 0..2 {
        peer.read(&mut cache, &wanted).await.unwrap();
        assert_eq!(
            peer.paths(),
            [
                "/apis",
                "/apis/batch/v1",
                "/openapi/v2",
                "/openapi/v2",
                "/openapi/v3"
            ]
        );
        assert_eq!(
            cache.openapi(OpenApiFormat::V3Index),
            Some(None),
            "it has none"
        );
        let body = |format| cache.openapi(format).unwrap().unwrap().clone();
        assert_eq!(body(OpenApiFormat::V2Protobuf), "protobuf");
        assert_eq!(body(OpenApiFormat::V2Json), "json");
        assert_eq!(cache.openapi_bytes(), 12);
    }
    wanted.openapi = [OpenApiFormat::V2Json].into();
    peer.read(&mut cache, &wanted).await.unwrap();
    assert_eq!(cache.openapi(OpenApiFormat::V2Protobuf), None);
    assert_eq!(cache.openapi_bytes(), 4);
}

#[tokio::test]
async fn openapi_that_fails_holds_up_no_discovery() {
    let peer = Peer::new(|path, _| match path {
        "/openapi/v3" => Reply::new(500, &[], "broken"),
        path => documents(path, false),
    })
    .await;
    let mut cache = DocumentCache::default();
    let mut wanted = want(&[("batch", "v1")]);
    wanted.openapi = [OpenApiFormat::V3Index].into();
    let error = peer.read(&mut cache, &wanted).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/openapi/v3 answered 500 Internal Server Error"
    );
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
    assert_eq!(cache.openapi(OpenApiFormat::V3Index), None);
}
