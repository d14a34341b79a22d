//! Answers whose bodies are read before they are passed on: they may mean that another server is to be asked.

use std::sync::Arc;

use pingora_http::ResponseHeader;

use super::answer_header::pass_header;
use super::expiry::Expiry;
use super::parameters::Exchange;
use super::stream::stream;
use super::upload::Upload;
use super::watch_rest::Delivered;
use super::whole::{pass_kept, write_piece};
use crate::relay::client::ClientSession;
use crate::relay::inspect::expired;
use crate::relay::inspect::not_found::{self, NotFound};
use crate::relay::inspect::turned_away::{self, Reason};
use crate::relay::outcome::{ExchangeFailure, Expired, KeptAnswer, Outcome};
use crate::relay::plan;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::relay::watch::FinalBookmark;
use crate::routing::decide::NoSuchResource;
use crate::routing::table::ServerKind;
use crate::watches::metrics::ExpiredResult;

/// Reads a 410 to a watch.
pub(super) async fn after_410(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    let prefix = up.read_prefix(expired::LIMIT, expired::REST_TIMEOUT).await;
    match prefix {
        Ok(prefix) if prefix.complete && prefix.body.len() <= expired::LIMIT => {
            let answer = keep(exchange, up, response, prefix, upload).await;
            Err(ExchangeFailure::Expired(Expired::Answer(answer)))
        }
        _ if matches!(exchange.expiry, Expiry::Asked(_)) => Err(ExchangeFailure::NotContinued),
        Ok(prefix) => {
            let metrics = &exchange.context.shared.metrics;
            metrics.watches.expired(ExpiredResult::Passed);
            pass(exchange, down, up, response, prefix, upload).await
        }
        // Nothing was passed on, and a watch changes nothing.
        Err(error) => {
            let reused = false;
            Err(ExchangeFailure::BrokeOff { error, reused })
        }
    }
}

/// Reads an answer that may turn the request away.
pub(super) async fn after_turning_away(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    let prefix = up.read_prefix(turned_away::LIMIT, turned_away::READING);
    let Ok(prefix) = prefix.await else {
        return Ok(Outcome::Broken.into());
    };
    let reason = match prefix.complete {
        true => confirmed_reason(exchange, &response, &prefix.body).await,
        false => None,
    };
    let Some(reason) = reason else {
        let passing = pass(exchange, down, up, response, prefix, upload);
        return passing.await;
    };
    let answer = keep(exchange, up, response, prefix, upload).await;
    Err(match reason {
        Reason::ShutsDown => ExchangeFailure::Terminating(answer),
        Reason::Initializes | Reason::LacksEtcd => ExchangeFailure::Unavailable(answer),
    })
}

/// Why the request was turned away, as far as the state of the local apiserver confirms it.
async fn confirmed_reason(
    exchange: &Exchange<'_>,
    response: &ResponseHeader,
    body: &[u8],
) -> Option<Reason> {
    let shared = exchange.context.shared;
    let reason = {
        let snapshot = shared.published.snapshot.load();
        turned_away::reason(&exchange.asking(), &snapshot, response, body)?
    };
    let is_local = exchange.route.server_kind == ServerKind::Local;
    let confirmed = match reason {
        Reason::ShutsDown => !is_local || shared.local.has_turned_away(turned_away::PATIENCE).await,
        Reason::Initializes => true,
        Reason::LacksEtcd => {
            let found = shared.local.is_found_without_etcd(turned_away::PATIENCE);
            found.await
        }
    };
    confirmed.then_some(reason)
}

/// Reads the body of a 404, which decides whether the 404 can be trusted.
pub(super) async fn after_404(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    let prefix = up.read_prefix(not_found::LIMIT, not_found::TIMEOUT).await;
    let prefix = prefix.map_err(|_| ExchangeFailure::DoubtfulNotFound(None))?;
    let BodyPrefix { body, complete } = &prefix;
    let method = exchange.context.request.method;
    match not_found::conclude(method, &response.headers, body, *complete) {
        NotFound::Unread => Err(ExchangeFailure::DoubtfulNotFound(None)),
        NotFound::Object => pass(exchange, down, up, response, prefix, upload).await,
        NotFound::NoSuchResource => {
            let answer = keep(exchange, up, response, prefix, upload).await;
            match exchange.route.no_such_resource {
                NoSuchResource::IfUnanimous => Err(ExchangeFailure::NoSuchResource(answer)),
                NoSuchResource::IfProved => pass_proved(exchange, answer, down, upload).await,
                _ => Err(ExchangeFailure::DoubtfulNotFound(Some(answer))),
            }
        }
    }
}

/// Passes on "no such resource" once it is proved that no server lists the resource.
async fn pass_proved(
    exchange: &Exchange<'_>,
    answer: Arc<KeptAnswer>,
    down: &mut ClientSession,
    upload: &Upload,
) -> Result<Delivered, ExchangeFailure> {
    let (shared, request) = (exchange.context.shared, exchange.context.request);
    let known = tokio::select! {
        known = shared.published.absence.is_nobody_missing() => known,
        () = down.gone() => return Ok(Outcome::Broken.into()),
    };
    match known && plan::is_nobodys(shared, request) {
        true => Ok(pass_kept(exchange, &answer, down, upload).await.into()),
        false => Err(ExchangeFailure::DoubtfulNotFound(Some(answer))),
    }
}

/// Keeps an answer whose whole body was read. Its connection can be used again.
async fn keep(
    exchange: &Exchange<'_>,
    up: UpstreamSession,
    response: Box<ResponseHeader>,
    prefix: BodyPrefix,
    upload: &Upload,
) -> Arc<KeptAnswer> {
    exchange.release(up, upload).await;
    let body = prefix.body.into();
    Arc::new(KeptAnswer { response, body })
}

/// Passes on an answer whose first bytes were read.
async fn pass(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    up: UpstreamSession,
    response: Box<ResponseHeader>,
    prefix: BodyPrefix,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    upload.forget();
    let code = response.status.as_u16();
    let BodyPrefix { body, complete } = prefix;
    let end = complete && body.is_empty();
    if pass_header(exchange, down, response, end).await.is_err() {
        return Ok(Outcome::Broken.into());
    }
    if !end {
        let writing = write_piece(exchange, down, body.into(), complete);
        if writing.await.is_err() {
            return Ok(Outcome::Broken.into());
        }
    }
    if !complete {
        let none = FinalBookmark::none(exchange.context.shared);
        return stream(exchange, down, up, upload, (code, None), &none).await;
    }
    let outcome = upload.answered(code);
    exchange.release(up, upload).await;
    Ok(outcome.into())
}
