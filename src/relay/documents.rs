//! A document to which something is added, from the plan to the merged document: from the cache, or made of the
//! apiserver's document and peers' contents.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use pingora_http::ResponseHeader;
use tokio::task::spawn_blocking;

use super::cache::{Cache, Variant};
use super::entity::{Entity, EntityKey, hash};
use super::merge::{OverlayError, merge_document};
use crate::discovery::openapi::OpenApiFormat;
use crate::discovery::peer_discovery::{PeerDiscovery, SharedPeerDiscovery};
use crate::kube::discovery::DiscoveryDocument;
use crate::relay::answer::{StatusFormat, is_for_one_server};
use crate::relay::upstream::health::Health;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::request::headers::set;

/// Longest document that is read. Real ones are much shorter.
const MAX_DOCUMENT: usize = 64 << 20;
/// Longest time to read a document. Only a few are read at the same time.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait of the first client for peers' OpenAPI documents, while no peer has failed.
const OPENAPI_TIMEOUT: Duration = Duration::from_secs(5);

/// The task was cancelled.
const GIVEN_UP: OverlayError = OverlayError::Unusable(Cow::Borrowed("given up"));

/// Conditions on the apiserver's own bytes. They mean something else for the merged bytes.
const ABOUT_BYTES: [HeaderName; 6] = [
    IF_NONE_MATCH,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    RANGE,
];

/// A document, what is added to it, and how the client has asked for it.
#[derive(Clone)]
pub struct Overlay {
    document: DiscoveryDocument,
    peer_discovery: Arc<PeerDiscovery>,
    variant: Variant,
    pub if_none_match: Vec<HeaderValue>,
    pub gzip: bool,
    /// The entity that the apiserver is asked to confirm.
    known: Option<Arc<Entity>>,
}

impl Overlay {
    /// `for_one`: nothing of peers is added, because a peer has asked.
    pub fn new(
        document: &DiscoveryDocument,
        peer_discovery: Arc<PeerDiscovery>,
        for_one: bool,
    ) -> Box<Self> {
        Box::new(Self {
            document: document.clone(),
            peer_discovery,
            variant: Variant {
                accept: None,
                for_one,
            },
            if_none_match: Vec::new(),
            gzip: false,
            known: None,
        })
    }

    /// Reads a request's header, and rewrites it so that the apiserver answers with a whole document, or that it has not
    /// changed.
    pub fn asked(&self, cache: &Cache, headers: &mut HeaderMap) -> pingora_core::Result<Box<Self>> {
        let mut asked = Box::new(self.clone());
        asked.variant.accept = headers.get(ACCEPT).cloned();
        asked.if_none_match = headers.get_all(IF_NONE_MATCH).iter().cloned().collect();
        asked.gzip = accepts_gzip(headers);
        for name in &ABOUT_BYTES {
            headers.remove(name);
        }
        let identity = HeaderValue::from_static("identity");
        set(headers, ACCEPT_ENCODING, identity)?;
        let generation = self.peer_discovery.generation;
        if let Some(entity) = cache.accepted(generation, &self.document, &asked.variant)
            && let Some(etag) = &entity.key.etag
        {
            set(headers, IF_NONE_MATCH, etag.clone())?;
            asked.known = Some(entity);
        }
        Ok(asked)
    }

    /// Whether an answer of this status has or confirms a document. Other answers pass unchanged.
    pub fn concerns(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::OK => true,
            StatusCode::NOT_MODIFIED => self.known.is_some(),
            // The caller may read discovery; otherwise the answer would be a 403.
            StatusCode::NOT_FOUND => matches!(self.document, DiscoveryDocument::Group(_)),
            _ => false,
        }
    }

    /// `etag`: of the apiserver's document; `hash`: empty if there is an ETag.
    fn key(
        &self,
        content_type: HeaderValue,
        etag: Option<HeaderValue>,
        hash: Vec<u8>,
    ) -> EntityKey {
        let accept = self.variant.accept.as_ref();
        let text = content_type.to_str().unwrap_or("");
        EntityKey {
            document: self.document.clone(),
            for_one: self.variant.for_one || is_for_one_server(accept, text),
            content_type,
            etag,
            hash,
        }
    }
}

fn content_type_of(headers: &HeaderMap) -> HeaderValue {
    let content_type = headers.get(CONTENT_TYPE).cloned();
    content_type.unwrap_or(HeaderValue::from_static(""))
}

/// Reads the header as kube-apiserver does.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING);
    let accepted = accepted.map_or(&b""[..], HeaderValue::as_bytes);
    accepted
        .split(|byte| *byte == b',')
        .any(|name| name.trim_ascii() == b"gzip")
}

/// What merged documents are made with.
pub struct DocumentMaker<'a> {
    pub cache: &'a Cache,
    pub peer_discovery: &'a Arc<SharedPeerDiscovery>,
    pub health: &'a Health,
}

impl DocumentMaker<'_> {
    /// The merged document for an answer.
    pub async fn entity(
        &self,
        overlay: &Overlay,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, OverlayError> {
        let completed = self.with_open_api(overlay, response).await;
        let overlay = completed.as_ref().unwrap_or(overlay);
        match (response.status, &overlay.known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => Ok(known.clone()),
            _ => self.read(overlay, up, response, head).await,
        }
    }

    /// With peers' OpenAPI documents, if they were not read yet.
    async fn with_open_api(&self, overlay: &Overlay, response: &ResponseHeader) -> Option<Overlay> {
        if overlay.document != DiscoveryDocument::OpenApiV2 || response.status != StatusCode::OK {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let form = OpenApiFormat::of_v2(content_type);
        if overlay.peer_discovery.openapi.contains_key(&form) {
            return None;
        }
        let most = match self.health.has_suspects() {
            true => Duration::ZERO,
            false => OPENAPI_TIMEOUT,
        };
        let peer_discovery = self.peer_discovery.wait_for(form, most).await;
        Some(Overlay {
            peer_discovery,
            ..overlay.clone()
        })
    }

    /// Reads an apiserver's document and merges it, unless the result is cached. A 404 has none; it is read so that the
    /// connection can be used again.
    async fn read(
        &self,
        overlay: &Overlay,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, OverlayError> {
        let headers = &response.headers;
        let encoding = headers.get(CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            let problem = format!("in the encoding {encoding:?}");
            return Err(OverlayError::Unusable(problem.into()));
        }
        let is_found = response.status == StatusCode::OK;
        let content_type = match is_found {
            true => content_type_of(headers),
            false => StatusFormat::accepted(overlay.variant.accept.as_ref()).media_type(),
        };
        let etag = headers.get(ETAG).filter(|_| is_found).cloned();
        let key = etag.map(|etag| overlay.key(content_type.clone(), Some(etag), Vec::new()));
        let known = || self.known(overlay, key.as_ref()?);
        if let Some(known) = known() {
            return Ok(known);
        }
        let permit = self.cache.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| GIVEN_UP)?;
        // Whoever had the permit before may have made it.
        if let Some(known) = known() {
            return Ok(known);
        }
        let body = match head {
            true => Vec::new(),
            false => read_whole(up).await?,
        };
        let body = Some(body).filter(|_| is_found);
        let bytes = body.as_deref().unwrap_or_default();
        let key = key.unwrap_or_else(|| overlay.key(content_type, None, hash(bytes)));
        if let Some(known) = self.known(overlay, &key) {
            return Ok(known);
        }
        let (peers, shared) = (overlay.peer_discovery.clone(), self.peer_discovery.clone());
        // Other requests of this thread do not wait.
        let making = spawn_blocking(move || {
            let made = merge_document(key, body, &peers, &shared);
            drop(permit);
            made
        });
        let entity = Arc::new(making.await.map_err(|_| GIVEN_UP)??);
        let generation = overlay.peer_discovery.generation;
        self.cache.keep(generation, &overlay.variant, &entity);
        Ok(entity)
    }

    fn known(&self, overlay: &Overlay, key: &EntityKey) -> Option<Arc<Entity>> {
        let generation = overlay.peer_discovery.generation;
        let known = self.cache.made_from(generation, key)?;
        self.cache.keep(generation, &overlay.variant, &known);
        Some(known)
    }
}

async fn read_whole(up: &mut UpstreamSession) -> Result<Vec<u8>, OverlayError> {
    let reading = up.read_prefix(MAX_DOCUMENT, READ_TIMEOUT);
    let BodyPrefix { body, complete } = reading.await.map_err(OverlayError::BrokeOff)?;
    let whole = complete && body.len() <= MAX_DOCUMENT;
    whole
        .then_some(body)
        .ok_or(OverlayError::Unusable("cannot be read whole".into()))
}
