//! Reading one apiserver's discovery: the aggregated form where it has it, else its path index and one document for each
//! group version. A group version that fails keeps what was known of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::documents::{self, GroupVersion, Versions};
use crate::client::{Answer, Client, ClientError};
use crate::routing::table::{Custom, Gvr, GvrRef, ServedSet};
use crate::trouble::{Trouble, chain};

/// How long one document is asked for, over and over if the apiserver says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why discovery could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An answer that is none.
    #[error("{path} answered {status}")]
    Status {
        /// What was asked for.
        path: String,
        /// The answer.
        status: StatusCode,
    },
    /// Not the document that was asked for.
    #[error("{path} cannot be parsed")]
    Parse {
        /// What was asked for.
        path: String,
        /// Why not.
        source: serde_json::Error,
    },
}

/// Reads one server's discovery, and remembers what it has read.
pub struct Reader {
    client: Client,
    /// What each group version's own document listed when it was last read.
    known: BTreeMap<GroupVersion, BTreeSet<Gvr>>,
    /// ETag and contents of the aggregated documents.
    aggregated: BTreeMap<&'static str, (HeaderValue, BTreeSet<Gvr>)>,
    /// Group versions whose document cannot be read.
    trouble: Trouble<String>,
}

impl Reader {
    /// Nothing is known yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: BTreeMap::new(),
            aggregated: BTreeMap::new(),
            trouble: Trouble::default(),
        }
    }

    /// The server may be another one from now on.
    pub fn forget(&mut self) {
        self.known.clear();
        self.aggregated.clear();
    }

    /// Everything it lists, and its versions. `skipped`: aggregated APIs of it are not asked for where each group version
    /// is asked for by itself.
    pub async fn read(&mut self, skipped: &Custom) -> Result<(ServedSet, Versions), ReadError> {
        let version = self.get("/version").await?;
        let versions = parse("/version", documents::versions(&version))?;
        let served = match self.read_aggregated().await? {
            Some(served) => served,
            None => self.read_each(skipped).await?,
        };
        Ok((served, versions))
    }

    async fn read_aggregated(&mut self) -> Result<Option<ServedSet>, ReadError> {
        let mut served = ServedSet::new();
        for path in ["/api", "/apis"] {
            let accept = HeaderValue::from_static(documents::ACCEPT_AGGREGATED);
            let mut headers = vec![(ACCEPT, accept)];
            headers.extend(
                self.aggregated
                    .get(path)
                    .map(|(etag, _)| (IF_NONE_MATCH, etag.clone())),
            );
            let answer = self.ask(path, &headers).await?;
            if answer.status == StatusCode::NOT_MODIFIED
                && let Some((_, known)) = self.aggregated.get(path)
            {
                served.extend(known.iter().cloned());
                continue;
            }
            if answer.status != StatusCode::OK || !is_aggregated(&answer.headers) {
                // Before 1.26: the legacy document, or 406 for the unknown parameters.
                return Ok(None);
            }
            let set = parse(path, documents::aggregated(&answer.body))?;
            served.extend(set.iter().cloned());
            if let Some(etag) = answer.headers.get(ETAG) {
                self.aggregated.insert(path, (etag.clone(), set));
            }
        }
        Ok(Some(served))
    }

    async fn read_each(&mut self, skipped: &Custom) -> Result<ServedSet, ReadError> {
        let index = self.get("/").await?;
        let listed = parse("/", documents::group_versions(&index))?;
        self.known
            .retain(|group_version, _| listed.contains(group_version));
        let mut served = ServedSet::new();
        for group_version in listed
            .into_iter()
            .filter(|group_version| !is_aggregated_api(skipped, group_version))
        {
            match self.read_one(&group_version).await {
                Ok(set) => {
                    if self.trouble.is_over(&group_version.path()).is_some() {
                        tracing::info!("the document of each group can be read again");
                    }
                    self.known.insert(group_version.clone(), set);
                }
                Err(ReadError::Client(error)) => return Err(error.into()),
                // Nothing is known of it: rather no set than one without this group.
                Err(error) if !self.known.contains_key(&group_version) => return Err(error),
                Err(error) => {
                    let path = group_version.path();
                    if self.trouble.is_news(path, chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "keeping what was known of a group");
                    }
                }
            }
            served.extend(
                self.known
                    .get(&group_version)
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
        Ok(served)
    }

    async fn read_one(&mut self, group_version: &GroupVersion) -> Result<BTreeSet<Gvr>, ReadError> {
        let path = group_version.path();
        match self.get(&path).await {
            Ok(document) => parse(&path, documents::resources(group_version, &document)),
            // Gone between the index and now.
            Err(ReadError::Status {
                status: StatusCode::NOT_FOUND,
                ..
            }) => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    async fn ask(
        &mut self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, ClientError> {
        let deadline = Instant::now() + PATIENCE;
        self.client
            .call(Method::GET, path, headers, None, deadline)
            .await
    }

    async fn get(&mut self, path: &str) -> Result<bytes::Bytes, ReadError> {
        let answer = self.ask(path, &[]).await?;
        match answer.status {
            StatusCode::OK => Ok(answer.body),
            status => Err(ReadError::Status {
                path: path.to_owned(),
                status,
            }),
        }
    }
}

fn is_aggregated(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(documents::is_aggregated)
}

/// Whether the whole group version belongs to an aggregated API, whatever the resource.
fn is_aggregated_api(custom: &Custom, of: &GroupVersion) -> bool {
    custom.contains(GvrRef {
        group: &of.group,
        version: &of.version,
        resource: "",
        subresource: "",
    })
}

fn parse<T>(path: &str, result: Result<T, serde_json::Error>) -> Result<T, ReadError> {
    result.map_err(|source| ReadError::Parse {
        path: path.to_owned(),
        source,
    })
}
