//! The allowed differences between two answers to one request, with reasons. All others are failures.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde_json::Value;

use super::generate::Made;
use testkit::client::Response;

/// Response headers that may differ.
const DIFFERENT: &[(&str, &str)] = &[
    ("date", "when"),
    ("audit-id", "drawn anew for each request"),
    ("connection", "of one connection"),
    ("keep-alive", "of one connection"),
    ("transfer-encoding", "of one connection"),
    ("content-length", "looked at by itself"),
];

/// Request headers that an apiserver sees with a proxy and not without, or the other way round.
const SEEN_DIFFERENT: &[(&str, &str)] = &[
    ("x-remote-user", "who asks, as the proxy says it"),
    ("x-remote-group", "who asks, as the proxy says it"),
    ("x-forwarded-for", "the client's address"),
    ("x-kubernetes-peer-proxied", "on the way to another server"),
    ("host", "looked at by itself"),
    ("transfer-encoding", "of one connection"),
    ("connection", "of one connection"),
    ("content-length", "looked at by itself"),
];

/// What differs, in words.
pub fn differences(
    made: &Made,
    direct: &anyhow::Result<Response>,
    through: &anyhow::Result<Response>,
) -> Vec<String> {
    let (direct, through) = match (direct, through) {
        (Ok(direct), Ok(through)) => (direct, through),
        (direct, through) => {
            let told = |answer: &anyhow::Result<Response>| match answer {
                Ok(answer) => format!("{} {}", answer.status, answer.text()),
                Err(error) => format!("{error:#}"),
            };
            return vec![format!(
                "directly: {}; through: {}",
                told(direct),
                told(through)
            )];
        }
    };
    let mut found = Vec::new();
    if direct.status != through.status {
        found.push(format!(
            "status: {} {} against {} {}",
            direct.status,
            direct.text(),
            through.status,
            through.text()
        ));
    }
    let (before, after) = (listed(&direct.headers), listed(&through.headers));
    if before != after {
        found.push(format!("headers: {before:?} against {after:?}"));
    }
    if let Some(length) = length(direct, through, made.method == "HEAD") {
        found.push(length);
    }
    if plain(direct) != plain(through) {
        found.push(format!(
            "body: {:.2000} against {:.2000}",
            direct.text(),
            through.text()
        ));
    }
    found
}

/// Each name with its values in their order.
fn listed(headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if DIFFERENT.iter().all(|(different, _)| name != different) {
            let value = value.as_bytes().escape_ascii().to_string();
            listed.entry(name.to_string()).or_default().push(value);
        }
    }
    listed
}

/// A length need not be told (Go tells it of up to 2 KiB over HTTP/1.1, of up to 4 KiB over HTTP/2), but what is told
/// must be true.
fn length(direct: &Response, through: &Response, head: bool) -> Option<String> {
    let (before, after) = (
        direct.headers.get("content-length"),
        through.headers.get("content-length"),
    );
    let told = match (before, after) {
        (Some(before), Some(after)) => before == after || !head,
        _ => true,
    };
    let right = after.is_none_or(|after| head || *after == through.body.len().to_string().as_str())
        || through.status == 304;
    (!told || !right).then(|| format!("content-length: {before:?} against {after:?}"))
}

/// A body without what is drawn anew for each answer: revisions of the whole cluster, times, UIDs, ages.
fn plain(answer: &Response) -> Vec<u8> {
    let value = match answer.header("content-type") {
        "application/json" => serde_json::from_slice::<Value>(&answer.body).ok(),
        "application/yaml" => serde_yaml::from_slice(&answer.body).ok(),
        _ => None,
    };
    match value {
        Some(mut value) => {
            forget(&mut value);
            value.to_string().into_bytes()
        }
        None => answer.body.to_vec(),
    }
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in ["creationTimestamp", "uid", "time", "resourceVersion"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => {
            items.retain(|item| !item.as_str().is_some_and(is_age));
            items.iter_mut().for_each(forget);
        }
        _ => {}
    }
}

/// As `7s` in a table.
fn is_age(text: &str) -> bool {
    let number = text.trim_end_matches(['s', 'm', 'h']);
    number.len() < text.len() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// What the apiserver saw that differs.
pub fn echoed_differences(direct: &Value, through: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for field in ["method", "path", "bodyLength", "bodySum"] {
        if direct[field] != through[field] {
            found.push(format!(
                "{field}: {} against {}",
                direct[field], through[field]
            ));
        }
    }
    for (what, of) in [
        ("host", host as fn(&Value) -> Value),
        ("user", |echo| echo["user"]["name"].clone()),
        ("headers", |echo| seen(echo)),
    ] {
        let (direct, through) = (of(direct), of(through));
        if direct != through {
            found.push(format!("{what}: {direct} against {through}"));
        }
    }
    found
}

fn host(echo: &Value) -> Value {
    match &echo["authority"] {
        Value::Null => values(echo, "host"),
        authority => vec![authority.clone()].into(),
    }
}

fn seen(echo: &Value) -> Value {
    let mut names: BTreeMap<String, Value> = BTreeMap::new();
    for pair in echo["headers"].as_array().into_iter().flatten() {
        let name = pair[0].as_str().unwrap_or_default();
        if SEEN_DIFFERENT
            .iter()
            .all(|(different, _)| name != *different)
        {
            names.insert(name.to_owned(), values(echo, name));
        }
    }
    serde_json::json!(names)
}

fn values(echo: &Value, name: &str) -> Value {
    let pairs = echo["headers"].as_array().into_iter().flatten();
    pairs
        .filter(|pair| pair[0] == name)
        .map(|pair| pair[1].clone())
        .collect()
}
