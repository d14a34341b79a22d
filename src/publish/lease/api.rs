//! Leases through the local apiserver's API.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::object;
use crate::client::{Client, ClientError, ClientResponse};

/// How long one request is tried.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{method} {path} answered {status}")]
    Status {
        method: Method,
        path: String,
        status: StatusCode,
    },
    #[error("{0} cannot be read")]
    Parse(String, #[source] serde_json::Error),
    #[error("{0} has no uid or resourceVersion")]
    Versionless(String),
    #[error("{0} changes all the time")]
    Restless(String),
}

/// The answer to a request.
pub(super) enum Answer {
    /// The Lease as read or written, or what is said of its deletion.
    Done(Value),
    /// The Lease has changed since, or exists already.
    Conflict,
    /// There is no such Lease.
    Gone,
}

/// The Leases of any namespace.
pub(super) struct LeaseApi<'a>(pub(super) &'a mut Client);

impl LeaseApi<'_> {
    pub(super) async fn get(&mut self, namespace: &str, name: &str) -> Result<Answer, LeaseError> {
        self.ask(Method::GET, path(namespace, name), None).await
    }

    pub(super) async fn create(
        &mut self,
        namespace: &str,
        lease: &Value,
    ) -> Result<Answer, LeaseError> {
        let (method, path) = (Method::POST, collection(namespace));
        match self.ask(method.clone(), path.clone(), Some(lease)).await? {
            // Of the collection: the namespace is missing.
            Answer::Gone => Err(LeaseError::Status {
                method,
                path,
                status: StatusCode::NOT_FOUND,
            }),
            other => Ok(other),
        }
    }

    /// Only if the Lease has not changed since: `lease` has the resourceVersion that it was read with.
    pub(super) async fn update(
        &mut self,
        namespace: &str,
        name: &str,
        lease: &Value,
    ) -> Result<Answer, LeaseError> {
        let path = path(namespace, name);
        self.ask(Method::PUT, path, Some(lease)).await
    }

    /// Only if UID and resourceVersion still match.
    pub(super) async fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        uid: &str,
        revision: &str,
    ) -> Result<Answer, LeaseError> {
        let path = path(namespace, name);
        let options = object::delete_options(uid, revision);
        self.ask(Method::DELETE, path, Some(&options)).await
    }

    async fn ask(
        &mut self,
        method: Method,
        path: String,
        body: Option<&Value>,
    ) -> Result<Answer, LeaseError> {
        let deadline = Instant::now() + PATIENCE;
        let body = body.map(|value| Bytes::from(value.to_string()));
        let answer = self.0.call(method.clone(), &path, &[], body, deadline);
        let ClientResponse { status, body, .. } = answer.await?;
        match status {
            StatusCode::CONFLICT => Ok(Answer::Conflict),
            StatusCode::NOT_FOUND => Ok(Answer::Gone),
            status if status.is_success() => match serde_json::from_slice(&body) {
                Ok(value) => Ok(Answer::Done(value)),
                Err(source) => Err(LeaseError::Parse(path, source)),
            },
            status => Err(LeaseError::Status {
                method,
                path,
                status,
            }),
        }
    }
}

fn collection(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", collection(namespace))
}
