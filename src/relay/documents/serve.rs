//! The merged document for an apiserver's answer: from the cache, or made of the apiserver's document and peers' contents.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;

use super::cache::Cache;
use super::entity::{Entity, EntityFormat, EntitySource};
use super::merge::{OverlayError, UpstreamDocument, merge_document};
use super::metrics::DocumentMetrics;
use super::request::MergeRequest;
use crate::discovery::openapi;
use crate::discovery::peer_discovery::SharedPeerDiscovery;
use crate::kube::discovery::DiscoveryDocument;
use crate::relay::answer::StatusFormat;
use crate::relay::upstream::health::Health;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};

/// Longest document that is read. Real ones are much shorter.
const MAX_DOCUMENT: usize = 64 << 20;
/// Longer documents are merged on a blocking thread, so that other requests do not wait.
const MAX_INLINE_MERGE: usize = 32 << 10;
/// Longest time to read a document. Only a few are read at the same time.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait of the first client for peers' OpenAPI documents, while no peer has failed.
const OPENAPI_TIMEOUT: Duration = Duration::from_secs(5);

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
        merge_request: &MergeRequest,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, OverlayError> {
        let completed = self.with_open_api(merge_request, response).await;
        let merge_request = completed.as_ref().unwrap_or(merge_request);
        let entity = match (response.status, &merge_request.known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => known.clone(),
            (StatusCode::NOT_FOUND, _) => {
                // Read so that the connection can be used again.
                if !head {
                    read_whole(up).await?;
                }
                let accepted = StatusFormat::accepted(merge_request.variant.accept.as_ref());
                let form = merge_request.form(accepted.media_type());
                self.cached_or_merged(merge_request, form, None, None, None)
                    .await?
            }
            _ => self.read(merge_request, up, response).await?,
        };
        if merge_request.gzip && entity.is_worth_compressing() && !entity.is_compressed() {
            let entity = entity.clone();
            let compressing = spawn_blocking(move || entity.compress());
            compressing.await.map_err(|_| OverlayError::GivenUp)?;
        }
        Ok(entity)
    }

    /// The request with peers' OpenAPI documents, if they were not read yet.
    async fn with_open_api(
        &self,
        merge_request: &MergeRequest,
        response: &ResponseHeader,
    ) -> Option<MergeRequest> {
        if merge_request.document != DiscoveryDocument::OpenApiV2
            || response.status != StatusCode::OK
        {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE);
        let form = openapi::OpenApiFormat::of_v2(content_type?.to_str().ok()?);
        let is_known = merge_request.peer_discovery.openapi.of(form).is_some();
        (!is_known).then_some(())?;
        let most = match self.health.has_suspects() {
            true => Duration::ZERO,
            false => OPENAPI_TIMEOUT,
        };
        let peer_discovery = self.peer_discovery.wait_for(form, most).await;
        Some(MergeRequest {
            peer_discovery,
            ..merge_request.clone()
        })
    }

    /// Reads an apiserver's document and merges it, unless the result is cached.
    async fn read(
        &self,
        merge_request: &MergeRequest,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
    ) -> Result<Arc<Entity>, OverlayError> {
        let encoding = response.headers.get(CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            return Err(OverlayError::Encoding(encoding.clone()));
        }
        let form = merge_request.form_of(response);
        let etag = response.headers.get(ETAG).cloned();
        let source = etag.clone().map(EntitySource::Etag);
        let known = || self.known(merge_request, &form, source.as_ref()?);
        if let Some(known) = known() {
            return Ok(known);
        }
        let turn = self.cache.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| OverlayError::GivenUp)?;
        // Whoever had the turn before may have made it.
        if let Some(known) = known() {
            return Ok(known);
        }
        let body = read_whole(up).await?;
        self.cached_or_merged(merge_request, form, etag, Some(body), Some(turn))
            .await
    }

    /// Takes the merged document from the cache or makes it.
    async fn cached_or_merged(
        &self,
        merge_request: &MergeRequest,
        form: EntityFormat,
        etag: Option<HeaderValue>,
        body: Option<Vec<u8>>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Arc<Entity>, OverlayError> {
        let bytes = body.as_deref().unwrap_or_default();
        let source = EntitySource::of(etag.as_ref(), bytes);
        if let Some(known) = self.known(merge_request, &form, &source) {
            return Ok(known);
        }
        self.metrics.merges.inc();
        let is_long = bytes.len() > MAX_INLINE_MERGE;
        let upstream = UpstreamDocument {
            document: merge_request.document.clone(),
            form,
            etag,
            body,
        };
        let (peer_discovery, shared_peer_discovery) = (
            merge_request.peer_discovery.clone(),
            self.peer_discovery.clone(),
        );
        let making = move || {
            let made = merge_document(upstream, &peer_discovery, &shared_peer_discovery);
            drop(turn);
            made
        };
        let entity = match is_long {
            true => spawn_blocking(making)
                .await
                .map_err(|_| OverlayError::GivenUp)??,
            false => making()?,
        };
        let entity = Arc::new(entity);
        let generation = merge_request.peer_discovery.generation;
        let variant = &merge_request.variant;
        self.cache.keep(generation, variant, &entity);
        Ok(entity)
    }

    fn known(
        &self,
        merge_request: &MergeRequest,
        form: &EntityFormat,
        source: &EntitySource,
    ) -> Option<Arc<Entity>> {
        let (cache, generation) = (self.cache, merge_request.peer_discovery.generation);
        let known = cache.find(generation, &merge_request.document, form, source)?;
        cache.keep(generation, &merge_request.variant, &known);
        Some(known)
    }
}

async fn read_whole(up: &mut UpstreamSession) -> Result<Vec<u8>, OverlayError> {
    let reading = up.read_prefix(MAX_DOCUMENT, READ_TIMEOUT);
    let BodyPrefix { body, complete } = reading.await.map_err(OverlayError::BrokeOff)?;
    let whole = complete && body.len() <= MAX_DOCUMENT;
    whole.then_some(body).ok_or(OverlayError::Incomplete)
}
