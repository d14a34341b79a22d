//! Checks whether the apiserver accepts the users that this proxy names: with at most three requests for one ConfigMap.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::findings::{self, TrustProblem, UserRecognition};
use crate::client::{self, Client, ClientError, ClientResponse, MakerError};
use crate::config::Config;
use crate::local::maker_as_nobody;
use crate::tls::credentials::Current;

/// The ConfigMap in which kube-apiserver publishes its requestheader names. Unprivileged users may not read it.
pub(crate) const PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// Deadline for one request, retries included.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Maker(#[from] MakerError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Why the apiserver at `apiServer.address` does not trust this proxy; empty if it does.
pub async fn check(config: &Config, credentials: Current) -> Result<Vec<TrustProblem>, CheckError> {
    let names = &config.serving.request_headers;
    let maker = Arc::new(maker_as_nobody(config, credentials)?);
    let mut client = maker.client(config.api_server.address);

    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let answer = get(&mut client, client::identity(names, &invented, &[])?).await?;
    match findings::recognised(names, &invented, answer.status, &answer.body) {
        UserRecognition::Yes => {}
        UserRecognition::No(finding) => return Ok(vec![finding]),
        // All users may read it, so the answer names no user. If the apiserver rejects the same request without the
        // header, it accepted the header.
        UserRecognition::Unnamed => {
            let answer = get(&mut client, HeaderMap::new()).await?;
            if answer.status != StatusCode::UNAUTHORIZED {
                return Ok(vec![TrustProblem::UserAnyway]);
            }
        }
    }
    let internal = client::identity(names, &config.api_server.internal_user, &["system:masters"])?;
    let answer = get(&mut client, internal).await?;
    Ok(findings::compared(names, answer.status, &answer.body))
}

async fn get(client: &mut Client, identity: HeaderMap) -> Result<ClientResponse, ClientError> {
    let headers: Vec<(HeaderName, HeaderValue)> = identity
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    client
        .call(Method::GET, PATH, &headers, None, deadline)
        .await
}
