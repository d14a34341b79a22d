//! Exchanges about discovery documents that are merged.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue};
use http::{Method, StatusCode};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::client_session::ClientSession;
use super::overlay::MergeRequest;
use super::overlay::entity::{Entity, EntityFormat, EntitySource, forget};
use super::overlay::merge::{OverlayError, UpstreamDocument, merge_document, refusal};
use super::upstream_stream::UpstreamSession;
use crate::discovery::openapi;
use crate::log_throttle::LogRateLimit;
use crate::relay::accept::{StatusFormat, is_for_one_server};
use crate::relay::exchange::Exchange;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::overlay::metrics::DocumentOutcome;
use crate::relay::upload::{Upload, UploadInterest};
use crate::relay::watch_rest::Delivered;
use crate::routing::documents::DocumentRequest;

/// Longest document that is read. Real ones are much shorter.
const MAX_DOCUMENT: usize = 64 << 20;
/// Longer documents are merged on a blocking thread, so that other requests do not wait.
const MAX_INLINE_MERGE: usize = 32 << 10;
/// Longest time to read a document. Only a few are read at the same time.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait of the first client for peers' OpenAPI documents, while no peer has failed.
const OPENAPI_TIMEOUT: Duration = Duration::from_secs(5);

impl Exchange<'_> {
    /// Answers with the merged document. Only for an answer that [`MergeRequest::concerns`].
    pub(super) async fn send_merged(
        &self,
        merge_request: &MergeRequest,
        down: &mut ClientSession,
        mut up: UpstreamSession,
        mut response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Delivered, ExchangeFailure> {
        let head = *method == Method::HEAD;
        let delivered = if head && response.status == StatusCode::OK {
            // HEAD has no document to merge, and headers about the apiserver's own document would be wrong.
            let form = form_of(merge_request, &response);
            let custom = self.shared.published.snapshot.load().custom.clone();
            let of = &merge_request.peer_discovery;
            if let Some(error) = refusal(&merge_request.document, &form, of, &custom) {
                return Err(self.unmerged(&error));
            }
            upload.forget();
            forget(&mut response);
            self.start_response(down, response, method, true)
                .await
                .map(|_| StatusCode::OK)
        } else {
            // A turn is held while it is read, for which others wait.
            let read = AtomicBool::new(true);
            let entity = async {
                tokio::select! {
                    biased;
                    entity = self.entity(merge_request, &mut up, &response, head) => {
                        entity.map_err(|error| self.unmerged(&error))
                    }
                    failure = self.is_to_be_left(&read) => Err(failure),
                }
            };
            let entity = match unless_gone(down, upload, entity).await {
                Some(entity) => entity?,
                None => return Ok(Outcome::Broken.into()),
            };
            upload.forget();
            self.deliver(merge_request, down, response, &entity, method)
                .await
        };
        let Ok(status) = delivered else {
            return Ok(Outcome::Broken.into());
        };
        let outcome = upload.answered(status.as_u16());
        if up.is_complete() {
            self.release(up, upload).await;
        }
        Ok(outcome.into())
    }

    fn unmerged(&self, error: &OverlayError) -> ExchangeFailure {
        if error.is_of_nobody() {
            return ExchangeFailure::DoubtfulNotFound(None);
        }
        let destination = &self.destination;
        static LOG_RATE: LogRateLimit = LogRateLimit::new();
        if let Some(left_out) = LOG_RATE.admit() {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, %destination, left_out, "a discovery document cannot be served");
        }
        ExchangeFailure::Unmerged
    }

    /// The merged document for an answer.
    async fn entity(
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
                    self.read_whole(up).await?;
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
        if merge_request.document != DocumentRequest::OpenApiV2 || response.status != StatusCode::OK
        {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE);
        let form = openapi::OpenApiFormat::of_v2(content_type?.to_str().ok()?);
        let is_known = merge_request.peer_discovery.openapi.of(form).is_some();
        (!is_known).then_some(())?;
        let most = match self.shared.health.has_suspects() {
            true => Duration::ZERO,
            false => OPENAPI_TIMEOUT,
        };
        let peer_discovery = self.shared.peer_discovery.wait_for(form, most).await;
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
        let form = form_of(merge_request, response);
        let etag = response.headers.get(ETAG).cloned();
        let source = etag.clone().map(EntitySource::Etag);
        let known = || self.known(merge_request, &form, source.as_ref()?);
        if let Some(known) = known() {
            return Ok(known);
        }
        let turn = self.shared.merge_cache.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| OverlayError::GivenUp)?;
        // Whoever had the turn before may have made it.
        if let Some(known) = known() {
            return Ok(known);
        }
        let body = self.read_whole(up).await?;
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
        self.shared.metrics.documents.merges.inc();
        let is_long = bytes.len() > MAX_INLINE_MERGE;
        let upstream = UpstreamDocument {
            document: merge_request.document.clone(),
            form,
            etag,
            body,
        };
        let (peer_discovery, shared_peer_discovery) = (
            merge_request.peer_discovery.clone(),
            self.shared.peer_discovery.clone(),
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
        self.shared.merge_cache.keep(generation, variant, &entity);
        Ok(entity)
    }

    fn known(
        &self,
        merge_request: &MergeRequest,
        form: &EntityFormat,
        source: &EntitySource,
    ) -> Option<Arc<Entity>> {
        let (cache, generation) = (
            &self.shared.merge_cache,
            merge_request.peer_discovery.generation,
        );
        let known = cache.find(generation, &merge_request.document, form, source)?;
        cache.keep(generation, &merge_request.variant, &known);
        Some(known)
    }

    async fn read_whole(&self, up: &mut UpstreamSession) -> Result<Vec<u8>, OverlayError> {
        let mut body = Vec::new();
        let deadline = Instant::now() + READ_TIMEOUT;
        while !up.is_complete() {
            let piece = timeout_at(deadline, up.read_body()).await;
            let piece = piece.map_err(|_| OverlayError::Incomplete)?;
            match piece.map_err(|_| OverlayError::Incomplete)? {
                Some(piece) => body.extend_from_slice(&piece),
                None => break,
            }
            if body.len() > MAX_DOCUMENT {
                return Err(OverlayError::Incomplete);
            }
        }
        Ok(body)
    }

    /// Sends a document with the header of an apiserver's answer.
    async fn deliver(
        &self,
        merge_request: &MergeRequest,
        down: &mut ClientSession,
        mut response: Box<ResponseHeader>,
        entity: &Entity,
        method: &Method,
    ) -> pingora_core::Result<StatusCode> {
        let metrics = &self.shared.metrics.documents;
        if entity.is_known(&merge_request.if_none_match) {
            metrics.count(DocumentOutcome::NotModified);
            let status = StatusCode::NOT_MODIFIED;
            response.set_status(status)?;
            entity.write_not_modified(&mut response)?;
            self.start_response(down, response, method, true).await?;
            return Ok(status);
        }
        metrics.count(match entity.is_merged {
            true => DocumentOutcome::Merged,
            false => DocumentOutcome::Passed,
        });
        response.set_status(StatusCode::OK)?;
        let body = entity.write(&mut response, merge_request.gzip)?;
        let end = *method == Method::HEAD || body.is_empty();
        self.start_response(down, response, method, end).await?;
        if !end {
            // The body is shared, so it costs no memory for each client.
            let mut answer_writer = self.answer_writer(Some(0));
            answer_writer.reserve(body.len()).await?;
            let write = down.write_body(body, true);
            answer_writer.write(std::pin::pin!(write)).await?;
        }
        Ok(StatusCode::OK)
    }
}

impl MergeRequest {
    fn form(&self, content_type: HeaderValue) -> EntityFormat {
        let text = content_type.to_str().unwrap_or("");
        EntityFormat {
            for_one: self.variant.for_one || is_for_one_server(self.variant.accept.as_ref(), text),
            content_type,
        }
    }
}

/// The form of the merged document for this answer of the apiserver.
fn form_of(merge_request: &MergeRequest, response: &ResponseHeader) -> EntityFormat {
    let content_type = response.headers.get(CONTENT_TYPE).cloned();
    merge_request.form(content_type.unwrap_or(HeaderValue::from_static("")))
}

/// Runs `work` until the client goes away.
async fn unless_gone<T>(
    down: &mut ClientSession,
    upload: &Upload,
    work: impl Future<Output = T>,
) -> Option<T> {
    let UploadInterest { followed, idle, .. } = upload.interest(down);
    tokio::select! {
        biased;
        done = work => Some(done),
        Err(_) = down.read_body_or_idle(true), if followed && idle => None,
    }
}
