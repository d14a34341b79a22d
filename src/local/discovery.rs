//! What the local apiserver serves, read again and again.
//!
//! Only an initialized apiserver is asked: one that is starting lists less than it will serve. A restart makes the set
//! unknown until it is read again. A group version that fails keeps what was known of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::documents::{self, GroupVersion, Versions};
use super::state::LocalState;
use crate::client::{Answer, Client, ClientError};
use crate::routing::table::{Custom, Gvr, GvrRef, ServedSet};

/// What is known of the local apiserver's contents.
#[derive(Debug, Clone, Default)]
pub struct LocalView {
    /// Everything it lists, custom resources included; `None` while unknown.
    pub served: Option<Arc<ServedSet>>,
    /// How often discovery was read completely.
    pub reads: u64,
    /// Its versions.
    pub versions: Option<Versions>,
}

/// Changes often come in crowds; discovery is read at most this often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// How long one document is asked for, over and over if the apiserver says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads discovery until nobody is interested. `custom`: aggregated APIs are not asked for, their servers may hang.
pub async fn run(
    client: Client,
    state: Arc<LocalState>,
    every: Duration,
    mut custom: watch::Receiver<Option<Custom>>,
    view: watch::Sender<LocalView>,
) {
    let mut reader = Reader {
        client,
        known: BTreeMap::new(),
        aggregated: BTreeMap::new(),
    };
    let mut last = Instant::now();
    loop {
        let epoch = state.epoch();
        if state.is_initialized() {
            let skipped = custom.borrow_and_update().clone().unwrap_or_default();
            match reader.read(&skipped).await {
                Ok((served, versions)) if state.epoch() == epoch => view.send_modify(|view| {
                    view.reads += 1;
                    view.versions = Some(versions);
                    if view.served.as_deref() != Some(&served) {
                        view.served = Some(Arc::new(served));
                    }
                }),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "discovery cannot be read"
                    );
                    if matches!(error, ReadError::Client(ClientError::Refused)) {
                        state.refused();
                    }
                }
            }
        } else {
            reader.forget();
            view.send_if_modified(|view| view.served.take().is_some());
        }
        if view.is_closed() {
            return;
        }
        let due = last + every;
        tokio::select! {
            () = sleep_until(due) => {}
            () = state.reread() => sleep_until(last + SHORTEST_PAUSE).await,
            Ok(()) = custom.changed() => sleep_until(last + SHORTEST_PAUSE).await,
        }
        last = Instant::now();
    }
}

/// Why discovery could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{path} answered {status}")]
    Status { path: String, status: StatusCode },
    #[error("{path} cannot be parsed")]
    Parse {
        path: String,
        source: serde_json::Error,
    },
}

struct Reader {
    client: Client,
    /// What each group version's own document listed when it was last read.
    known: BTreeMap<GroupVersion, BTreeSet<Gvr>>,
    /// ETag and contents of the aggregated documents.
    aggregated: BTreeMap<&'static str, (HeaderValue, BTreeSet<Gvr>)>,
}

impl Reader {
    fn forget(&mut self) {
        self.known.clear();
        self.aggregated.clear();
    }

    async fn read(&mut self, skipped: &Custom) -> Result<(ServedSet, Versions), ReadError> {
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
                    self.known.insert(group_version.clone(), set);
                }
                Err(ReadError::Client(error)) => return Err(error.into()),
                // Nothing is known of it: rather no set than one without this group.
                Err(error) if !self.known.contains_key(&group_version) => return Err(error),
                Err(error) => {
                    let path = group_version.path();
                    tracing::warn!(
                        path,
                        error = &error as &dyn std::error::Error,
                        "keeping what was known of a group"
                    );
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
