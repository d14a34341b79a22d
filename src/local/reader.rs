//! Reads one apiserver's discovery: aggregated if it has that, and its path index and one document for each group version
//! that aggregated discovery does not have. Its list of groups is read for the order only, because it can lack what is
//! served. A group version that cannot be read keeps its last known resources. Of what is listed only the server's own is
//! kept (`own`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::groups::{Documents, Listed, ServedGroups, arrange};
use super::own::{self, Answer, OwnResources};
use crate::client::{Client, ClientError, ClientResponse};
use crate::kube::discovery::documents;
use crate::kube::discovery::model::{Document, scopes};
use crate::kube::gvr::{Custom, GroupVersion, Scopes, ServedSet};
use crate::kube::media_type;
use crate::kube::version::{self, Versions};
use crate::log_throttle::{LogThrottle, warn_new};
use crate::request::headers::SERVER_ID;

/// Deadline for one document, retries included.
const PATIENCE: Duration = Duration::from_secs(10);
/// For all questions about namesakes of CRDs after one read: whoever may create CRDs must not delay reads.
const NAMESAKES_TIMEOUT: Duration = Duration::from_secs(2);

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

/// What a proxy that ran before has written of its apiserver.
#[derive(Debug, Clone)]
pub struct FormerRecord {
    pub binary_version: Option<String>,
    /// What the apiserver served itself.
    pub served: Arc<ServedSet>,
    /// etcd was restored or replaced while the apiserver ran.
    pub history_void: bool,
}

/// Reads one server's discovery and caches it.
pub struct Reader {
    pub client: Client,
    /// Asks for lists of resources, which `client` may not; `None`: `client` may.
    pub lister: Option<Client>,
    pub(super) own: OwnResources,
    /// Until the first read: what the proxy before this one has written. It counts if it was about a server of the version
    /// that is read.
    pub former: Option<Arc<OnceLock<FormerRecord>>>,
    /// How often `client` had connected when discovery was read last.
    connections: u64,
    /// The server's versions, as last read.
    versions: Option<Versions>,
    /// For an apiserver: an answer of a proxy is an error.
    pub no_proxy: bool,
    pub(super) last: LastRead,
    /// Keys: paths of group versions whose document cannot be read.
    throttle: LogThrottle<String>,
}

/// What one process has answered.
#[derive(Default)]
pub(super) struct LastRead {
    /// The scopes of what was read, without custom resources.
    pub(super) scopes: Scopes,
    /// Resources of each group version that was read by its own document, and that document if aggregated discovery lacks
    /// it.
    known: Documents,
    /// ETag and contents of the aggregated documents.
    aggregated: BTreeMap<&'static str, (Option<HeaderValue>, Listed)>,
    /// `Content-Type` of aggregated discovery; `None`: the server has none.
    aggregated_type: Option<String>,
    /// What its list of groups names, in that order; without the core group.
    listed: Vec<GroupVersion>,
}

impl LastRead {
    /// All that is listed. What CRDs and aggregated APIs name has no scope.
    fn take_scopes(&mut self, custom: &Custom) -> ServedSet {
        let aggregated = self.aggregated.values().map(|(_, listed)| listed);
        let each = self.known.values().map(|(listed, _)| listed);
        let mut served = ServedSet::new();
        for (gvr, scope) in aggregated.chain(each).flatten() {
            if let Some(scope) = scope.filter(|_| !custom.contains(gvr.borrow())) {
                self.scopes.insert(gvr.clone(), scope);
            }
            served.insert(gvr.clone());
        }
        served
    }
}

impl Reader {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            lister: None,
            own: OwnResources::default(),
            former: None,
            connections: 0,
            versions: None,
            no_proxy: false,
            last: LastRead::default(),
            throttle: LogThrottle::default(),
        }
    }

    /// Clears the cache: the server may be another process now.
    pub fn forget(&mut self) {
        self.own.restarted();
        self.last = LastRead::default();
    }

    pub async fn versions(&mut self) -> Result<Versions, ReadError> {
        let version = self.get("/version").await?;
        parse("/version", version::versions(&version))
    }

    /// Everything that the server serves itself, and its versions. `custom`: documents of aggregated APIs are not read.
    pub async fn read(&mut self, custom: &Custom) -> Result<(ServedSet, Versions), ReadError> {
        let versions = self.versions().await?;
        if self.versions.as_ref() != Some(&versions) {
            // Another process of a peer.
            self.forget();
            self.versions = Some(versions.clone());
        }
        if let Some(former) = self.former.take()
            && let Some(former) = former.get()
            && former.binary_version.as_ref() == Some(&versions.binary)
        {
            self.own.remember(&former.served, custom);
        }
        // Another connection may lead to another process, of the same version.
        let connections = self.client.connections();
        if std::mem::replace(&mut self.connections, connections) != connections {
            self.own.ask_again();
        }
        let has_aggregated = self.read_aggregated().await?;
        self.read_each(custom, has_aggregated).await?;
        let listed = self.last.take_scopes(custom);
        // Whether the server itself serves what CRDs are named like. A server that is slow is in doubt.
        let deadline = Instant::now() + NAMESAKES_TIMEOUT;
        for question in self.own.questions(&listed, custom) {
            let path = own::path(&question.0);
            let protobuf = HeaderValue::from_static(media_type::PROTOBUF);
            let accept = HeaderMap::from_iter([(ACCEPT, protobuf)]);
            let client = self.lister.as_mut().unwrap_or(&mut self.client);
            let listing = client.call(Method::GET, &path, accept, None, deadline);
            match listing.await {
                Ok(answer) => self.own.answered(question, Answer::of(answer.status)),
                Err(error @ (ClientError::Refused | ClientError::Connect(_))) => {
                    return Err(error.into());
                }
                Err(_) => {
                    self.own.answered(question, Answer::Doubt);
                    break;
                }
            }
        }
        let own = self.own.update(listed, custom);
        self.last.scopes.retain(|gvr, _| own.contains(gvr));
        Ok((own, versions))
    }

    /// The groups that the server serves itself, as last read, whatever its list of groups says. `served`: what it serves
    /// itself.
    pub fn groups(&self, served: &ServedSet) -> ServedGroups {
        ServedGroups {
            document: arrange(&self.last.listed, served, &self.last.known),
            aggregated: self.last.aggregated_type.clone(),
        }
    }

    /// Reads aggregated discovery. Returns whether the server has it. `/apis` comes first: without aggregated discovery it
    /// is the list of groups.
    async fn read_aggregated(&mut self) -> Result<bool, ReadError> {
        for path in ["/apis", "/api"] {
            let accept = HeaderValue::from_static(media_type::ACCEPT_AGGREGATED);
            let mut headers = HeaderMap::from_iter([(ACCEPT, accept)]);
            let known = self.last.aggregated.get(path);
            let etag = known.and_then(|(etag, _)| etag.clone());
            let has_etag = etag.is_some();
            headers.extend(etag.map(|etag| (IF_NONE_MATCH, etag)));
            let answer = self.ask(path, headers).await?;
            match answer.status {
                StatusCode::NOT_MODIFIED if has_etag => continue,
                // Before 1.26: the legacy document, or 406 for the unknown parameters.
                StatusCode::OK | StatusCode::NOT_ACCEPTABLE | StatusCode::NOT_FOUND => {}
                status => return Err(unexpected(path, status)),
            }
            let aggregated_type = aggregated_type(&answer);
            if path == "/apis" {
                self.last.aggregated_type = aggregated_type.map(str::to_owned);
                self.last.listed = match answer.status {
                    StatusCode::OK => parse(path, documents::listed(&answer.body))?,
                    _ => Vec::new(),
                };
            }
            if aggregated_type.is_none() {
                self.last.aggregated.clear();
                return Ok(false);
            }
            let groups = parse(path, documents::aggregated(&answer.body))?;
            let read = (answer.headers.get(ETAG).cloned(), scopes(&groups).collect());
            self.last.aggregated.insert(path, read);
        }
        Ok(true)
    }

    /// Reads the documents of group versions that the path index names, and aggregated discovery does not.
    async fn read_each(&mut self, skipped: &Custom, has_aggregated: bool) -> Result<(), ReadError> {
        let mut named = match self.get("/").await {
            // Not every user may read it.
            Err(ReadError::Status {
                status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND,
                ..
            }) if has_aggregated => BTreeSet::new(),
            // An error is better than a set without what may be hidden.
            index => parse("/", documents::group_versions(&index?))?,
        };
        named.retain(|of| !skipped.is_aggregated(&of.group, &of.version));
        if has_aggregated {
            named.retain(|of| !of.group.is_empty() && !self.last.listed.contains(of));
        }
        self.last.known.retain(|of, _| named.contains(of));
        for of in named {
            if let Err(error) = self.read_one(&of, has_aggregated).await {
                // Nothing else can be read either, or it was never read: an error is better than a set without this group
                // version.
                let is_silent = matches!(error, ReadError::Client(_) | ReadError::Proxy);
                if is_silent || !self.last.known.contains_key(&of) {
                    return Err(error);
                }
                let text = "keeping what was known of a group";
                warn_new!(self.throttle, of.path(), &error, "{text}");
            }
        }
        Ok(())
    }

    /// Reads the document of a group version into what is known.
    async fn read_one(&mut self, of: &GroupVersion, keeps_document: bool) -> Result<(), ReadError> {
        let path = of.path();
        let document = match self.get(&path).await {
            // Gone between the index and now.
            Err(ReadError::Status {
                status: StatusCode::NOT_FOUND,
                ..
            }) => None,
            document => Some(document?),
        };
        let version = document.as_ref().map(|it| documents::resources(of, it));
        let version = parse(&path, version.transpose())?;
        let read = Document::from_iter(version.map(|version| (of.group.clone(), version)));
        if self.throttle.recovered(&path).is_some() {
            tracing::info!("the document of each group can be read again");
        }
        let document = document.filter(|_| keeps_document).unwrap_or_default();
        let listed = scopes(&read.groups).collect();
        self.last.known.insert(of.clone(), (listed, document));
        Ok(())
    }

    async fn ask(&mut self, path: &str, headers: HeaderMap) -> Result<ClientResponse, ReadError> {
        let deadline = Instant::now() + PATIENCE;
        let client = &mut self.client;
        let answer = client.call(Method::GET, path, headers, None, deadline);
        let answer = answer.await?;
        match self.no_proxy && answer.headers.contains_key(SERVER_ID) {
            true => Err(ReadError::Proxy),
            false => Ok(answer),
        }
    }

    /// The body of a 200.
    pub async fn get(&mut self, path: &str) -> Result<Bytes, ReadError> {
        let answer = self.ask(path, HeaderMap::new()).await?;
        body(path, answer)
    }
}

/// The body of an answer that is 200.
pub fn body(path: &str, answer: ClientResponse) -> Result<Bytes, ReadError> {
    match answer.status {
        StatusCode::OK => Ok(answer.body),
        status => Err(unexpected(path, status)),
    }
}

pub fn unexpected(path: &str, status: StatusCode) -> ReadError {
    let path = path.to_owned();
    ReadError::Status { path, status }
}

/// The `Content-Type` of an answer that is aggregated discovery.
fn aggregated_type(answer: &ClientResponse) -> Option<&str> {
    let content_type = answer.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let is_it = answer.status == StatusCode::OK && media_type::is_aggregated(content_type);
    is_it.then_some(content_type)
}

pub fn parse<T>(path: &str, result: Result<T, serde_json::Error>) -> Result<T, ReadError> {
    result.map_err(|source| ReadError::Parse {
        path: path.to_owned(),
        source,
    })
}
