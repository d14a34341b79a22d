//! One exchange, from the request to the end of the answer.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use http::StatusCode;
use http::request::Parts;
use pingora_http::ResponseHeader;
use tokio::sync::SemaphorePermit;

use super::answer::ends;
use super::answer_header::pass_header;
use super::ask::{answer_timeout, ask};
use super::first_event::answer_start;
use super::look::{Look, ReadKind, look};
use super::merged::send_merged;
use super::parameters::Exchange;
use super::peek::{after_404, after_410, after_turning_away};
use super::stream::stream;
use super::upgraded::splice;
use super::upload::Upload;
use super::watch_rest::Delivered;
use crate::net::rare;
use crate::relay::client::ClientSession;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::FinalBookmark;

/// Runs the exchange to its end. `upload` replays the part of the request's body that earlier exchanges have read.
/// `permit`: held until the server has answered, and never while the client decides how long something takes.
pub async fn run(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    header: Box<Parts>,
    upload: &mut Upload,
    permit: Option<Box<SemaphorePermit<'_>>>,
) -> Result<Delivered, ExchangeFailure> {
    let context = exchange.context;
    context.meter.attempt(exchange.destination.address);
    let mut final_bookmark = final_bookmark(exchange, &header);
    let outflow = &context.downstream.outflow;
    let _long = (context.kind != RequestKind::Short).then(|| outflow.long_running());
    let sent = AtomicBool::new(false);
    let asked = tokio::select! {
        biased;
        asked = ask(exchange, down, header, upload, &sent) => asked?,
        failure = answer_timeout(exchange, &sent) => return Err(failure),
    };
    drop(permit);
    let Some(asked) = asked else {
        return Ok(Outcome::Broken.into());
    };
    let (mut up, response) = (asked.up, asked.response);
    let answered = Instant::now();
    note_answer(exchange, &response);
    match look(exchange, &response) {
        Look::Pass => {}
        Look::Fail(failure) => return Err(failure),
        // Boxed, so that it takes no place in the future of every request.
        Look::Read(kind) => return rare(|| read(exchange, kind, down, up, response, upload)).await,
    }
    let code = response.status.as_u16();
    final_bookmark.answered(&response);
    let end = up.is_complete();
    let start = answer_start(exchange.expiry, &response);
    if start.is_none() {
        upload.forget();
    }
    if !exchange.expiry.is_begun() {
        exchange.expiry.begins(&response);
        let Ok(begun) = pass_header(exchange, down, response, end).await else {
            return Ok(Outcome::Broken.into());
        };
        let own_time = asked.own_time + (begun - answered);
        let metrics = &context.shared.metrics;
        metrics.own_time.observe(own_time.as_secs_f64());
        if end {
            let outcome = upload.answered(code);
            exchange.release(up, upload).await;
            return Ok(outcome.into());
        }
    }
    if code == StatusCode::SWITCHING_PROTOCOLS {
        rare(|| upgraded(exchange, &final_bookmark, down, up)).await;
        return Ok(Outcome::Upgraded.into());
    }
    stream(exchange, down, up, upload, (code, start), &final_bookmark).await
}

/// How a long-running request ends before its server ends it.
fn final_bookmark<'e>(exchange: &Exchange<'e>, header: &Parts) -> FinalBookmark<'e> {
    let (shared, request) = (exchange.context.shared, exchange.context.request);
    let server = exchange.destination.address;
    match exchange.context.kind {
        RequestKind::Long => {
            FinalBookmark::of(shared, request.settings, request.info, header, server)
        }
        _ => FinalBookmark::none(shared),
    }
}

/// Notes what an answer says of its server, and of the client's token.
fn note_answer(exchange: &Exchange<'_>, response: &ResponseHeader) {
    let context = exchange.context;
    let server = exchange.destination.address;
    context.shared.servers.frozen.heard(server);
    if let Some(token) = exchange.token {
        let (method, code) = (context.request.method, response.status.as_u16());
        if context.tokens.answered(token, method, code) {
            context.downstream.verified();
        }
    }
}

/// An answer whose body is read before it is passed on.
async fn read(
    exchange: &Exchange<'_>,
    kind: ReadKind<'_>,
    down: &mut ClientSession,
    up: UpstreamSession,
    response: Box<ResponseHeader>,
    upload: &mut Upload,
) -> Result<Delivered, ExchangeFailure> {
    match kind {
        ReadKind::Expired => after_410(exchange, down, up, response, upload).await,
        ReadKind::TurnedAway => after_turning_away(exchange, down, up, response, upload).await,
        ReadKind::Merge(merge) => send_merged(exchange, merge, down, up, response, upload).await,
        ReadKind::NotFound => after_404(exchange, down, up, response, upload).await,
    }
}

/// Copies both ways until one side ends.
async fn upgraded(
    exchange: &Exchange<'_>,
    final_bookmark: &FinalBookmark<'_>,
    down: &mut ClientSession,
    up: UpstreamSession,
) {
    let revalidation = exchange.revalidation();
    splice(down, up, ends(final_bookmark, &revalidation)).await;
}
