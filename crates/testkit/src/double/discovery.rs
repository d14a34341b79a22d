//! Legacy and aggregated discovery, with kube-apiserver's content negotiation.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::body::{Body, cacheable, json as json_answer};
use super::resources::{ServedResource, group_version, subresource};
use super::state::State;
use super::status::{Status, page_not_found};

/// A group with its versions, preferred first.
type Group = (String, Vec<String>);

/// Answers requests without a resource.
pub fn answer(state: &State, path: &str, headers: &HeaderMap) -> Response<Body> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let core = parts.first() == Some(&"api");
    match parts[..] {
        [""] => json_answer(StatusCode::OK, &json!({"paths": paths(state)})),
        ["api"] | ["apis"] => match negotiate(state, headers) {
            Form::Legacy if core => json_answer(StatusCode::OK, &api_versions(state)),
            Form::Legacy => json_answer(StatusCode::OK, &group_list(state)),
            Form::Aggregated(version) => aggregated(state, core, &version, headers),
            Form::None => Status::not_acceptable().answer(headers),
        },
        ["apis", group] => legacy(headers, group_answer(state, group)),
        ["api", version] => legacy(headers, resource_list(state, "", version)),
        ["apis", group, version] => match resource_list(state, group, version) {
            None if groups(state).iter().any(|(name, _)| name == group) => {
                Status::no_such_resource().answer(headers)
            }
            document => legacy(headers, document),
        },
        // Outside of the API, the answer is the index with another code.
        _ => json_answer(StatusCode::NOT_FOUND, &json!({"paths": paths(state)})),
    }
}

fn legacy(headers: &HeaderMap, document: Option<Value>) -> Response<Body> {
    match (
        document,
        clauses(headers).iter().any(|clause| clause.is_plain()),
    ) {
        (None, _) => page_not_found(),
        (Some(document), true) => json_answer(StatusCode::OK, &document),
        (Some(_), false) => Status::not_acceptable().answer(headers),
    }
}

/// All groups but the core one, in the order of the table.
pub fn groups(state: &State) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for served in state
        .served()
        .into_iter()
        .filter(|served| !served.group.is_empty())
    {
        match groups.iter_mut().find(|(name, _)| *name == served.group) {
            None => groups.push((served.group, vec![served.version])),
            Some((_, versions)) if versions.contains(&served.version) => {}
            Some((_, versions)) => versions.push(served.version),
        }
    }
    groups
}

/// The index `GET /`, which names exactly the served group versions.
fn paths(state: &State) -> Vec<String> {
    let mut paths: Vec<String> = ["/api", "/api/v1", "/apis", "/apis/"]
        .map(str::to_owned)
        .into();
    for (group, versions) in groups(state) {
        paths.extend(
            versions
                .iter()
                .map(|version| format!("/apis/{group}/{version}")),
        );
        paths.push(format!("/apis/{group}"));
    }
    paths.sort();
    let rest = [
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/readyz",
        "/version",
    ];
    paths.extend(rest.map(str::to_owned));
    if state.read(|settings| settings.preset.openapi_v3) {
        paths.push("/openapi/v3".to_owned());
    }
    paths
}

fn api_versions(state: &State) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": state.addr.to_string()}
        ],
    })
}

/// Without hidden groups and versions.
fn listed_groups(state: &State) -> Vec<Group> {
    let listed = groups(state)
        .into_iter()
        .filter_map(|(group, mut versions)| {
            versions.retain(|version| !state.is_hidden(&group, version));
            (!versions.is_empty()).then_some((group, versions))
        });
    listed.collect()
}

/// The list of groups, which may omit served ones.
fn group_list(state: &State) -> Value {
    let listed = listed_groups(state);
    let listed = listed
        .iter()
        .map(|(group, versions)| group_fields(group, versions));
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed.collect::<Vec<_>>()})
}

/// Only a group of which no version is listed answers for itself, with all that is served.
fn group_answer(state: &State, name: &str) -> Option<Value> {
    let known = listed_groups(state).into_iter().chain(groups(state));
    let mut found = known.filter(|(group, _)| group == name);
    found.next().as_ref().map(group_document)
}

fn group_document((group, versions): &Group) -> Value {
    let mut document = group_fields(group, versions);
    document["kind"] = json!("APIGroup");
    document["apiVersion"] = json!("v1");
    document
}

fn group_fields(group: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": group_version(group, version), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

fn resource_list(state: &State, group: &str, version: &str) -> Option<Value> {
    let served = state.served();
    let of_it = served
        .iter()
        .filter(|served| served.group == group && served.version == version);
    let resources: Vec<Value> = of_it.flat_map(legacy_resources).collect();
    (!resources.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": group_version(group, version), "resources": resources,
        })
    })
}

fn legacy_resources(served: &ServedResource) -> Vec<Value> {
    let mut resource = json!({
        "name": served.resource, "singularName": served.singular(), "namespaced": served.namespaced,
        "kind": served.kind, "verbs": served.verbs,
    });
    if !served.short_names.is_empty() {
        resource["shortNames"] = json!(served.short_names);
    }
    let mut resources = vec![resource];
    for name in &served.subresources {
        let (kind, verbs) = subresource(&served.kind, name);
        resources.push(json!({
            "name": format!("{}/{name}", served.resource), "singularName": "",
            "namespaced": served.namespaced, "kind": kind, "verbs": verbs,
        }));
    }
    resources
}

fn aggregated(state: &State, core: bool, version: &str, headers: &HeaderMap) -> Response<Body> {
    let groups = if core {
        vec![(String::new(), vec!["v1".to_owned()])]
    } else if state.read(|settings| settings.hidden_from_aggregated) {
        listed_groups(state)
    } else {
        groups(state)
    };
    let items: Vec<Value> = groups
        .iter()
        .map(|group| aggregated_group(state, group))
        .collect();
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {}, "items": items,
    })
    .to_string();
    let media_type =
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    let mut response = cacheable(headers, &media_type, &["Accept"], document.into_bytes());
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

fn aggregated_group(state: &State, (group, versions): &Group) -> Value {
    let served = state.served();
    let version = |version: &String| {
        let of_it = served
            .iter()
            .filter(|served| served.group == *group && served.version == *version);
        let resources: Vec<Value> = of_it.map(aggregated_resource).collect();
        json!({"version": version, "resources": resources, "freshness": "Current"})
    };
    let versions: Vec<Value> = versions.iter().map(version).collect();
    let metadata = if group.is_empty() {
        json!({})
    } else {
        json!({"name": group})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(served: &ServedResource) -> Value {
    let kind = |kind: &str| json!({"group": "", "version": "", "kind": kind});
    let mut resource = json!({
        "resource": served.resource, "responseKind": kind(&served.kind),
        "scope": if served.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": served.singular(), "verbs": served.verbs,
    });
    if !served.short_names.is_empty() {
        resource["shortNames"] = json!(served.short_names);
    }
    let subresources = served.subresources.iter().map(|name| {
        let (sub_kind, verbs) = subresource(&served.kind, name);
        json!({"subresource": name, "responseKind": kind(&sub_kind), "verbs": verbs})
    });
    let subresources: Vec<Value> = subresources.collect();
    if !subresources.is_empty() {
        resource["subresources"] = json!(subresources);
    }
    resource
}

enum Form {
    Legacy,
    Aggregated(String),
    None,
}

/// The first clause of `Accept` that this server can answer.
fn negotiate(state: &State, headers: &HeaderMap) -> Form {
    let versions = state.read(|settings| settings.preset.aggregated.clone());
    for clause in clauses(headers) {
        if clause.is_plain() {
            return Form::Legacy;
        }
        let aggregated = clause.media_type == "application/json"
            && clause.get("g") == "apidiscovery.k8s.io"
            && clause.get("as") == "APIGroupDiscoveryList"
            && matches!(clause.get("profile"), "" | "nopeer");
        if aggregated && versions.iter().any(|version| version == clause.get("v")) {
            return Form::Aggregated(clause.get("v").to_owned());
        }
    }
    Form::None
}

struct Clause {
    media_type: String,
    parameters: Vec<(String, String)>,
}

impl Clause {
    fn get(&self, name: &str) -> &str {
        let parameter = self.parameters.iter().find(|(key, _)| key == name);
        parameter.map_or("", |(_, value)| value)
    }

    /// Whether a plain JSON document will do. Protobuf counts, though JSON is what this server has.
    fn is_plain(&self) -> bool {
        self.get("as").is_empty()
            && [
                "*/*",
                "application/*",
                "application/json",
                "application/yaml",
                super::status::PROTOBUF,
            ]
            .contains(&self.media_type.as_str())
    }
}

fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let accept = headers.get_all(header::ACCEPT).into_iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let accept = if accept.is_empty() {
        "*/*".to_owned()
    } else {
        accept.join(",")
    };
    accept.split(',').map(clause).collect()
}

fn clause(text: &str) -> Clause {
    let mut parts = text.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default().to_lowercase();
    let parameters = parts.filter_map(|part| {
        let (name, value) = part.split_once('=')?;
        Some((
            name.trim().to_lowercase(),
            value.trim().trim_matches('"').to_owned(),
        ))
    });
    Clause {
        media_type,
        parameters: parameters.collect(),
    }
}
