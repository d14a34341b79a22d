//! One exchange about a document that is added to.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue};
use http::{Method, StatusCode};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::Merging;
use super::entity::{self, Entity, Source, forget};
use super::merge::{Error, Given, make};
use crate::admin::documents::How;
use crate::discovery::openapi;
use crate::relay::accept::{Form, is_for_one_server};
use crate::relay::forward::{Exchange, Failure, Outcome};
use crate::relay::upload::{Listening, Upload};
use crate::routing::documents::Document;
use crate::trouble::Pace;

/// More than any document that was ever seen.
const LONGEST: usize = 64 << 20;
/// A document that is longer is put together on a thread of its own: requests of others would wait for it.
const LONG_WORK: usize = 32 << 10;
/// From a document's header to its end. Who reads one keeps others from it.
const READING: Duration = Duration::from_secs(15);
/// How long the first client waits until peers' OpenAPI documents are read.
const ASKING: Duration = Duration::from_secs(5);

impl Exchange<'_> {
    /// Serves a document with what others have. Only for an answer that [`Merging::concerns`].
    pub(in crate::relay) async fn overlay(
        &self,
        merging: &Merging,
        down: &mut ServerSession,
        mut up: HttpSession,
        mut response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Outcome, Failure> {
        let head = *method == Method::HEAD;
        let delivered = if head && response.status == StatusCode::OK {
            // There is no document to put together, and what is said of the apiserver's own is not true of it.
            upload.forget();
            forget(&mut response);
            self.start_response(down, response, method, true)
                .await
                .map(|()| StatusCode::OK)
        } else {
            let entity = self.entity(merging, &mut up, &response, head);
            let entity = match unless_gone(down, upload, entity).await {
                Some(entity) => entity.map_err(|error| self.unmerged(&error))?,
                None => return Ok(Outcome::Broken),
            };
            upload.forget();
            self.deliver(merging, down, response, &entity, method).await
        };
        let Ok(status) = delivered else {
            return Ok(Outcome::Broken);
        };
        let outcome = upload.answered(status.as_u16());
        if self.is_complete(&mut up) {
            self.give_back(up, upload).await;
        }
        Ok(outcome)
    }

    fn unmerged(&self, error: &Error) -> Failure {
        if matches!(error, Error::Nobody) {
            return Failure::DoubtfulNotFound;
        }
        let destination = &self.destination;
        static PACE: Pace = Pace::new();
        if let Some(left_out) = PACE.admit() {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, %destination, left_out, "a discovery document cannot be served");
        }
        Failure::Unmerged
    }

    /// The document that an answer stands for.
    async fn entity(
        &self,
        merging: &Merging,
        up: &mut HttpSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, Error> {
        let asked = self.asked(merging, response).await;
        let merging = asked.as_ref().unwrap_or(merging);
        let entity = match (response.status, &merging.known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => known.clone(),
            (StatusCode::NOT_FOUND, _) => {
                // It is read for the connection's sake.
                if !head {
                    self.read_whole(up).await?;
                }
                let accepted = Form::accepted(merging.accept.as_ref());
                let form = merging.form(accepted.media_type());
                self.made(merging, form, None, None, None).await?
            }
            _ => self.read(merging, up, response).await?,
        };
        if merging.gzip && entity.is_worth_compressing() && !entity.is_compressed() {
            let entity = entity.clone();
            let compressing = spawn_blocking(move || entity.compress());
            compressing.await.map_err(|_| Error::GivenUp)?;
        }
        Ok(entity)
    }

    /// The same with what peers' OpenAPI documents say, where nobody needed them before.
    async fn asked(&self, merging: &Merging, response: &ResponseHeader) -> Option<Merging> {
        if merging.document != Document::OpenApiV2 || response.status != StatusCode::OK {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE);
        let form = openapi::Form::of_v2(content_type?.to_str().ok()?);
        let is_known = merging.gathered.openapi.of(form).is_some();
        (!is_known).then_some(())?;
        let gathered = self.shared.gathering.asked(form, ASKING).await;
        Some(Merging {
            gathered,
            ..merging.clone()
        })
    }

    /// Reads an apiserver's document and adds to it, unless that was done before.
    async fn read(
        &self,
        merging: &Merging,
        up: &mut HttpSession,
        response: &ResponseHeader,
    ) -> Result<Arc<Entity>, Error> {
        let encoding = response.headers.get(CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            return Err(Error::Encoding(encoding.clone()));
        }
        let turn = self.shared.merges.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| Error::GivenUp)?;
        let content_type = response.headers.get(CONTENT_TYPE).cloned();
        let form = merging.form(content_type.unwrap_or(HeaderValue::from_static("")));
        let etag = response.headers.get(ETAG).cloned();
        if let Some(etag) = &etag {
            let source = Source::Etag(etag.clone());
            if let Some(known) = self.known(merging, &form, &source) {
                return Ok(known);
            }
        }
        let body = self.read_whole(up).await?;
        self.made(merging, form, etag, Some(body), Some(turn)).await
    }

    /// The document that was or now is made from this.
    async fn made(
        &self,
        merging: &Merging,
        form: entity::Form,
        etag: Option<HeaderValue>,
        body: Option<Vec<u8>>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Arc<Entity>, Error> {
        let bytes = body.as_deref().unwrap_or_default();
        let source = Source::of(etag.as_ref(), bytes);
        if let Some(known) = self.known(merging, &form, &source) {
            return Ok(known);
        }
        self.shared.metrics.documents.merges.inc();
        let is_long = bytes.len() > LONG_WORK;
        let given = Given {
            document: merging.document.clone(),
            form,
            etag,
            body,
        };
        let (gathered, gathering) = (merging.gathered.clone(), self.shared.gathering.clone());
        let making = move || {
            let made = make(given, &gathered, &gathering);
            drop(turn);
            made
        };
        let entity = match is_long {
            true => spawn_blocking(making).await.map_err(|_| Error::GivenUp)??,
            false => making()?,
        };
        let entity = Arc::new(entity);
        let generation = merging.gathered.generation;
        let accept = merging.accept.as_ref();
        self.shared.merges.keep(generation, accept, &entity);
        Ok(entity)
    }

    fn known(
        &self,
        merging: &Merging,
        form: &entity::Form,
        source: &Source,
    ) -> Option<Arc<Entity>> {
        let (cache, generation) = (&self.shared.merges, merging.gathered.generation);
        let known = cache.find(generation, &merging.document, form, source)?;
        cache.keep(generation, merging.accept.as_ref(), &known);
        Some(known)
    }

    async fn read_whole(&self, up: &mut HttpSession) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        let deadline = Instant::now() + READING;
        while !self.is_complete(up) {
            let piece = timeout_at(deadline, up.read_response_body()).await;
            let piece = piece.map_err(|_| Error::Incomplete)?;
            match piece.map_err(|_| Error::Incomplete)? {
                Some(piece) => body.extend_from_slice(&piece),
                None => break,
            }
            if body.len() > LONGEST {
                return Err(Error::Incomplete);
            }
        }
        Ok(body)
    }

    /// Sends a document under the header of an apiserver's answer.
    async fn deliver(
        &self,
        merging: &Merging,
        down: &mut ServerSession,
        mut response: Box<ResponseHeader>,
        entity: &Entity,
        method: &Method,
    ) -> pingora_core::Result<StatusCode> {
        let metrics = &self.shared.metrics.documents;
        if entity.is_known(&merging.if_none_match) {
            metrics.count(How::NotModified);
            let status = StatusCode::NOT_MODIFIED;
            response.set_status(status)?;
            entity.write_not_modified(&mut response)?;
            self.start_response(down, response, method, true).await?;
            return Ok(status);
        }
        metrics.count(How::Merged);
        response.set_status(StatusCode::OK)?;
        let body = entity.write(&mut response, merging.gzip)?;
        let end = *method == Method::HEAD || body.is_empty();
        self.start_response(down, response, method, end).await?;
        if !end {
            down.write_response_body(body, true).await?;
        }
        Ok(StatusCode::OK)
    }
}

impl Merging {
    fn form(&self, content_type: HeaderValue) -> entity::Form {
        let text = content_type.to_str().unwrap_or("");
        entity::Form {
            for_one: is_for_one_server(self.accept.as_ref(), text),
            content_type,
        }
    }
}

/// Works unless the client goes away meanwhile.
async fn unless_gone<T>(
    down: &mut ServerSession,
    upload: &Upload,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Listening { followed, idle, .. } = upload.listening(down);
    tokio::select! {
        biased;
        done = work => Some(done),
        Err(_) = down.read_body_or_idle(true), if followed && idle => None,
    }
}
