//! Answers whose bodies are read before they are passed on: they may mean that another server is to be asked.

use std::sync::Arc;

use bytes::Bytes;
use pingora_http::ResponseHeader;

use super::expired::{Expiry, REST_TIMEOUT};
use super::pump::Exchange;
use crate::relay::client::ClientSession;
use crate::relay::inspect::not_found::{self, NotFound};
use crate::relay::inspect::not_understood;
use crate::relay::inspect::turned_away::{self, Reason};
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

/// An answer that is to be passed on.
pub(super) struct Beginning {
    pub(super) response: Box<ResponseHeader>,
    /// What was read of its body, or made.
    pub(super) body: Bytes,
    /// That is all of it.
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
        ReadKind::NotFound => (not_found::LIMIT, not_found::TIMEOUT),
        ReadKind::NotUnderstood => (not_understood::LIMIT, not_understood::TIMEOUT),
    };
    let prefix = match (up.read_prefix(limit, time).await, kind) {
        (Ok(prefix), _) => prefix,
        // It broke off: nothing was passed on.
        (Err(_), ReadKind::TurnedAway | ReadKind::NotUnderstood) => return Ok(None),
        (Err(_), ReadKind::NotFound) => return Err(ExchangeFailure::DoubtfulNotFound(None)),
        (Err(_), ReadKind::Expired) if matches!(exchange.expiry, Expiry::Asked(_)) => {
            return Err(ExchangeFailure::NotContinued);
        }
        // A watch changes nothing.
        (Err(error), ReadKind::Expired) => {
            let reused = false;
            return Err(ExchangeFailure::BrokeOff { error, reused });
        }
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
    let body = prefix.body.into();
    if let Some(failure) = failure {
        let is_404 = matches!(kind, ReadKind::NotFound);
        if !is_404 || exchange.route.no_such_resource != NoSuchResource::IfProved {
            return Err(failure(Arc::new(KeptAnswer { response, body })));
        }
        // It passes once it is proved that no server lists the resource.
        let (context, absence) = (exchange.context, &exchange.context.shared.published.absence);
        let known = tokio::select! {
            known = absence.is_nobody_missing() => known,
            () = down.gone() => return Ok(None),
        };
        if !known || !plan::is_nobodys(context) {
            return Err(failure(Arc::new(KeptAnswer { response, body })));
        }
    }
    Ok(Some(Beginning {
        response,
        body,
        whole: prefix.complete,
    }))
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
    if matches!(exchange.expiry, Expiry::Asked(_)) {
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
