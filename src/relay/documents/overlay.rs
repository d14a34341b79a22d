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
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;

use super::cache::{Cache, Variant};
use super::entity::{Entity, EntityKey, EntitySource};
use super::merge::{self, OverlayError, merge_document};
use super::metrics::DocumentMetrics;
use crate::discovery::openapi::OpenApiFormat;
use crate::discovery::peer_discovery::{PeerDiscovery, SharedPeerDiscovery};
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::Custom;
use crate::relay::answer::{StatusFormat, is_for_one_server};
use crate::relay::upstream::health::Health;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::request::headers::set;

/// Longest document that is read. Real ones are much shorter.
const MAX_DOCUMENT: usize = 64 << 20;
/// Longer documents are merged on a blocking thread, so that other requests do not wait.
const MAX_INLINE_MERGE: usize = 32 << 10;
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
            && let EntitySource::Etag(etag) = &entity.key.source
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

    /// Why a GET would fail that got this answer, if the apiserver lists what is in `custom`. HEAD gets no document.
    pub fn refuses(&self, response: &ResponseHeader, custom: &Custom) -> Option<OverlayError> {
        let key = self.key(content_type_of(response), EntitySource::hash(b""));
        merge::refuses(&key, &self.peer_discovery, custom)
    }

    fn key(&self, content_type: HeaderValue, source: EntitySource) -> EntityKey {
        let accept = self.variant.accept.as_ref();
        let text = content_type.to_str().unwrap_or("");
        EntityKey {
            document: self.document.clone(),
            for_one: self.variant.for_one || is_for_one_server(accept, text),
            content_type,
            source,
        }
    }
}

fn content_type_of(response: &ResponseHeader) -> HeaderValue {
    let content_type = response.headers.get(CONTENT_TYPE).cloned();
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
    pub metrics: &'a DocumentMetrics,
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
        let entity = match (response.status, &overlay.known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => known.clone(),
            (StatusCode::NOT_FOUND, _) => {
                // Read so that the connection can be used again.
                if !head {
                    read_whole(up).await?;
                }
                let accepted = StatusFormat::accepted(overlay.variant.accept.as_ref());
                let key = overlay.key(accepted.media_type(), EntitySource::hash(b""));
                self.cached_or_merged(overlay, key, None, None).await?
            }
            _ => self.read(overlay, up, response).await?,
        };
        if overlay.gzip && entity.is_worth_compressing() && !entity.is_compressed() {
            let entity = entity.clone();
            let compressing = spawn_blocking(move || entity.compress());
            compressing.await.map_err(|_| GIVEN_UP)?;
        }
        Ok(entity)
    }

    /// With peers' OpenAPI documents, if they were not read yet.
    async fn with_open_api(&self, overlay: &Overlay, response: &ResponseHeader) -> Option<Overlay> {
        if overlay.document != DiscoveryDocument::OpenApiV2 || response.status != StatusCode::OK {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let form = OpenApiFormat::of_v2(content_type);
        if overlay.peer_discovery.openapi.of(form).is_some() {
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

    /// Reads an apiserver's document and merges it, unless the result is cached.
    async fn read(
        &self,
        overlay: &Overlay,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
    ) -> Result<Arc<Entity>, OverlayError> {
        let headers = &response.headers;
        let encoding = headers.get(CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            let problem = format!("in the encoding {encoding:?}");
            return Err(OverlayError::Unusable(problem.into()));
        }
        let content_type = content_type_of(response);
        let source = headers.get(ETAG).cloned().map(EntitySource::Etag);
        let key = source.map(|source| overlay.key(content_type.clone(), source));
        let known = || self.known(overlay, key.as_ref()?);
        if let Some(known) = known() {
            return Ok(known);
        }
        let turn = self.cache.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| GIVEN_UP)?;
        // Whoever had the turn before may have made it.
        if let Some(known) = known() {
            return Ok(known);
        }
        let body = read_whole(up).await?;
        let key = key.unwrap_or_else(|| overlay.key(content_type, EntitySource::hash(&body)));
        self.cached_or_merged(overlay, key, Some(body), Some(turn))
            .await
    }

    /// Takes the merged document from the cache or makes it.
    async fn cached_or_merged(
        &self,
        overlay: &Overlay,
        key: EntityKey,
        body: Option<Vec<u8>>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Arc<Entity>, OverlayError> {
        if let Some(known) = self.known(overlay, &key) {
            return Ok(known);
        }
        self.metrics.merges.inc();
        let is_long = body
            .as_ref()
            .is_some_and(|body| body.len() > MAX_INLINE_MERGE);
        let (peers, shared) = (overlay.peer_discovery.clone(), self.peer_discovery.clone());
        let making = move || {
            let made = merge_document(key, body, &peers, &shared);
            drop(turn);
            made
        };
        let entity = match is_long {
            true => spawn_blocking(making).await.map_err(|_| GIVEN_UP)??,
            false => making()?,
        };
        let entity = Arc::new(entity);
        let generation = overlay.peer_discovery.generation;
        self.cache.keep(generation, &overlay.variant, &entity);
        Ok(entity)
    }

    fn known(&self, overlay: &Overlay, key: &EntityKey) -> Option<Arc<Entity>> {
        let generation = overlay.peer_discovery.generation;
        let known = self.cache.find(generation, key)?;
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
