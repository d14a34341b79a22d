//! One exchange, from the request to the end of the answer: asks the server, and looks at the header of its answer.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::request::Parts;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;
use tokio::sync::SemaphorePermit;

use super::expired::{Expiry, answer_start};
use super::headers::{Exchange, pass_header};
use super::merged::send_merged;
use super::pump::{Upload, UploadInterest, stream};
use super::read_first::{ReadKind, read_first};
use super::upgraded::splice;
use super::watch_rest::Delivered;
use crate::net::{is_unprocessed, rare};
use crate::relay::client::ClientSession;
use crate::relay::documents::Overlay;
use crate::relay::inspect::{denials, not_executed, turned_away};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::{FinalBookmark, ends};
use crate::routing::decide::NoSuchResource;

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
    context.meter.attempt(exchange.route.address);
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
    let Some((mut up, response, own_time)) = asked else {
        return Ok(Outcome::Broken.into());
    };
    let answered = Instant::now();
    note_answer(exchange, &response);
    // Boxed, so that it takes no place in the future of every request.
    match look(exchange, &response)? {
        Look::Pass => {}
        Look::Merge(merge) => {
            return rare(|| send_merged(exchange, merge, down, up, response, upload)).await;
        }
        Look::Read(kind) => {
            return rare(|| read_first(exchange, kind, down, up, response, upload)).await;
        }
    }
    let code = response.status.as_u16();
    final_bookmark.answered(&response);
    let end = up.is_complete();
    let start = answer_start(exchange.expiry, &context.shared.metrics.watches, &response);
    if start.is_none() {
        upload.forget();
    }
    if !exchange.expiry.is_begun() {
        exchange.expiry.begins(&response);
        let Ok(begun) = pass_header(exchange, down, response, end).await else {
            return Ok(Outcome::Broken.into());
        };
        let own_time = (own_time + (begun - answered)).as_secs_f64();
        context.shared.metrics.own_time.observe(own_time);
        if end {
            exchange.release(up, upload.is_sent()).await;
            return Ok(upload.answered(code).into());
        }
    }
    if code == StatusCode::SWITCHING_PROTOCOLS {
        let revalidation = exchange.revalidation();
        rare(|| splice(down, up, ends(&final_bookmark, &revalidation))).await;
        return Ok(Outcome::Upgraded.into());
    }
    stream(exchange, down, up, upload, (code, start), &final_bookmark).await
}

/// How a long-running request ends before its server ends it.
fn final_bookmark<'e>(exchange: &Exchange<'e>, header: &Parts) -> FinalBookmark<'e> {
    let (context, shared) = (exchange.context, exchange.context.shared);
    let server = exchange.route.address;
    match context.kind {
        RequestKind::Long => {
            FinalBookmark::of(shared, &context.settings, &context.info, header, server)
        }
        _ => FinalBookmark::none(shared),
    }
}

/// Sends the request and reads the header of its answer; also the time that the proxy itself took until the request was
/// sent. `None`: the client went away. `sent`: some of it may have arrived.
async fn ask(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    header: Box<Parts>,
    upload: &mut Upload,
    sent: &AtomicBool,
) -> Result<Option<(UpstreamSession, Box<ResponseHeader>, Duration)>, ExchangeFailure> {
    let (mut up, reused) = exchange
        .pool
        .session(exchange.route.address, exchange.connection)
        .await
        .map_err(ExchangeFailure::Unsent)?;
    let broke_off = |error: Box<Error>| match is_unprocessed(&error) {
        true => ExchangeFailure::Unprocessed(error),
        false => ExchangeFailure::BrokeOff { error, reused },
    };

    // A stream that is opened and reset at once counts against the connection. A server closes a connection with
    // too many of them, and other requests share it.
    let gone = poll_fn(|context| Poll::Ready(down.poll_gone(context).is_ready()));
    if gone.await {
        return Ok(None);
    }
    let name = &*exchange.pool.to.name;
    sent.store(true, Ordering::Relaxed);
    let sending = up.write_header(header, upload.is_expected(), name).await;
    let own_time = exchange.context.meter.started.elapsed();
    sending.map_err(|error| match up {
        // Some of it may have arrived.
        UpstreamSession::H1(_) => broke_off(error),
        UpstreamSession::H2(_) => ExchangeFailure::Unsent(error),
    })?;
    if upload.is_continue_owed() && down.write_continue().await.is_err() {
        return Ok(None);
    }
    upload.begin(&mut up).await;
    // The final response header, while the request's body is sent.
    loop {
        let UploadInterest {
            pending,
            followed,
            idle,
        } = upload.interest(down);
        tokio::select! {
            biased;
            response = up.read_response() => {
                let response = response.map_err(broke_off)?;
                return Ok(Some((up, response, own_time)));
            }
            () = upload.progress(), if pending => {}
            piece = down.read_body_or_idle(idle), if followed => {
                let end = down.is_body_done();
                if upload.take(piece, end, &mut up).await.is_err() {
                    return Ok(None);
                }
            }
        }
    }
}

/// Resolves when the answer is not waited for any longer.
async fn answer_timeout(exchange: &Exchange<'_>, sent: &AtomicBool) -> ExchangeFailure {
    let Some(patience) = exchange.route.patience else {
        return tokio::select! {
            biased;
            failure = exchange.is_to_be_left(sent) => failure,
            () = exchange.expiry.answer_timeout() => ExchangeFailure::NotContinued,
        };
    };
    let so_far = exchange.context.meter.started.elapsed();
    tokio::time::sleep(patience.after(so_far)).await;
    ExchangeFailure::BrokeOff {
        error: Error::explain(ErrorType::ReadTimedout, "its answer takes too long"),
        reused: false,
    }
}

/// Notes what an answer says of its server, and of the client's token.
fn note_answer(exchange: &Exchange<'_>, response: &ResponseHeader) {
    let context = exchange.context;
    let server = exchange.route.address;
    context.shared.servers.frozen.heard(server);
    if let Some(token) = exchange.token {
        let (method, code) = (&context.method, response.status.as_u16());
        if context.tokens.answered(token, method, code) {
            context.downstream.verified();
        }
    }
}

/// What is to be done with an answer.
enum Look<'a> {
    /// It is passed on as it comes.
    Pass,
    /// Its body is read first.
    Read(ReadKind),
    /// Something is added to the document.
    Merge(&'a Overlay),
}

/// What the header of an answer says about what is to be done with it. In this order: each looks only at answers that
/// none before it takes.
fn look<'a>(
    exchange: &'a Exchange<'_>,
    response: &ResponseHeader,
) -> Result<Look<'a>, ExchangeFailure> {
    if let Some(of_resource) = not_executed(exchange.route.server_kind, response) {
        return Err(ExchangeFailure::NotExecuted { of_resource });
    }
    if response.status == StatusCode::GONE && !matches!(exchange.expiry, Expiry::Pass) {
        return Ok(Look::Read(ReadKind::Expired));
    }
    if !exchange.expiry.accepts(response) {
        return Err(ExchangeFailure::NotContinued);
    }
    let snapshot = || exchange.context.shared.published.snapshot.load();
    if turned_away::is_possible(response.status)
        && turned_away::may_be(&exchange.asking(), &snapshot(), response)
    {
        return Ok(Look::Read(ReadKind::TurnedAway));
    }
    if let Some(overlay) = &exchange.overlay
        && overlay.concerns(response.status)
    {
        return Ok(Look::Merge(overlay));
    }
    if response.status == StatusCode::NOT_FOUND
        && exchange.route.no_such_resource != NoSuchResource::Pass
        && !denials::is_no_path_of_it(&snapshot(), &exchange.context.info)
    {
        return Ok(Look::Read(ReadKind::NotFound));
    }
    Ok(Look::Pass)
}
