//! TokenReview and SubjectAccessReview: what they need for non-resource paths.

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::auth::{User, may};
use super::body::{Answer, json as json_answer};
use super::state::{Phase, State};

pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Whether a request is one of them.
pub fn is_review(path: &str, method: &Method) -> bool {
    *method == Method::POST && [TOKEN_REVIEWS, ACCESS_REVIEWS].contains(&path)
}

pub async fn answer(state: &State, path: &str, request: Request<Incoming>) -> Answer {
    let body = request.into_body().collect().await?.to_bytes();
    let mut review: Value = serde_json::from_slice(&body)?;
    review["status"] = match path {
        TOKEN_REVIEWS => token(state, &review["spec"]),
        _ => access(state, &review["spec"]),
    };
    Ok(json_answer(StatusCode::CREATED, &review))
}

fn token(state: &State, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    match state.authenticator.load().of_token(token) {
        Some(user) => json!({
            "authenticated": true,
            "user": {"username": user.name, "uid": user.uid, "groups": user.groups},
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

fn access(state: &State, spec: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let groups = spec["groups"].as_array().into_iter().flatten();
    let user = User {
        name: text(&spec["user"]),
        groups: groups.map(text).collect(),
        ..User::default()
    };
    let path = text(&spec["nonResourceAttributes"]["path"]);
    let allowed = state.read(|settings| {
        let bootstrapped = settings.phase != Phase::Bootstrapping;
        may(&user, &path, &settings.rules, bootstrapped)
    });
    json!({"allowed": allowed})
}
