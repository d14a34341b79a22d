//! Reads one apiserver's discovery: aggregated if it has that, else its path index and one document for each group version.
//! A group version that cannot be read keeps its last known resources.

use crate::kube::version;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use crate::client::{Client, ClientError, ClientResponse};
use crate::kube::discovery::documents;
use crate::kube::gvr::GroupVersion;
use crate::kube::gvr::{Custom, Gvr, GvrRef, ServedSet};
use crate::kube::media_type;
use crate::kube::version::Versions;
use crate::log_throttle::{LogThrottle, chain};
use crate::request::headers::SERVER_ID;

/// Deadline for one document, retries included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why discovery could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{path} answered {status}")]
    Status { path: String, status: StatusCode },
    /// Only where an apiserver is expected.
    #[error("a proxy answers there")]
    Proxy,
    #[error("{path} cannot be parsed")]
    Parse {
        path: String,
        source: serde_json::Error,
    },
}

/// Reads one server's discovery and caches it.
pub struct Reader {
    client: Client,
    /// A proxy's answers are errors.
    no_proxy: bool,
    /// Resources of each group version, as last read from its own document.
    known: BTreeMap<GroupVersion, BTreeSet<Gvr>>,
    /// ETag and contents of the aggregated documents.
    aggregated: BTreeMap<&'static str, (HeaderValue, BTreeSet<Gvr>)>,
    /// Keys: paths of group versions whose document cannot be read.
    throttle: LogThrottle<String>,
}

impl Reader {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            no_proxy: false,
            known: BTreeMap::new(),
            aggregated: BTreeMap::new(),
            throttle: LogThrottle::default(),
        }
    }

    /// Of an apiserver: a proxy in its place is an error.
    pub fn of_apiserver(client: Client) -> Self {
        Self {
            no_proxy: true,
            ..Self::new(client)
        }
    }

    /// An error: the server says that it is not ready.
    pub async fn check_ready(&mut self) -> Result<(), ReadError> {
        self.get("/readyz").await.map(|_| ())
    }

    /// Clears the cache: the server may be another process now.
    pub fn forget(&mut self) {
        self.known.clear();
        self.aggregated.clear();
    }

    /// Everything that the server lists, and its versions. `skipped`: without aggregated discovery, its aggregated APIs are
    /// not read.
    pub async fn read(&mut self, skipped: &Custom) -> Result<(ServedSet, Versions), ReadError> {
        let version = self.get("/version").await?;
        let versions = parse("/version", version::versions(&version))?;
        let served = match self.read_aggregated().await? {
            Some(served) => served,
            None => self.read_each(skipped).await?,
        };
        Ok((served, versions))
    }

    async fn read_aggregated(&mut self) -> Result<Option<ServedSet>, ReadError> {
        let mut served = ServedSet::new();
        for path in ["/api", "/apis"] {
            let accept = HeaderValue::from_static(media_type::ACCEPT_AGGREGATED);
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
                    if self.throttle.recovered(&group_version.path()).is_some() {
                        tracing::info!("the document of each group can be read again");
                    }
                    self.known.insert(group_version.clone(), set);
                }
                Err(error @ (ReadError::Client(_) | ReadError::Proxy)) => return Err(error),
                // Never read before: an error is better than a set without this group version.
                Err(error) if !self.known.contains_key(&group_version) => return Err(error),
                Err(error) => {
                    let path = group_version.path();
                    if self.throttle.should_log(path, chain(&error)) {
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
    ) -> Result<ClientResponse, ReadError> {
        let deadline = Instant::now() + PATIENCE;
        let answer = self
            .client
            .call(Method::GET, path, headers, None, deadline)
            .await?;
        match self.no_proxy && answer.headers.contains_key(SERVER_ID) {
            true => Err(ReadError::Proxy),
            false => Ok(answer),
        }
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
        .is_some_and(media_type::is_aggregated)
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
