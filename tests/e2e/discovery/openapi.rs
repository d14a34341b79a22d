//! OpenAPI of real kube-apiservers v1.20.2: their answers, and merging their documents. Steps of the test in
//! `real_apiservers`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use kube_interop_proxy::discovery::openapi::{OpenApiFormat, merge};
use prost::Message;
use serde_json::Value;

use testkit::client::Client;
use testkit::kube::KubeApiServer;
use testkit::pki::Pki;

const V2: &str = "/openapi/v2";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// As newer servers spell it.
const PROTOBUF_SINCE_1_23: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

type Entries<T> = BTreeMap<String, T>;

pub async fn what_v1_20_answers(server: &KubeApiServer, pki: &Pki) {
    let admin = server.admin();
    let json = tags_and_encodings(admin, JSON, "text/plain; charset=utf-8").await;
    let protobuf = tags_and_encodings(admin, PROTOBUF, "application/octet-stream").await;
    assert_ne!(json, protobuf, "each form has a tag of its own");

    // The first clause that is known, whatever the order of preference of the server.
    for (accept, tag) in [
        ("*/*", Some(&json)),
        ("application/*", Some(&json)),
        (PROTOBUF_SINCE_1_23, None),
        ("text/html", None),
        (
            &format!("{PROTOBUF_SINCE_1_23},{PROTOBUF}"),
            Some(&protobuf),
        ),
        (&format!("{JSON};q=0.5,{PROTOBUF}"), Some(&protobuf)),
    ] {
        let answer = admin.header("accept", accept).get(V2).await;
        match tag {
            Some(tag) => assert_eq!(
                (answer.code(), answer.header("etag")),
                (200, tag.as_str()),
                "{accept}"
            ),
            None => assert_eq!((answer.code(), answer.body.len()), (406, 0), "{accept}"),
        }
        assert_eq!(
            vary(&answer.headers),
            ["Accept-Encoding", "Accept"],
            "{accept}"
        );
    }
    let answer = admin.get(V2).await;
    assert_eq!(answer.header("etag"), json, "without Accept");
    assert_eq!(
        admin.request("POST", V2, "").await.code(),
        200,
        "the method does not matter"
    );
    assert_eq!(admin.get("/openapi/v3").await.code(), 404);
    let anonymous = Client::new(server.addr(), pki);
    assert_eq!(anonymous.get(V2).await.code(), 403);
    assert_eq!(anonymous.token("tok-bob").get(V2).await.code(), 200);
}

/// Returns the entity tag.
async fn tags_and_encodings(admin: &Client, accept: &str, media_type: &str) -> String {
    let client = admin.header("accept", accept);
    let whole = client.get(V2).await;
    assert_eq!(
        (whole.code(), whole.header("content-type")),
        (200, media_type)
    );
    assert_eq!(whole.header("content-encoding"), "");
    assert_eq!(whole.header("cache-control"), "no-cache, private");
    assert_eq!(vary(&whole.headers), ["Accept-Encoding", "Accept"]);
    let length = whole.body.len().to_string();
    assert_eq!(whole.header("content-length"), length);
    let tag = whole.header("etag").to_owned();
    let digest = ring::digest::digest(&ring::digest::SHA512, &whole.body);
    let hex = data_encoding::HEXUPPER.encode(digest.as_ref());
    assert_eq!(tag, format!("\"{hex}\""), "the hash of the bytes");

    // One tag for both encodings.
    let gzip = client.header("accept-encoding", "gzip").get(V2).await;
    assert_eq!(
        (gzip.header("content-encoding"), gzip.header("etag")),
        ("gzip", tag.as_str())
    );
    let mut unpacked = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(gzip.body.as_ref());
    reader.read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, whole.body);

    let head = client
        .header("accept-encoding", "gzip")
        .request("HEAD", V2, "")
        .await;
    assert_eq!((head.code(), head.body.len()), (200, 0));
    assert_eq!(
        (
            head.header("content-length"),
            head.header("content-encoding")
        ),
        (length.as_str(), "")
    );
    assert_eq!(head.header("etag"), tag);

    for (asked, code) in [
        (tag.clone(), 304),
        (format!("\"x\", W/{tag}"), 304),
        ("*".to_owned(), 304),
        ("\"x\"".to_owned(), 200),
    ] {
        let answer = client.header("if-none-match", &asked).get(V2).await;
        assert_eq!(
            (answer.code(), answer.header("etag")),
            (code, tag.as_str()),
            "{asked}"
        );
        if code == 304 {
            assert_eq!((answer.body.len(), answer.header("content-type")), (0, ""));
            assert_eq!(vary(&answer.headers), ["Accept-Encoding", "Accept"]);
        }
    }
    let range = client.header("range", "bytes=2-5").get(V2).await;
    assert_eq!((range.code(), &range.body[..]), (206, &whole.body[2..6]));
    tag
}

fn vary(headers: &http::HeaderMap) -> Vec<&str> {
    headers
        .get_all("vary")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect()
}

/// `lacking` serves no autoscaling.
pub async fn what_one_server_lacks_is_added_from_the_other(
    lacking: &KubeApiServer,
    fuller: &KubeApiServer,
) {
    let (of_fuller, of_lacking) = (fuller.abilities(), lacking.abilities());
    let versions = of_fuller.versions_of("autoscaling").len();
    let alike = of_fuller == of_lacking;
    let both = format!("{PROTOBUF_SINCE_1_23},{PROTOBUF}");
    let [json, protobuf] = [JSON, both.as_str()].map(async |accept| {
        let ask = async |server: &KubeApiServer| {
            server.admin().header("accept", accept).get(V2).await.body
        };
        (ask(lacking).await, ask(fuller).await)
    });

    let (local, peer) = json.await;
    let merged = merge(OpenApiFormat::V2Json, &local, &[&peer], autoscaling)
        .unwrap()
        .unwrap();
    let [local, peer, merged_json] = [&local[..], &peer, &merged].map(read_json);
    check(&local, &peer, &merged_json, versions, alike);
    assert_eq!(merged_json.rest, local.rest);
    let missing = references(&merged_json)
        .difference(&merged_json.definitions.keys().cloned().collect())
        .count();
    assert_eq!(missing, 0);
    let explained = &merged_json.definitions["io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler"];
    let kind = &explained["x-kubernetes-group-version-kind"][0];
    assert_eq!(kind["kind"], "HorizontalPodAutoscaler");

    let (local, peer) = protobuf.await;
    let merged = merge(OpenApiFormat::V2Protobuf, &local, &[&peer], autoscaling)
        .unwrap()
        .unwrap();
    let [local, peer, merged] = [&local[..], &peer, &merged].map(read_protobuf);
    check(&local, &peer, &merged, versions, alike);
    assert_eq!(merged.rest, local.rest);
    assert!(merged.paths.keys().eq(merged_json.paths.keys()));
    assert!(merged.definitions.keys().eq(merged_json.definitions.keys()));
}

fn autoscaling(group: &str, _version: &str) -> bool {
    group == "autoscaling"
}

/// A document, and what is in it besides.
struct Read<T, R> {
    paths: Entries<T>,
    definitions: Entries<T>,
    rest: R,
}

/// The servers differ in one group, which has so many `versions`. Those that are `alike` differ in nothing else: the names
/// are the fuller one's. Each server orders what is in an entry in its own way, so that bytes tell whose it is.
fn check<T: PartialEq, R>(
    local: &Read<T, R>,
    peer: &Read<T, R>,
    merged: &Read<T, R>,
    versions: usize,
    alike: bool,
) {
    let is_new = |path: &&String| path.starts_with("/apis/autoscaling/");
    assert_eq!(local.paths.keys().filter(is_new).count(), 0);
    let new = merged.paths.keys().filter(is_new).count();
    // The group's own; of each version its own, four of its resource, and three to watch it in the old way.
    assert_eq!(new, 1 + 8 * versions);
    assert_eq!(peer.paths.keys().filter(is_new).count(), new);
    assert_eq!(merged.paths.len(), local.paths.len() + new);
    assert!(merged.definitions.len() > local.definitions.len() + 13 * versions);
    for (local, peer, merged) in [
        (&local.paths, &peer.paths, &merged.paths),
        (&local.definitions, &peer.definitions, &merged.definitions),
    ] {
        assert!(!alike || merged.keys().eq(peer.keys()));
        assert!(local.keys().all(|name| merged.contains_key(name)));
        for (name, entry) in merged {
            assert!(
                *entry == *local.get(name).unwrap_or_else(|| &peer[name]),
                "{name}"
            );
        }
    }
}

fn read_json(body: &[u8]) -> Read<Value, Value> {
    let mut rest: Value = serde_json::from_slice(body).unwrap();
    let mut take = |part| serde_json::from_value(rest[part].take()).unwrap();
    Read {
        paths: take("paths"),
        definitions: take("definitions"),
        rest,
    }
}

/// The names of all definitions that are referred to.
fn references(document: &Read<Value, Value>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut left: Vec<&Value> = document
        .paths
        .values()
        .chain(document.definitions.values())
        .collect();
    while let Some(value) = left.pop() {
        let name = value["$ref"]
            .as_str()
            .and_then(|name| name.strip_prefix("#/definitions/"));
        names.extend(name.map(str::to_owned));
        left.extend(
            value
                .as_object()
                .into_iter()
                .flat_map(|object| object.values()),
        );
        left.extend(value.as_array().into_iter().flatten());
    }
    assert!(names.len() > 100);
    names
}

fn read_protobuf(body: &[u8]) -> Read<Vec<u8>, [Vec<Vec<u8>>; 3]> {
    let document = Document::decode(body).unwrap();
    assert_eq!(document.swagger, ["2.0"]);
    let entries = |named: Vec<Named>| -> Entries<Vec<u8>> {
        let count = named.len();
        let entries: Entries<_> = named
            .into_iter()
            .map(|named| (named.name, named.value))
            .collect();
        assert_eq!(entries.len(), count, "a name is there once");
        entries
    };
    Read {
        paths: entries(document.paths.unwrap().path),
        definitions: entries(document.definitions.unwrap().additional_properties),
        rest: [
            document.info,
            document.security,
            document.security_definitions,
        ],
    }
}

/// `openapi.v2.Document` of gnostic.
#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, repeated, tag = "1")]
    swagger: Vec<String>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    info: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<Definitions>,
    #[prost(bytes = "vec", repeated, tag = "12")]
    security: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    security_definitions: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Definitions {
    #[prost(message, repeated, tag = "1")]
    additional_properties: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}
