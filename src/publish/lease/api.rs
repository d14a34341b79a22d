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

/// The Leases of any namespace.
pub(super) struct LeaseApi<'a>(pub(super) &'a mut Client);

/// The result of a write.
pub(super) enum WriteResult {
    /// Written, or deleted; the object in the response.
    Done(Value),
    /// The object has changed since, or exists already.
    Conflict,
    /// There is no such object.
    Gone,
}

impl LeaseApi<'_> {
    pub(super) async fn get(
        &mut self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, LeaseError> {
        let path = path(namespace, name);
        let answer = self.ask(Method::GET, &path, None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::OK => Ok(Some(parse(path, &answer)?)),
            status => Err(failed(Method::GET, path, status)),
        }
    }

    pub(super) async fn create(
        &mut self,
        namespace: &str,
        lease: &Value,
    ) -> Result<WriteResult, LeaseError> {
        let path = collection(namespace);
        let answer = self.ask(Method::POST, &path, Some(lease)).await?;
        match written(Method::POST, path.clone(), &answer)? {
            // Of the collection: the namespace is missing.
            WriteResult::Gone => Err(failed(Method::POST, path, answer.status)),
            other => Ok(other),
        }
    }

    /// Only if the Lease has not changed since: `lease` has the resourceVersion that it was read with.
    pub(super) async fn update(
        &mut self,
        namespace: &str,
        name: &str,
        lease: &Value,
    ) -> Result<WriteResult, LeaseError> {
        let path = path(namespace, name);
        let answer = self.ask(Method::PUT, &path, Some(lease)).await?;
        written(Method::PUT, path, &answer)
    }

    /// Only if UID and resourceVersion still match.
    pub(super) async fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        uid: &str,
        revision: &str,
    ) -> Result<WriteResult, LeaseError> {
        let path = path(namespace, name);
        let options = object::delete_options(uid, revision);
        let answer = self.ask(Method::DELETE, &path, Some(&options)).await?;
        written(Method::DELETE, path, &answer)
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ClientResponse, ClientError> {
        let deadline = Instant::now() + PATIENCE;
        let body = body.map(|value| Bytes::from(value.to_string()));
        self.0.call(method, path, &[], body, deadline).await
    }
}

fn collection(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", collection(namespace))
}

fn written(
    method: Method,
    path: String,
    answer: &ClientResponse,
) -> Result<WriteResult, LeaseError> {
    match answer.status {
        StatusCode::CONFLICT => Ok(WriteResult::Conflict),
        StatusCode::NOT_FOUND => Ok(WriteResult::Gone),
        status if status.is_success() => Ok(WriteResult::Done(parse(path, answer)?)),
        status => Err(failed(method, path, status)),
    }
}

fn parse(path: String, answer: &ClientResponse) -> Result<Value, LeaseError> {
    serde_json::from_slice(&answer.body).map_err(|source| LeaseError::Parse(path, source))
}

fn failed(method: Method, path: String, status: StatusCode) -> LeaseError {
    LeaseError::Status {
        method,
        path,
        status,
    }
}
