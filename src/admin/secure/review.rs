//! Asks the local apiserver who a client is and whether it may read metrics: TokenReview, SubjectAccessReview.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::client::{Client, ClientError, ClientMaker};
use crate::local::state::LocalState;
use crate::log_throttle::{LogRateLimit, LogThrottle, chain};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The one path that is reviewed.
pub(super) const PATH: &str = "/metrics";
/// Longest wait for a verdict. Prometheus waits 10 s by default.
const DEADLINE: Duration = Duration::from_secs(5);
/// Reviews at the same time.
const MOST_AT_ONCE: usize = 4;

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
    pub(super) username: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
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
enum ReviewError {
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

pub(super) struct Reviewer {
    maker: Arc<ClientMaker>,
    address: SocketAddr,
    local: Arc<LocalState>,
    turns: Semaphore,
    /// For those who were allowed lately.
    known_turns: Semaphore,
    /// Clients with a connection.
    idle: Mutex<Vec<Client>>,
    throttle: LogThrottle,
}

impl Reviewer {
    /// `maker`: of clients for the local apiserver at `address`.
    pub(super) fn new(
        maker: Arc<ClientMaker>,
        address: SocketAddr,
        local: Arc<LocalState>,
    ) -> Self {
        Self {
            maker,
            address,
            local,
            turns: Semaphore::new(MOST_AT_ONCE),
            known_turns: Semaphore::new(MOST_AT_ONCE),
            idle: Mutex::default(),
            throttle: LogThrottle::default(),
        }
    }

    /// `known`: it was allowed lately.
    pub(super) async fn verdict(&self, subject: Subject<'_>, known: bool) -> Verdict {
        // Strangers can make reviews fail and succeed in turn.
        static LOG_RATE: LogRateLimit = LogRateLimit::new();
        match self.review(subject, known).await {
            Ok(verdict) => {
                if let Some(after) = self.throttle.recovered(&())
                    && LOG_RATE.admit().is_some()
                {
                    tracing::info!(?after, "the apiserver says again who may read metrics");
                }
                verdict
            }
            Err(error) => {
                if matches!(error, ReviewError::Client(ClientError::Refused)) {
                    self.local.refused();
                }
                if self.throttle.should_log((), chain(&error)) && LOG_RATE.admit().is_some() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the apiserver does not say who may read metrics");
                }
                Verdict::Unavailable(error.to_string())
            }
        }
    }

    async fn review(&self, subject: Subject<'_>, known: bool) -> Result<Verdict, ReviewError> {
        // Before it is initialized its RBAC may be empty, and a 403 wrong.
        if !self.local.is_initialized() {
            return Err(ReviewError::NotInitialized);
        }
        let deadline = Instant::now() + DEADLINE;
        let reviewed = async {
            // Made-up tokens must not keep those waiting who were allowed before. A semaphore is never closed.
            let turns = if known {
                &self.known_turns
            } else {
                &self.turns
            };
            let _turn = turns.acquire().await.ok();
            let idle = self.idle().pop();
            let mut client = idle.unwrap_or_else(|| self.maker.client(self.address));
            let verdict = ask(&mut client, subject, deadline).await?;
            self.idle().push(client);
            Ok(verdict)
        };
        match timeout_at(deadline, reviewed).await {
            Ok(Err(ReviewError::Client(ClientError::Timeout(_)))) | Err(_) => {
                Err(ReviewError::Late)
            }
            Ok(reviewed) => reviewed,
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(
    client: &mut Client,
    subject: Subject<'_>,
    deadline: Instant,
) -> Result<Verdict, ReviewError> {
    let user = match subject {
        Subject::User(user) => user,
        Subject::Token(token) => {
            let answer = post(client, TOKEN_REVIEWS, &token_review(token), deadline).await?;
            match authenticated(&answer)? {
                Some(user) => user,
                None => return Ok(Verdict::Unknown),
            }
        }
    };
    let answer = post(client, ACCESS_REVIEWS, &access_review(&user), deadline).await?;
    Ok(match is_allowed(&answer)? {
        true => Verdict::Allowed,
        false => Verdict::Forbidden(user.username),
    })
}

async fn post(
    client: &mut Client,
    path: &str,
    review: &Value,
    deadline: Instant,
) -> Result<Bytes, ReviewError> {
    let body = Bytes::from(review.to_string());
    let post = async |client: &mut Client| {
        let body = Some(body.clone());
        client.call(Method::POST, path, &[], body, deadline).await
    };
    let answer = match post(client).await {
        // The apiserver may have closed the connection meanwhile. A review changes nothing and can be repeated.
        Err(ClientError::Exchange(_)) => {
            client.reset();
            post(client).await
        }
        outcome => outcome,
    }?;
    match answer.status {
        StatusCode::CREATED | StatusCode::OK => Ok(answer.body),
        status => Err(ReviewError::Status(status)),
    }
}

fn token_review(token: &str) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    })
}

fn access_review(user: &User) -> Value {
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
        },
    })
}

/// The user in the answer to a TokenReview.
fn authenticated(answer: &[u8]) -> Result<Option<User>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        authenticated: bool,
        user: User,
    }
    #[derive(Deserialize)]
    struct Review {
        status: Status,
    }
    let Status {
        authenticated,
        user,
    } = serde_json::from_slice::<Review>(answer)?.status;
    Ok((authenticated && !user.username.is_empty()).then_some(user))
}

/// The answer to a SubjectAccessReview.
fn is_allowed(answer: &[u8]) -> Result<bool, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        allowed: bool,
        denied: bool,
    }
    #[derive(Deserialize)]
    struct Review {
        status: Status,
    }
    let Status { allowed, denied } = serde_json::from_slice::<Review>(answer)?.status;
    Ok(allowed && !denied)
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
        let user = authenticated(answer.to_string().as_bytes())
            .unwrap()
            .unwrap();
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
            let user = authenticated(answer.to_string().as_bytes()).unwrap();
            assert_eq!(user, None, "{answer}");
        }
        for (answer, expected) in [
            (json!({"status": {"allowed": true}}), true),
            (json!({"status": {"allowed": true, "reason": "RBAC"}}), true),
            (json!({"status": {}}), false),
            (json!({"status": {"allowed": false}}), false),
            (json!({"status": {"allowed": true, "denied": true}}), false),
        ] {
            let allowed = is_allowed(answer.to_string().as_bytes()).unwrap();
            assert_eq!(allowed, expected, "{answer}");
        }
        for answer in [
            "",
            "{}",
            "[]",
            r#"{"status": null}"#,
            r#"{"status": {"allowed": "true"}}"#,
        ] {
            assert!(is_allowed(answer.as_bytes()).is_err(), "{answer}");
        }
        for answer in ["", "{}", r#"{"status": {"authenticated": 1}}"#] {
            assert!(authenticated(answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
