//! Answers with a merged discovery document instead of the apiserver's own.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicBool;

use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use super::headers::{Exchange, pass_header};
use super::pump::{Upload, UploadInterest};
use super::watch_rest::Delivered;
use crate::log_throttle::LogRateLimit;
use crate::relay::client::ClientSession;
use crate::relay::documents::{
    DocumentMaker, DocumentOutcome, Entity, Overlay, OverlayError, remove_headers,
};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::UpstreamSession;

/// Answers with the merged document. Only for an answer that [`Overlay::concerns`].
pub(super) async fn send_merged(
    exchange: &Exchange<'_>,
    overlay: &Overlay,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    mut response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    let shared = exchange.context.shared;
    let head = exchange.context.method == Method::HEAD;
    let delivered = if head && response.status == StatusCode::OK {
        // HEAD has no document to merge, and headers about the apiserver's own document would be wrong.
        let custom = shared.published.snapshot.load().custom.clone();
        if let Some(error) = overlay.refuses(&response, &custom) {
            return Err(unmerged(exchange, error));
        }
        upload.forget();
        remove_headers(&mut response);
        pass_header(exchange, down, response, true)
            .await
            .map(|_| StatusCode::OK)
    } else {
        let maker = DocumentMaker {
            cache: &shared.merge_cache,
            metrics: &shared.metrics.documents,
            peer_discovery: &shared.peer_discovery,
            health: &shared.servers.health,
        };
        // A turn is held while it is read, for which others wait.
        let read = AtomicBool::new(true);
        let entity = async {
            tokio::select! {
                biased;
                entity = maker.entity(overlay, &mut up, &response, head) => {
                    entity.map_err(|error| unmerged(exchange, error))
                }
                failure = exchange.is_to_be_left(&read) => Err(failure),
            }
        };
        let entity = match unless_gone(down, upload, entity).await {
            Some(entity) => entity?,
            None => return Ok(Outcome::Broken.into()),
        };
        upload.forget();
        deliver(exchange, overlay, down, response, &entity).await
    };
    let Ok(status) = delivered else {
        return Ok(Outcome::Broken.into());
    };
    let outcome = upload.answered(status.as_u16());
    if up.is_complete() {
        exchange.release(up, upload.is_sent()).await;
    }
    Ok(outcome.into())
}

fn unmerged(exchange: &Exchange<'_>, error: OverlayError) -> ExchangeFailure {
    let error = match error {
        // Nothing was passed on, and another server may have it.
        OverlayError::BrokeOff(error) => {
            let reused = false;
            return ExchangeFailure::BrokeOff { error, reused };
        }
        error if error.is_of_nobody() => return ExchangeFailure::DoubtfulNotFound(None),
        error => error,
    };
    let server = exchange.route.address;
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    if let Some(left_out) = LOG_RATE.admit() {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, %server, left_out, "a discovery document cannot be served");
    }
    ExchangeFailure::Unmerged
}

/// Sends a document with the header of an apiserver's answer.
async fn deliver(
    exchange: &Exchange<'_>,
    overlay: &Overlay,
    down: &mut ClientSession,
    mut response: Box<ResponseHeader>,
    entity: &Entity,
) -> pingora_core::Result<StatusCode> {
    let metrics = &exchange.context.shared.metrics.documents;
    if entity.is_known(&overlay.if_none_match) {
        metrics.count(DocumentOutcome::NotModified);
        let status = StatusCode::NOT_MODIFIED;
        response.set_status(status)?;
        entity.write_not_modified(&mut response)?;
        pass_header(exchange, down, response, true).await?;
        return Ok(status);
    }
    metrics.count(match entity.is_merged {
        true => DocumentOutcome::Merged,
        false => DocumentOutcome::Passed,
    });
    response.set_status(StatusCode::OK)?;
    let body = entity.write(&mut response, overlay.gzip)?;
    let end = exchange.context.method == Method::HEAD || body.is_empty();
    pass_header(exchange, down, response, end).await?;
    if !end {
        // The body is shared, so it costs no memory for each client.
        let mut answer_writer = exchange.answer_writer(Some(0));
        answer_writer.reserve(body.len()).await?;
        let write = down.write_body(body, true);
        answer_writer.write(pin!(write)).await?;
    }
    Ok(StatusCode::OK)
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
