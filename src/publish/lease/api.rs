//! Leases through the local apiserver's API.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::object;
use crate::client::{Answer, Client, ClientError};

/// How long one request is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing could be done.
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
pub(super) struct Api<'a>(pub(super) &'a mut Client);

/// What became of a writing.
pub(super) enum Written {
    /// It is now so.
    Done(Value),
    /// Another state of the object is newer, or it exists already.
    Conflict,
    /// There is no such object.
    Gone,
}

impl Api<'_> {
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
    ) -> Result<Written, LeaseError> {
        let path = collection(namespace);
        let answer = self.ask(Method::POST, &path, Some(lease)).await?;
        match written(Method::POST, path.clone(), &answer)? {
            // Of the collection: the namespace is missing.
            Written::Gone => Err(failed(Method::POST, path, answer.status)),
            other => Ok(other),
        }
    }

    /// Only if nobody changed it since: `lease` has the resourceVersion that it was read with.
    pub(super) async fn update(
        &mut self,
        namespace: &str,
        name: &str,
        lease: &Value,
    ) -> Result<Written, LeaseError> {
        let path = path(namespace, name);
        let answer = self.ask(Method::PUT, &path, Some(lease)).await?;
        written(Method::PUT, path, &answer)
    }

    /// Only if it is still the same object in the same state.
    pub(super) async fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        uid: &str,
        revision: &str,
    ) -> Result<Written, LeaseError> {
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
    ) -> Result<Answer, ClientError> {
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

fn written(method: Method, path: String, answer: &Answer) -> Result<Written, LeaseError> {
    match answer.status {
        StatusCode::CONFLICT => Ok(Written::Conflict),
        StatusCode::NOT_FOUND => Ok(Written::Gone),
        status if status.is_success() => Ok(Written::Done(parse(path, answer)?)),
        status => Err(failed(method, path, status)),
    }
}

fn parse(path: String, answer: &Answer) -> Result<Value, LeaseError> {
    serde_json::from_slice(&answer.body).map_err(|source| LeaseError::Parse(path, source))
}

fn failed(method: Method, path: String, status: StatusCode) -> LeaseError {
    LeaseError::Status {
        method,
        path,
        status,
    }
}
