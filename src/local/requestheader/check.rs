//! Asking the apiserver whether it believes this proxy: three requests at most, all for the same ConfigMap.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::findings::{self, Finding, Recognised};
use crate::client::{self, Answer, Client, ClientError, MakerError};
use crate::config::Config;
use crate::local::maker_as_nobody;
use crate::tls::credentials::Current;

/// Where kube-apiserver says which headers it believes. Nobody may read it without being told so.
pub(crate) const PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// For one request with all its tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing could be found out.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Certificate files.
    #[error(transparent)]
    Maker(#[from] MakerError),
    /// No answer.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What keeps the apiserver at `apiServer.address` from believing this proxy; nothing: it does.
pub async fn check(config: &Config, credentials: Current) -> Result<Vec<Finding>, CheckError> {
    let names = &config.serving.request_headers;
    let maker = Arc::new(maker_as_nobody(config, credentials)?);
    let mut client = maker.client(config.api_server.address);

    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let answer = get(&mut client, client::identity(names, &invented, &[])?).await?;
    match findings::recognised(names, &invented, answer.status, &answer.body) {
        Recognised::Yes => {}
        Recognised::No(finding) => return Ok(vec![finding]),
        // Everybody may read it, so nobody is named. Whom the apiserver would not let in without the header it let in
        // because of the header.
        Recognised::Unnamed => {
            let answer = get(&mut client, HeaderMap::new()).await?;
            if answer.status != StatusCode::UNAUTHORIZED {
                return Ok(vec![Finding::UserAnyway]);
            }
        }
    }
    let internal = client::identity(names, &config.api_server.internal_user, &["system:masters"])?;
    let answer = get(&mut client, internal).await?;
    Ok(findings::compared(names, answer.status, &answer.body))
}

async fn get(client: &mut Client, identity: HeaderMap) -> Result<Answer, ClientError> {
    let headers: Vec<(HeaderName, HeaderValue)> = identity
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    client
        .call(Method::GET, PATH, &headers, None, deadline)
        .await
}
