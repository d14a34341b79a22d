//! One exchange, from the request to the end of the answer.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use http::request::Parts;
use tokio::sync::SemaphorePermit;

use super::answer_header::pass_header;
use super::ask::{Asked, answer_timeout, ask};
use super::first_event::answer_start;
use super::look::{Look, look};
use super::merged::send_merged;
use super::parameters::Exchange;
use super::peek::{after_404, after_410, after_turning_away};
use super::stream::stream;
use super::upload::Upload;
use super::watch_rest::Delivered;
use crate::net::rare;
use crate::relay::client::ClientSession;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::RequestKind;
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
    let (shared, request) = (context.shared, context.request);
    let server = exchange.destination.address;
    context.meter.attempt(server);
    let mut final_bookmark = match context.kind {
        RequestKind::Long => {
            FinalBookmark::of(shared, request.settings, request.info, &header, server)
        }
        _ => FinalBookmark::none(shared),
    };
    let outflow = &context.downstream.outflow;
    let _long = (context.kind != RequestKind::Short).then(|| outflow.long_running());
    let sent = AtomicBool::new(false);
    let asked = tokio::select! {
        biased;
        asked = ask(exchange, down, header, upload, &sent) => asked?,
        failure = answer_timeout(exchange, &sent) => return Err(failure),
    };
    drop(permit);
    let Some(Asked {
        mut up,
        response,
        own_time,
    }) = asked
    else {
        return Ok(Outcome::Broken.into());
    };
    let answered = Instant::now();
    shared.servers.frozen.heard(server);
    if let Some(token) = exchange.token {
        let code = response.status.as_u16();
        if context.tokens.answered(token, request.method, code) {
            context.downstream.verified();
        }
    }
    // What is rare is boxed, so that it takes no place in the future of every request.
    match look(exchange, &response) {
        Look::Pass => {}
        Look::Fail(failure) => return Err(failure),
        Look::Expired => return rare(|| after_410(exchange, down, up, response, upload)).await,
        Look::TurnedAway => {
            return rare(|| after_turning_away(exchange, down, up, response, upload)).await;
        }
        Look::Merge(merge_request) => {
            return rare(|| send_merged(exchange, merge_request, down, up, response, upload)).await;
        }
        Look::NotFound => return rare(|| after_404(exchange, down, up, response, upload)).await,
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
        let own_time = own_time + (begun - answered);
        shared.metrics.own_time.observe(own_time.as_secs_f64());
        if end {
            let outcome = upload.answered(code);
            exchange.release(up, upload).await;
            return Ok(outcome.into());
        }
    }
    stream(exchange, down, up, upload, (code, start), &final_bookmark).await
}
