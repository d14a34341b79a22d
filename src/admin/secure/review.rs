//! Asks the local apiserver who a client is and whether it may read metrics: TokenReview, SubjectAccessReview.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Client, ClientError};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The one path that is reviewed.
pub(super) const PATH: &str = "/metrics";
/// Longest wait for a verdict. Prometheus waits 10 s by default.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Who asks. Has no `Debug`: a token must not get into a log.
pub(super) enum Subject<'a> {
    Token(&'a str),
    /// The owner of a client certificate.
    User(User),
}

/// A user as apiservers write one.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct User {
    #[serde(rename(deserialize = "username", serialize = "user"))]
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// The answer to a TokenReview.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: User,
}

/// The answer to a SubjectAccessReview.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

/// Whether a subject may read metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The token is nobody's.
    Unknown,
    /// This user may not.
    Forbidden(String),
    /// The apiserver did not say; why.
    Unavailable(String),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("it is not initialized")]
    NotInitialized,
    #[error("no answer within {DEADLINE:?}")]
    Late,
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("its answer cannot be read")]
    Unreadable(#[from] serde_json::Error),
}

pub(super) async fn ask(
    mut client: Client,
    subject: Subject<'_>,
    deadline: Instant,
) -> Result<Verdict, ReviewError> {
    let user = match subject {
        Subject::User(user) => user,
        Subject::Token(token) => {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token},
            });
            let status = post(&mut client, TOKEN_REVIEWS, &review, deadline).await?;
            match authenticated(status) {
                Some(user) => user,
                None => return Ok(Verdict::Unknown),
            }
        }
    };
    let review = access_review(&user);
    let status = post(&mut client, ACCESS_REVIEWS, &review, deadline).await?;
    Ok(match is_allowed(status) {
        true => Verdict::Allowed,
        false => Verdict::Forbidden(user.name),
    })
}

/// Returns the status in the answer.
async fn post<S: DeserializeOwned>(
    client: &mut Client,
    path: &str,
    review: &Value,
    deadline: Instant,
) -> Result<S, ReviewError> {
    let body = Some(Bytes::from(review.to_string()));
    let answer = client
        .call(Method::POST, path, HeaderMap::new(), body, deadline)
        .await?;
    match answer.status {
        StatusCode::CREATED | StatusCode::OK => Ok(status(&answer.body)?),
        status => Err(ReviewError::Status(status)),
    }
}

/// An answer that cannot be read is neither a yes nor a no.
fn status<S: DeserializeOwned>(answer: &[u8]) -> serde_json::Result<S> {
    #[derive(Deserialize)]
    struct Review<S> {
        status: S,
    }
    serde_json::from_slice::<Review<S>>(answer).map(|review| review.status)
}

fn access_review(user: &User) -> Value {
    let mut spec = json!(user);
    spec["nonResourceAttributes"] = json!({"path": PATH, "verb": "get"});
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": spec,
    })
}

/// The user of whom a TokenReview says so clearly.
fn authenticated(status: TokenStatus) -> Option<User> {
    let is_clear = status.authenticated && !status.user.name.is_empty();
    is_clear.then_some(status.user)
}

/// Whether a SubjectAccessReview says yes clearly.
fn is_allowed(AccessStatus { allowed, denied }: AccessStatus) -> bool {
    allowed && !denied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_who_the_apiserver_authenticated() {
        let answer = json!({"kind": "TokenReview", "status": {"authenticated": true, "user": {
            "username": "system:serviceaccount:monitoring:prometheus", "uid": "u",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
        }, "audiences": ["https://kubernetes.default.svc"]}});
        let status = status(answer.to_string().as_bytes()).unwrap();
        let user = authenticated(status).unwrap();
        let review = access_review(&user);
        assert_eq!(
            review["spec"],
            json!({
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
                "user": "system:serviceaccount:monitoring:prometheus", "uid": "u",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
            })
        );
    }

    #[test]
    fn anything_but_a_clear_yes_is_a_no() {
        for answer in [
            json!({"status": {}}),
            json!({"status": {"authenticated": false, "error": "expired"}}),
            json!({"status": {"authenticated": false, "user": {"username": "eve"}}}),
            json!({"status": {"authenticated": true, "user": {}}}),
        ] {
            let status = status(answer.to_string().as_bytes()).unwrap();
            assert_eq!(authenticated(status), None, "{answer}");
        }
        for (answer, expected) in [
            (json!({"status": {"allowed": true}}), true),
            (json!({"status": {"allowed": true, "reason": "RBAC"}}), true),
            (json!({"status": {"allowed": true, "denied": false}}), true),
            (json!({"status": {}}), false),
            (json!({"status": {"allowed": false}}), false),
            (json!({"status": {"allowed": true, "denied": true}}), false),
        ] {
            let status = status(answer.to_string().as_bytes()).unwrap();
            assert_eq!(is_allowed(status), expected, "{answer}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_neither_a_yes_nor_a_no() {
        for answer in [
            "",
            "{}",
            "[]",
            r#"{"status": null}"#,
            r#"{"status": {"allowed": "true", "authenticated": 1}}"#,
            r#"{"status": {"denied": "no", "user": {"username": 1}}}"#,
        ] {
            let answer = answer.as_bytes();
            assert!(status::<TokenStatus>(answer).is_err(), "{answer:?}");
            assert!(status::<AccessStatus>(answer).is_err(), "{answer:?}");
        }
    }
}
