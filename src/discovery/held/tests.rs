use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request};
use serde_json::{Value, json};

use super::*;
use crate::client::fake::{Reply, Server};
use crate::routing::table::GvrRef;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
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

    async fn read(&self, held: &mut Held, want: &Want) -> Result<(), ReadError> {
        let mut client = self.server.client(HeaderMap::new(), LONG);
        held.read(&mut client, want).await
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

fn want(resources: &[(&str, &str, &str)]) -> Want {
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
    Want {
        resources: resources.iter().map(gvr).collect(),
        openapi: Vec::new(),
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

fn served(held: &Held) -> Vec<String> {
    let served = held.documents().flat_map(|document| document.served());
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
    let peer = Peer::new(modern).await;
    let mut held = Held::default();
    peer.read(&mut held, &want(&[("batch", "v1", "jobs")]))
        .await
        .unwrap();
    assert_eq!(served(&held), ["batch/v1/jobs"]);
    assert_eq!(
        peer.paths(),
        ["/apis"],
        "nothing of the core group is wanted"
    );
    let both = want(&[("batch", "v1", "jobs"), ("", "v1", "pods")]);
    held.doubt();
    peer.read(&mut held, &both).await.unwrap();
    assert_eq!(served(&held), ["/v1/pods", "batch/v1/jobs"]);
    assert_eq!(peer.paths(), ["/apis", "/api"]);
}

#[tokio::test]
async fn a_document_that_did_not_change_is_not_sent_again_unless_it_is_doubted() {
    let peer = Peer::new(modern).await;
    let mut held = Held::default();
    let jobs = want(&[("batch", "v1", "jobs")]);
    for doubted in [true, false, true] {
        if doubted {
            held.doubt();
        }
        peer.read(&mut held, &jobs).await.unwrap();
        let asked = std::mem::take(&mut *peer.asked.lock().unwrap());
        assert_eq!(asked[0].headers().contains_key(IF_NONE_MATCH), !doubted);
        assert_eq!(asked[0].headers()[ACCEPT], ACCEPT_AGGREGATED);
        assert_eq!(served(&held), ["batch/v1/jobs"]);
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
    let peer = Peer::new(|path, _| legacy(path, false)).await;
    let mut held = Held::default();
    let some = want(&[("batch", "v1", "jobs"), ("", "v1", "pods")]);
    peer.read(&mut held, &some).await.unwrap();
    assert_eq!(peer.paths(), ["/apis", "/api/v1", "/apis/batch/v1"]);
    assert_eq!(served(&held), ["/v1/pods", "batch/v1/jobs"]);
}

#[tokio::test]
async fn a_group_version_that_fails_keeps_what_was_read_of_it_and_holds_up_no_other() {
    let broken = Arc::new(Mutex::new(false));
    let told = broken.clone();
    let peer = Peer::new(move |path, _| legacy(path, *told.lock().unwrap())).await;
    let mut held = Held::default();
    peer.read(&mut held, &want(&[("batch", "v1", "jobs")]))
        .await
        .unwrap();
    *broken.lock().unwrap() = true;
    let more = want(&[("batch", "v1", "jobs"), ("apps", "v1", "deployments")]);
    let error = peer.read(&mut held, &more).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/apis/batch/v1 answered 500 Internal Server Error"
    );
    assert_eq!(served(&held), ["apps/v1/deployments", "batch/v1/jobs"]);
}

#[tokio::test]
async fn what_fails_as_a_whole_changes_nothing() {
    let peer = Peer::new(modern).await;
    let mut held = Held::default();
    let jobs = want(&[("batch", "v1", "jobs")]);
    peer.read(&mut held, &jobs).await.unwrap();
    for (status, body) in [(503, "not ready"), (403, "forbidden"), (200, "no document")] {
        let answer = move |_: &str, _: &HeaderMap| {
            let headers = [("content-type", AGGREGATED)];
            Reply::new(status, &headers, body)
        };
        let broken = Peer::new(answer).await;
        assert!(broken.read(&mut held, &jobs).await.is_err());
        assert_eq!(served(&held), ["batch/v1/jobs"]);
    }
    let gone = Peer::new(|_, _| Reply::Break).await;
    assert!(matches!(
        gone.read(&mut held, &jobs).await,
        Err(ReadError::Client(_))
    ));
    assert_eq!(served(&held), ["batch/v1/jobs"]);
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
        path => modern(path, headers),
    })
    .await;
    let mut held = Held::default();
    let mut wanted = want(&[("batch", "v1", "jobs")]);
    wanted.openapi = vec![Form::V3Index, Form::V2Protobuf, Form::V2Json];
    for _ in 0..2 {
        peer.read(&mut held, &wanted).await.unwrap();
        assert_eq!(
            peer.paths(),
            ["/apis", "/openapi/v3", "/openapi/v2", "/openapi/v2"]
        );
        assert_eq!(held.openapi(Form::V3Index), Some(None), "it has none");
        let body = |form| held.openapi(form).unwrap().unwrap().clone();
        assert_eq!(body(Form::V2Protobuf), "protobuf");
        assert_eq!(body(Form::V2Json), "json");
        assert_eq!(held.openapi_bytes(), 12);
    }
    wanted.openapi = vec![Form::V2Json];
    peer.read(&mut held, &wanted).await.unwrap();
    assert_eq!(held.openapi(Form::V2Protobuf), None);
    assert_eq!(held.openapi_bytes(), 4);
}

#[tokio::test]
async fn openapi_that_fails_holds_up_no_discovery() {
    let peer = Peer::new(|path, headers| match path {
        "/openapi/v3" => Reply::new(500, &[], "broken"),
        path => modern(path, headers),
    })
    .await;
    let mut held = Held::default();
    let mut wanted = want(&[("batch", "v1", "jobs")]);
    wanted.openapi = vec![Form::V3Index];
    let error = peer.read(&mut held, &wanted).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/openapi/v3 answered 500 Internal Server Error"
    );
    assert_eq!(served(&held), ["batch/v1/jobs"]);
    assert!(!held.has_openapi(Form::V3Index));
}
