//! Answers whose bodies are read before they are passed on: they may mean that another server is to be asked, or are
//! discovery documents to which something is added.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use super::expired::REST_TIMEOUT;
use super::pump::Exchange;
use super::upload::Upload;
use crate::log_throttle::{chain, log_rarely};
use crate::relay::client::ClientSession;
use crate::relay::documents::{DocumentMaker, Entity, Overlay, OverlayError, remove_headers};
use crate::relay::inspect::not_found::{self, NotFound};
use crate::relay::inspect::turned_away::{self, Reason};
use crate::relay::inspect::{STATUS_LIMIT, STATUS_TIMEOUT, not_understood};
use crate::relay::outcome::{ExchangeFailure, Expired, KeptAnswer};
use crate::relay::plan;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::routing::decide::NoSuchResource;
use crate::routing::table::ServerKind;
use crate::watches::frames::first_event::LIMIT;

/// Why the body of an answer is read first.
#[derive(Clone, Copy)]
pub(super) enum ReadKind {
    /// A 410 that other servers may not give.
    Expired,
    /// It shows whether the server turns the request away.
    TurnedAway,
    /// It decides whether the 404 can be trusted.
    NotFound,
    /// It shows whether a newer server may understand the request.
    NotUnderstood,
}

/// An answer that is to be passed on, with what was read of its body, or made.
pub(super) struct Beginning {
    pub(super) answer: KeptAnswer,
    /// That is all of its body.
    pub(super) whole: bool,
}

/// What an answer means that is kept, because another server is asked.
type Failure = fn(Arc<KeptAnswer>) -> ExchangeFailure;

/// Reads the beginning of a body, and decides whether the answer is passed on. `None`: nobody is to get it.
pub(super) async fn read_first(
    exchange: &Exchange<'_>,
    kind: ReadKind,
    down: &mut ClientSession,
    up: &mut UpstreamSession,
    response: Box<ResponseHeader>,
) -> Result<Option<Beginning>, ExchangeFailure> {
    let (limit, time) = match kind {
        ReadKind::Expired => (LIMIT, REST_TIMEOUT),
        ReadKind::TurnedAway => (turned_away::LIMIT, turned_away::READING),
        ReadKind::NotFound | ReadKind::NotUnderstood => (STATUS_LIMIT, STATUS_TIMEOUT),
    };
    let prefix = match (up.read_prefix(limit, time).await, kind) {
        (Ok(prefix), _) => prefix,
        // It broke off: nothing was passed on.
        (Err(_), ReadKind::TurnedAway | ReadKind::NotUnderstood) => return Ok(None),
        (Err(_), ReadKind::NotFound) => return Err(ExchangeFailure::DoubtfulNotFound(None)),
        (Err(_), ReadKind::Expired) if exchange.resumed.is_some() => {
            return Err(ExchangeFailure::NotContinued);
        }
        // A watch changes nothing.
        (Err(error), ReadKind::Expired) => return Err(ExchangeFailure::broke_off(error)),
    };
    let failure = match kind {
        ReadKind::Expired => after_410(exchange, &prefix)?,
        ReadKind::TurnedAway => after_turning_away(exchange, &response, &prefix).await,
        ReadKind::NotFound => after_404(exchange, &response, &prefix)?,
        ReadKind::NotUnderstood => {
            let says_so = not_understood::says_so(response.status, &prefix.body);
            (prefix.complete && says_so).then_some(ExchangeFailure::NotUnderstood as Failure)
        }
    };
    let (body, whole) = (prefix.body.into(), prefix.complete);
    let answer = KeptAnswer { response, body };
    let Some(failure) = failure else {
        return Ok(Some(Beginning { answer, whole }));
    };
    let may_be_proved = matches!(kind, ReadKind::NotFound)
        && exchange.route.no_such_resource == NoSuchResource::IfProved;
    // It passes once it is proved that no server lists the resource.
    let is_proved = may_be_proved && {
        let absence = &exchange.context.shared.published.absence;
        tokio::select! {
            known = absence.is_nobody_missing() => known && plan::is_nobodys(exchange.context),
            () = down.gone() => return Ok(None),
        }
    };
    match is_proved {
        true => Ok(Some(Beginning { answer, whole })),
        false => Err(failure(Arc::new(answer))),
    }
}

fn after_410(
    exchange: &Exchange<'_>,
    prefix: &BodyPrefix,
) -> Result<Option<Failure>, ExchangeFailure> {
    if prefix.complete && prefix.body.len() <= LIMIT {
        return Ok(Some(|answer| {
            ExchangeFailure::Expired(Expired::Answer(answer))
        }));
    }
    if exchange.resumed.is_some() {
        return Err(ExchangeFailure::NotContinued);
    }
    let metrics = &exchange.context.shared.metrics.watches;
    metrics.expired(false);
    Ok(None)
}

/// Whether the request was turned away, as far as the state of the local apiserver confirms it.
async fn after_turning_away(
    exchange: &Exchange<'_>,
    response: &ResponseHeader,
    prefix: &BodyPrefix,
) -> Option<Failure> {
    let shared = exchange.context.shared;
    let reason = {
        let snapshot = shared.published.snapshot.load();
        let whole = prefix.complete.then_some(&prefix.body)?;
        turned_away::reason(&exchange.asking(), &snapshot, response, whole)?
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
    confirmed.then_some(match reason {
        Reason::ShutsDown => ExchangeFailure::Terminating,
        Reason::Initializes | Reason::LacksEtcd => ExchangeFailure::Unavailable,
    })
}

/// Whether a 404 cannot be trusted.
fn after_404(
    exchange: &Exchange<'_>,
    response: &ResponseHeader,
    BodyPrefix { body, complete }: &BodyPrefix,
) -> Result<Option<Failure>, ExchangeFailure> {
    let method = &exchange.context.method;
    match not_found::conclude(method, &response.headers, body, *complete) {
        NotFound::Unread => Err(ExchangeFailure::DoubtfulNotFound(None)),
        NotFound::Object => Ok(None),
        NotFound::NoSuchResource => Ok(Some(match exchange.route.no_such_resource {
            NoSuchResource::IfUnanimous => ExchangeFailure::NoSuchResource,
            _ => |answer| ExchangeFailure::DoubtfulNotFound(Some(answer)),
        })),
    }
}

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
    Ok(body.ok().map(|body| {
        let body = if head { Bytes::new() } else { body };
        let answer = KeptAnswer { response, body };
        Beginning {
            answer,
            whole: true,
        }
    }))
}

fn unmerged(exchange: &Exchange<'_>, error: OverlayError) -> ExchangeFailure {
    let error = match error {
        // Nothing was passed on, and another server may have it.
        OverlayError::BrokeOff(error) => return ExchangeFailure::broke_off(error),
        OverlayError::Nobody => return ExchangeFailure::DoubtfulNotFound(None),
        error => error,
    };
    let server = exchange.route.address;
    let error = chain(&error);
    log_rarely!(warn, error, %server, "a discovery document cannot be served");
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
