//! OpenAPI documents: as short as clients accept, with every served path.

use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::body::{Body, cacheable, full, json as json_answer};
use super::protobuf::Message;
use super::resources::{ServedResource, group_version};
use super::state::State;
use super::status::page_not_found;

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `None`: not a path of OpenAPI.
pub fn answer(state: &State, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let v3 = state.read(|settings| settings.preset.openapi_v3);
    if path == "/openapi/v2" {
        return Some(v2(state, headers));
    }
    match path.strip_prefix("/openapi/v3") {
        Some("") if v3 => Some(json_answer(StatusCode::OK, &v3_index(state))),
        Some(group_version) if v3 => {
            Some(v3_document(state, group_version.trim_start_matches('/')))
        }
        Some(_) => Some(page_not_found()),
        None => None,
    }
}

fn v2(state: &State, headers: &HeaderMap) -> Response<Body> {
    let (version, old) = state.read(|settings| {
        let preset = &settings.preset;
        (preset.git_version.clone(), !preset.openapi_v3)
    });
    let accept = headers
        .get("accept")
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let (media_type, document) = if accept.contains("proto-openapi") {
        // v1.20 leaves it to Go to guess the type.
        let media_type = if old {
            "application/octet-stream"
        } else {
            PROTOBUF
        };
        (media_type, v2_protobuf(state, &version))
    } else if accept.contains("json") || accept.contains("*/*") {
        let media_type = if old {
            "text/plain; charset=utf-8"
        } else {
            "application/json"
        };
        (media_type, v2_json(state, &version))
    } else {
        let mut response = Response::new(full(""));
        *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
        return response;
    };
    cacheable(
        headers,
        media_type,
        &["Accept-Encoding", "Accept"],
        document,
    )
}

fn v2_json(state: &State, version: &str) -> Vec<u8> {
    let document = json!({
        "swagger": "2.0", "info": {"title": "Kubernetes", "version": version},
        "paths": operations(state.served().iter()), "definitions": {},
    });
    document.to_string().into_bytes()
}

/// `openapi.v2.Document` with its `paths`, each without operations.
fn v2_protobuf(state: &State, version: &str) -> Vec<u8> {
    let mut paths = Message::default();
    for served in state.served() {
        let item = Message::default()
            .string(1, &path_of(&served))
            .message(2, &Message::default());
        paths = paths.message(2, &item);
    }
    let info = Message::default()
        .string(1, "Kubernetes")
        .string(2, version);
    Message::default()
        .string(1, "2.0")
        .message(2, &info)
        .message(8, &paths)
        .finish()
}

fn v3_index(state: &State) -> Value {
    let mut paths = Map::new();
    for served in state.served() {
        let path = document_path(&served.group, &served.version);
        let url = format!("/openapi/v3/{path}?hash={}", served.resource.len());
        paths
            .entry(path)
            .or_insert_with(|| json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn v3_document(state: &State, wanted: &str) -> Response<Body> {
    let served = state.served();
    let of_it = served
        .iter()
        .filter(|served| document_path(&served.group, &served.version) == wanted);
    let paths = operations(of_it);
    if paths.is_empty() {
        return page_not_found();
    }
    let version = state.read(|settings| settings.preset.git_version.clone());
    let document = json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": version},
        "paths": paths, "components": {"schemas": {}},
    });
    json_answer(StatusCode::OK, &document)
}

fn document_path(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", group_version(group, version))
}

fn operations<'a>(served: impl Iterator<Item = &'a ServedResource>) -> Map<String, Value> {
    let operation = |served: &ServedResource| {
        let gvk = json!({"group": served.group, "version": served.version, "kind": served.kind});
        json!({"get": {
            "operationId": format!("list{}", served.kind),
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": "list", "x-kubernetes-group-version-kind": gvk,
        }})
    };
    served
        .map(|served| (path_of(served), operation(served)))
        .collect()
}

fn path_of(served: &ServedResource) -> String {
    let namespace = if served.namespaced {
        "namespaces/{namespace}/"
    } else {
        ""
    };
    let root = document_path(&served.group, &served.version);
    format!("/{root}/{namespace}{}", served.resource)
}
