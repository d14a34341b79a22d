use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request};
use serde_json::{Value, json};

use super::*;
use crate::client::fake::{Reply, Server};
use crate::kube::gvr::GvrRef;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const LONG: Duration = Duration::from_secs(10);

/// A peer that answers as it is told, and remembers what it was asked.
struct UnionMember {
    server: Server,
    asked: Arc<Mutex<Vec<Request<Bytes>>>>,
}

impl UnionMember {
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

fn want(resources: &[(&str, &str, &str)]) -> WantedDocuments {
    let gvr = |(group, version, resource): &(&str, &str, &str)| {
        let subresource = "";
        GvrRef {
            group,
            version,
            resource,
            subresource,
        }
        .owned()
    };
    WantedDocuments {
        resources: resources.iter().map(gvr).collect(),
        each: false,
        openapi: Vec::new(),
    }
}

/// The same, each group version by its own document.
fn want_each(resources: &[(&str, &str, &str)]) -> WantedDocuments {
    WantedDocuments {
        each: true,
        ..want(resources)
    }
}

fn aggregated(group: &str, version: &str, resources: &[&str]) -> Value {
    let resource = |name: &&str| json!({"resource": name, "responseKind": {"kind": "Thing"}, "scope": "Namespaced", "verbs": ["get"]});
    let resources: Vec<_> = resources.iter().map(resource).collect();
    json!({"items": [{"metadata": {"name": group}, "versions": [
        {"version": version, "resources": resources, "freshness": "Current"}]}]})
}

fn list(resources: &[&str]) -> Value {
    let resource =
        |name: &&str| json!({"name": name, "namespaced": true, "kind": "Thing", "verbs": ["get"]});
    json!({"kind": "APIResourceList", "resources": resources.iter().map(resource).collect::<Vec<_>>()})
}

fn served(cache: &DocumentCache) -> Vec<String> {
    let served = cache.documents().flat_map(|document| document.served());
    served
        .map(|gvr| format!("{}/{}/{}", gvr.group, gvr.version, gvr.resource))
        .collect()
}

/// Aggregated discovery of batch/v1 and of the core group.
fn modern(path: &str, headers: &HeaderMap) -> Reply {
    let document = match path {
        "/api" => aggregated("", "v1", &["pods", "secrets"]),
        "/apis" => aggregated("batch", "v1", &["jobs", "cronjobs"]),
        _ => return Reply::new(404, &[], "404 page not found"),
    };
    let etag = format!("\"{path}\"");
    if headers
        .get(IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == etag.as_bytes())
    {
        return Reply::new(304, &[("etag", &etag)], "");
    }
    let headers = [("content-type", AGGREGATED), ("etag", &*etag)];
    Reply::new(200, &headers, document.to_string())
}

#[tokio::test]
async fn of_aggregated_discovery_only_what_is_wanted_is_kept() {
    let peer = UnionMember::new(modern).await;
    let mut cache = DocumentCache::default();
    peer.read(&mut cache, &want(&[("batch", "v1", "jobs")]))
        .await
        .unwrap();
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
    assert_eq!(
        peer.paths(),
        ["/apis"],
        "nothing of the core group is wanted"
    );
    let both = want(&[("batch", "v1", "jobs"), ("", "v1", "pods")]);
    cache.forget_etags();
    peer.read(&mut cache, &both).await.unwrap();
    assert_eq!(served(&cache), ["/v1/pods", "batch/v1/jobs"]);
    assert_eq!(peer.paths(), ["/apis", "/api"]);
}

#[tokio::test]
async fn groups_that_are_not_wanted_are_not_even_parsed() {
    let mut document = aggregated("batch", "v1", &["jobs"]);
    let unwanted = json!({"versions": "no list", "metadata": {"name": "example.com"}});
    document["items"].as_array_mut().unwrap().push(unwanted);
    let body = document.to_string();
    let peer = UnionMember::new(move |_, _| {
        Reply::new(200, &[("content-type", AGGREGATED)], body.clone())
    })
    .await;
    let mut cache = DocumentCache::default();
    let jobs = want(&[("batch", "v1", "jobs")]);
    peer.read(&mut cache, &jobs).await.unwrap();
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
    let unwanted = want(&[("example.com", "v1", "things")]);
    assert!(peer.read(&mut cache, &unwanted).await.is_err());
}

#[tokio::test]
async fn a_document_that_did_not_change_is_not_sent_again_unless_it_is_doubted() {
    let peer = UnionMember::new(modern).await;
    let mut cache = DocumentCache::default();
    let jobs = want(&[("batch", "v1", "jobs")]);
    for doubted in [true, false, true] {
        if doubted {
            cache.forget_etags();
        }
        peer.read(&mut cache, &jobs).await.unwrap();
        let asked = std::mem::take(&mut *peer.asked.lock().unwrap());
        assert_eq!(asked[0].headers().contains_key(IF_NONE_MATCH), !doubted);
        assert_eq!(asked[0].headers()[ACCEPT], ACCEPT_AGGREGATED);
        assert_eq!(served(&cache), ["batch/v1/jobs"]);
    }
}

/// Discovery from before it was aggregated; `/apis` lies about what there is.
fn legacy(path: &str, broken: bool) -> Reply {
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
async fn of_old_discovery_only_the_documents_of_wanted_group_versions_are_read() {
    let peer = UnionMember::new(|path, _| legacy(path, false)).await;
    let mut cache = DocumentCache::default();
    let some = [("batch", "v1", "jobs"), ("", "v1", "pods")];
    for (want, first) in [(want(&some), &["/apis"][..]), (want_each(&some), &[])] {
        peer.read(&mut cache, &want).await.unwrap();
        assert_eq!(
            peer.paths(),
            [first, &["/api/v1", "/apis/batch/v1"]].concat()
        );
        assert_eq!(served(&cache), ["/v1/pods", "batch/v1/jobs"]);
    }
}

#[tokio::test]
async fn versions_of_a_group_are_in_its_order() {
    let broken = Arc::new(Mutex::new(None));
    let is_broken = broken.clone();
    let peer = UnionMember::new(move |path, _| {
        let versions = ["v2", "v2beta1", "v1"].map(|version| json!({"version": version}));
        let document = match path {
            "/apis/batch" => match *is_broken.lock().unwrap() {
                Some((status, body)) => return Reply::new(status, &[], body),
                None => json!({"name": "batch", "versions": versions}),
            },
            "/apis/hidden" => return Reply::new(404, &[], "404 page not found"),
            _ => list(&["jobs"]),
        };
        Reply::new(200, &[], document.to_string())
    })
    .await;
    let mut cache = DocumentCache::default();
    let version = |group, version| (group, version, "jobs");
    let all = want_each(&[
        version("apps", "v1"),
        version("batch", "v1"),
        version("batch", "v2"),
        version("batch", "v2beta1"),
        version("hidden", "v1"),
        version("hidden", "v2"),
    ]);
    for answer in [None, Some((503, "starting")), Some((200, "no document"))] {
        *broken.lock().unwrap() = answer;
        assert_eq!(peer.read(&mut cache, &all).await.is_ok(), answer.is_none());
        assert!(!peer.paths().contains(&"/apis/apps".to_owned()));
        let groups = cache.documents().flat_map(|document| &document.groups);
        let names = groups.flat_map(|group| {
            let versions = group.versions.iter();
            versions.map(|version| format!("{}/{}", &*group.name, &*version.name))
        });
        let expected = "apps/v1 batch/v2 batch/v2beta1 batch/v1 hidden/v1 hidden/v2";
        assert_eq!(names.collect::<Vec<_>>().join(" "), expected);
    }
}

#[tokio::test]
async fn what_was_read_stays_when_it_is_read_in_another_way_and_fails() {
    let some = [("batch", "v1", "jobs"), ("", "v1", "pods")];
    let old = UnionMember::new(|path, _| legacy(path, false)).await;
    let new = UnionMember::new(modern).await;
    let without_core = UnionMember::new(|path, headers| match path {
        "/api" => Reply::new(503, &[], "starting"),
        path => modern(path, headers),
    })
    .await;
    let starting = UnionMember::new(|_, _| Reply::new(503, &[], "starting")).await;
    let all = ["/v1/pods", "batch/v1/jobs"];
    let mut cache = DocumentCache::default();
    new.read(&mut cache, &want(&some)).await.unwrap();
    assert!(starting.read(&mut cache, &want_each(&some)).await.is_err());
    assert_eq!(served(&cache), all);
    old.read(&mut cache, &want_each(&some)).await.unwrap();
    assert!(starting.read(&mut cache, &want(&some)).await.is_err());
    assert!(without_core.read(&mut cache, &want(&some)).await.is_err());
    assert_eq!(served(&cache), all);
}

#[tokio::test]
async fn a_group_version_that_fails_keeps_what_was_read_of_it_and_holds_up_no_other() {
    let broken = Arc::new(Mutex::new(false));
    let is_broken = broken.clone();
    let peer = UnionMember::new(move |path, _| legacy(path, *is_broken.lock().unwrap())).await;
    let mut cache = DocumentCache::default();
    peer.read(&mut cache, &want(&[("batch", "v1", "jobs")]))
        .await
        .unwrap();
    *broken.lock().unwrap() = true;
    let more = want(&[("batch", "v1", "jobs"), ("apps", "v1", "deployments")]);
    let error = peer.read(&mut cache, &more).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/apis/batch/v1 answered 500 Internal Server Error"
    );
    assert_eq!(served(&cache), ["apps/v1/deployments", "batch/v1/jobs"]);
}

#[tokio::test]
async fn what_fails_as_a_whole_changes_nothing() {
    let peer = UnionMember::new(modern).await;
    let mut cache = DocumentCache::default();
    let jobs = want(&[("batch", "v1", "jobs")]);
    peer.read(&mut cache, &jobs).await.unwrap();
    for (status, body) in [(503, "not ready"), (403, "forbidden"), (200, "no document")] {
        let answer = move |_: &str, _: &HeaderMap| {
            let headers = [("content-type", AGGREGATED)];
            Reply::new(status, &headers, body)
        };
        let broken = UnionMember::new(answer).await;
        assert!(broken.read(&mut cache, &jobs).await.is_err());
        assert_eq!(served(&cache), ["batch/v1/jobs"]);
    }
    let gone = UnionMember::new(|_, _| Reply::Break).await;
    assert!(matches!(
        gone.read(&mut cache, &jobs).await,
        Err(ReadError::Client(_))
    ));
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
}

#[tokio::test]
async fn openapi_is_read_in_the_forms_that_are_wanted_and_let_go_of_afterwards() {
    let peer = UnionMember::new(|path, headers| match path {
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
        path => modern(path, headers),
    })
    .await;
    let mut cache = DocumentCache::default();
    let mut wanted = want(&[("batch", "v1", "jobs")]);
    wanted.openapi = vec![
        OpenApiFormat::V3Index,
        OpenApiFormat::V2Protobuf,
        OpenApiFormat::V2Json,
    ];
    for _ in 0..2 {
        peer.read(&mut cache, &wanted).await.unwrap();
        assert_eq!(
            peer.paths(),
            ["/apis", "/openapi/v3", "/openapi/v2", "/openapi/v2"]
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
    wanted.openapi = vec![OpenApiFormat::V2Json];
    peer.read(&mut cache, &wanted).await.unwrap();
    assert_eq!(cache.openapi(OpenApiFormat::V2Protobuf), None);
    assert_eq!(cache.openapi_bytes(), 4);
}

#[tokio::test]
async fn openapi_that_fails_holds_up_no_discovery() {
    let peer = UnionMember::new(|path, headers| match path {
        "/openapi/v3" => Reply::new(500, &[], "broken"),
        path => modern(path, headers),
    })
    .await;
    let mut cache = DocumentCache::default();
    let mut wanted = want(&[("batch", "v1", "jobs")]);
    wanted.openapi = vec![OpenApiFormat::V3Index];
    let error = peer.read(&mut cache, &wanted).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/openapi/v3 answered 500 Internal Server Error"
    );
    assert_eq!(served(&cache), ["batch/v1/jobs"]);
    assert!(!cache.has_openapi(OpenApiFormat::V3Index));
}
