//! Answers whose bodies are read before they are passed on: they may mean that another server is to be asked. Also passes
//! on what was read or kept.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use pingora_http::ResponseHeader;

use super::expired::{Expiry, REST_TIMEOUT};
use super::headers::{Exchange, pass_header};
use super::pump::{Upload, stream};
use super::watch_rest::Delivered;
use crate::relay::client::ClientSession;
use crate::relay::inspect::not_found::{self, NotFound};
use crate::relay::inspect::turned_away::{self, Reason};
use crate::relay::outcome::{ExchangeFailure, Expired, KeptAnswer, Outcome};
use crate::relay::plan;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::relay::watch::FinalBookmark;
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
}

/// What an answer means that is kept, because another server is asked.
type Failure = fn(Arc<KeptAnswer>) -> ExchangeFailure;

/// Reads the beginning of a body, and passes the answer on or keeps it.
pub(super) async fn read_first(
    exchange: &Exchange<'_>,
    kind: ReadKind,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    let (limit, time) = match kind {
        ReadKind::Expired => (LIMIT, REST_TIMEOUT),
        ReadKind::TurnedAway => (turned_away::LIMIT, turned_away::READING),
        ReadKind::NotFound => (not_found::LIMIT, not_found::TIMEOUT),
    };
    let prefix = match up.read_prefix(limit, time).await {
        Ok(prefix) => prefix,
        Err(error) => return unread(exchange, kind, error),
    };
    let failure = match kind {
        ReadKind::Expired => after_410(exchange, &prefix)?,
        ReadKind::TurnedAway => after_turning_away(exchange, &response, &prefix).await,
        ReadKind::NotFound => after_404(exchange, &response, &prefix)?,
    };
    let Some(failure) = failure else {
        return pass(exchange, down, up, response, prefix, upload).await;
    };
    // The whole body was read: the connection can be used again.
    exchange.release(up, upload.is_sent()).await;
    let body = prefix.body.into();
    let answer = Arc::new(KeptAnswer { response, body });
    let proved = matches!(kind, ReadKind::NotFound)
        && exchange.route.no_such_resource == NoSuchResource::IfProved;
    match proved {
        true => pass_proved(exchange, answer, down, upload).await,
        false => Err(failure(answer)),
    }
}

/// The body broke off: nothing was passed on.
fn unread(
    exchange: &Exchange<'_>,
    kind: ReadKind,
    error: Box<pingora_core::Error>,
) -> Result<Delivered, ExchangeFailure> {
    match kind {
        ReadKind::Expired if matches!(exchange.expiry, Expiry::Asked(_)) => {
            Err(ExchangeFailure::NotContinued)
        }
        // A watch changes nothing.
        ReadKind::Expired => {
            let reused = false;
            Err(ExchangeFailure::BrokeOff { error, reused })
        }
        ReadKind::TurnedAway => Ok(Outcome::Broken.into()),
        ReadKind::NotFound => Err(ExchangeFailure::DoubtfulNotFound(None)),
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

/// Passes on "no such resource" once it is proved that no server lists the resource.
async fn pass_proved(
    exchange: &Exchange<'_>,
    answer: Arc<KeptAnswer>,
    down: &mut ClientSession,
    upload: &Upload,
) -> Result<Delivered, ExchangeFailure> {
    let (context, shared) = (exchange.context, exchange.context.shared);
    let known = tokio::select! {
        known = shared.published.absence.is_nobody_missing() => known,
        () = down.gone() => return Ok(Outcome::Broken.into()),
    };
    match known && plan::is_nobodys(context) {
        true => Ok(pass_kept(exchange, &answer, down, upload).await.into()),
        false => Err(ExchangeFailure::DoubtfulNotFound(Some(answer))),
    }
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
    let body = body.into();
    if complete {
        let answer = KeptAnswer { response, body };
        let outcome = pass_kept(exchange, &answer, down, upload).await;
        exchange.release(up, upload.is_sent()).await;
        return Ok(outcome.into());
    }
    let passing = async {
        pass_header(exchange, down, response, false).await?;
        write_piece(exchange, down, body, false).await
    };
    if passing.await.is_err() {
        return Ok(Outcome::Broken.into());
    }
    let none = FinalBookmark::none(exchange.context.shared);
    stream(exchange, down, up, upload, (code, None), &none).await
}

/// Passes on an answer that was kept.
pub async fn pass_kept(
    exchange: &Exchange<'_>,
    answer: &KeptAnswer,
    down: &mut ClientSession,
    upload: &Upload,
) -> Outcome {
    let KeptAnswer { response, body } = answer.clone();
    let code = response.status.as_u16();
    let end = body.is_empty();
    let passing = async {
        pass_header(exchange, down, response, end).await?;
        match end {
            true => Ok(()),
            false => write_piece(exchange, down, body, true).await,
        }
    };
    match passing.await {
        Ok(()) => upload.answered(code),
        Err(_) => Outcome::Broken,
    }
}

/// Passes a 410 as the only event below a header that was sent.
pub async fn pass_event(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    event: Bytes,
    upload: &Upload,
) -> Outcome {
    match write_piece(exchange, down, event, true).await {
        Ok(()) => upload.answered(StatusCode::OK.as_u16()),
        Err(_) => Outcome::Broken,
    }
}

/// Writes a piece of a body that was kept, within the budget for slow clients. `end`: it is the whole body.
pub(super) async fn write_piece(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    piece: Bytes,
    end: bool,
) -> pingora_core::Result<()> {
    let length = piece.len();
    let mut answer_writer = exchange.answer_writer(end.then_some(length));
    answer_writer.reserve(length).await?;
    let write = down.write_body(piece, end);
    answer_writer.write(pin!(write)).await
}
