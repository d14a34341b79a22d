//! Answers with a merged discovery document instead of the apiserver's own.

use bytes::Bytes;
use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use super::pump::Exchange;
use super::read_first::Beginning;
use super::upload::Upload;
use crate::log_throttle::LogRateLimit;
use crate::relay::client::ClientSession;
use crate::relay::documents::{DocumentMaker, Entity, Overlay, OverlayError, remove_headers};
use crate::relay::outcome::ExchangeFailure;
use crate::relay::upstream::UpstreamSession;

/// What is passed on instead of the answer `response`, which [`Overlay::concerns`]. `None`: the client went away.
pub(super) async fn merge(
    exchange: &Exchange<'_>,
    overlay: &Overlay,
    down: &mut ClientSession,
    up: &mut UpstreamSession,
    mut response: Box<ResponseHeader>,
    upload: &Upload,
) -> Result<Option<Beginning>, ExchangeFailure> {
    let shared = exchange.context.shared;
    let head = exchange.context.method == Method::HEAD;
    let body = if head && response.status == StatusCode::OK {
        // HEAD has no document to merge, and headers about the apiserver's own document would be wrong.
        remove_headers(&mut response);
        Ok(Bytes::new())
    } else {
        let maker = DocumentMaker {
            cache: &shared.merge_cache,
            peer_discovery: &shared.peer_discovery,
            health: &shared.servers.health,
        };
        let (idle, followed) = upload.interest(down);
        let entity = tokio::select! {
            biased;
            entity = maker.entity(overlay, up, &response, head) => entity,
            Err(_) = down.read_body_or_idle(true), if followed && idle => return Ok(None),
        };
        let entity = entity.map_err(|error| unmerged(exchange, error))?;
        write(overlay, &mut response, &entity)
    };
    // What cannot be written is not passed on.
    Ok(body.ok().map(|body| Beginning {
        response,
        body: if head { Bytes::new() } else { body },
        whole: true,
    }))
}

fn unmerged(exchange: &Exchange<'_>, error: OverlayError) -> ExchangeFailure {
    let error = match error {
        // Nothing was passed on, and another server may have it.
        OverlayError::BrokeOff(error) => {
            let reused = false;
            return ExchangeFailure::BrokeOff { error, reused };
        }
        OverlayError::Nobody => return ExchangeFailure::DoubtfulNotFound(None),
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

/// Writes what is about the document into the header of an apiserver's answer. Returns its body.
fn write(
    overlay: &Overlay,
    response: &mut ResponseHeader,
    entity: &Entity,
) -> pingora_core::Result<Bytes> {
    if entity.is_known(&overlay.if_none_match) {
        response.set_status(StatusCode::NOT_MODIFIED)?;
        entity.write_not_modified(response)?;
        return Ok(Bytes::new());
    }
    response.set_status(StatusCode::OK)?;
    entity.write(response, overlay.gzip)
}
