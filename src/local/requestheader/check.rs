//! Checks whether the apiserver accepts the users that this proxy names: with at most three requests for one ConfigMap,
//! and one more for each name in it that needs to be looked at.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::findings::{self, DoubtfulName, TrustReport, UserRecognition};
use crate::client::{self, Client, ClientError, ClientMaker, ClientResponse, MakerError};
use crate::config::{Config, RequestHeaders};
use crate::kube::requestheader::NameList;
use crate::tls::credentials::Current;

/// The ConfigMap in which kube-apiserver publishes its requestheader names. Unprivileged users may not read it.
pub(crate) const PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// Timeout of one try.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline for one request, retries included.
const PATIENCE: Duration = Duration::from_secs(10);
const MASTERS: &str = "system:masters";

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Maker(#[from] MakerError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Whether the apiserver at `apiServer.address` accepts the users that this proxy names, and which names it publishes.
pub async fn check(config: &Config, credentials: Current) -> Result<TrustReport, CheckError> {
    let name = &config.api_server.server_name;
    // Each request brings its own identity.
    let none = HeaderMap::new();
    let maker = ClientMaker::new(name, credentials, |of| &of.local, none, TIMEOUT)?;
    let mut inquiry = Inquiry {
        client: Arc::new(maker).client(config.api_server.address),
        names: &config.serving.request_headers,
        invented: format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>()),
    };
    inquiry.report(&config.api_server.internal_user).await
}

struct Inquiry<'a> {
    client: Client,
    names: &'a RequestHeaders,
    /// A user whom nobody knows.
    invented: String,
}

impl Inquiry<'_> {
    async fn report(&mut self, internal_user: &str) -> Result<TrustReport, CheckError> {
        let identity = client::identity(self.names, &self.invented, &[])?;
        let answer = self.get(identity).await?;
        let recognition = self.recognition(&answer);
        // Whether the answer shows what a user may not do.
        let telling = recognition == UserRecognition::Yes;
        // All users may read it, so the answer names no user. If the apiserver rejects the same request without the
        // header, it accepted the header.
        let is_accepted = telling
            || recognition == UserRecognition::Unnamed
                && self.get(HeaderMap::new()).await?.status == StatusCode::UNAUTHORIZED;
        if !is_accepted {
            return Ok(TrustReport::problem(recognition.problem(self.names)));
        }
        let internal = client::identity(self.names, internal_user, &[MASTERS])?;
        let answer = self.get(internal).await?;
        let published = match findings::published(answer.status, &answer.body) {
            Ok(published) => published,
            Err(report) => return Ok(report),
        };
        let mut problems = Vec::new();
        for doubtful in findings::doubtful(self.names, &published) {
            let is_read = self.reads(&doubtful, telling).await?;
            problems.extend(findings::finding(&doubtful, is_read));
        }
        Ok(TrustReport {
            problems,
            warnings: findings::differences(self.names, &published),
            names: Some(published),
        })
    }

    /// Whether the apiserver takes a header for the name or the group of a user; `None`: it cannot be asked.
    async fn reads(
        &mut self,
        doubtful: &DoubtfulName,
        telling: bool,
    ) -> Result<Option<bool>, CheckError> {
        let is_group = doubtful.list == NameList::Group;
        if findings::is_framing(&doubtful.name) || (is_group && !telling) {
            return Ok(None);
        }
        let mut names = self.names.clone();
        let (list, groups) = match is_group {
            true => (&mut names.group, &[MASTERS][..]),
            false => (&mut names.username, &[][..]),
        };
        *list = vec![doubtful.name.clone()];
        let identity = client::identity(&names, &self.invented, groups)?;
        let answer = self.get(identity).await?;
        let recognition = self.recognition(&answer);
        Ok(Some(match is_group {
            true => findings::was_allowed(answer.status),
            false => matches!(recognition, UserRecognition::Yes | UserRecognition::Unnamed),
        }))
    }

    fn recognition(&self, answer: &ClientResponse) -> UserRecognition {
        findings::recognised(&self.invented, answer.status, &answer.body)
    }

    async fn get(&mut self, identity: HeaderMap) -> Result<ClientResponse, ClientError> {
        let deadline = Instant::now() + PATIENCE;
        let client = &mut self.client;
        let asking = client.call(Method::GET, PATH, identity, None, deadline);
        asking.await
    }
}
