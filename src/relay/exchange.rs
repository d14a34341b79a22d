//! One exchange with one apiserver: the request's body up and the answer's body down at the same time. Called by
//! [`crate::relay::forward`] for each server that is tried, and by [`crate::relay::service`] for the rest of a watch.
//!
//! The response header is passed on at once, and so is each piece of a body. No timeout ends an exchange: when either
//! side closes, the other is closed. An exchange that failed before anything was sent to the client returns an
//! [`ExchangeFailure`], which says whether the request may have been executed.
//!
//! [`run()`] asks, looks at the header of the answer, and passes it on; `upload` is the request's body, and `pump` streams
//! both bodies. A plain request enters no other file. The others are about answers that are read first (`read_first`), a
//! 410 that another server may avoid (`expired`), what is left of a watch (`watch_rest`), and upgraded connections
//! (`upgraded`).

mod expired;
mod pump;
mod read_first;
mod upgraded;
mod upload;
mod watch_rest;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;
use tokio::sync::SemaphorePermit;

pub use self::expired::{ANSWER_TIMEOUT, ResumedWatch, expired_event};
use self::expired::{AnswerStart, answer_start};
pub use self::pump::{Delivered, Exchange, Leaving};
use self::pump::{End, stream, termination, write};
use self::read_first::{Beginning, ReadKind, merge, read_first};
use self::upgraded::splice;
pub use self::upload::Upload;
pub use self::watch_rest::WatchRest;
use crate::net::{is_unprocessed, rare};
use crate::relay::client::ClientSession;
use crate::relay::inspect::{denials, not_executed, not_understood, turned_away};
use crate::relay::outcome::{ExchangeFailure, KeptAnswer, Outcome};
use crate::relay::plan;
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::FinalBookmark;
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE, READY, SERVER_ID, hop_by_hop};
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
    let (context, metrics) = (exchange.context, &exchange.context.shared.metrics);
    context.meter.attempt(exchange.route.address);
    let late = context.shared.shutdown.is_draining();
    let outflow = &context.downstream.outflow;
    let _unlimited = context.is_unlimited().then(|| outflow.unlimited());
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
    let beginning = begin(exchange, down, &mut up, upload, response, &sent).await;
    let answered = Instant::now();
    let beginning = match beginning {
        Ok(Some(beginning)) => beginning,
        Ok(None) => return Ok(Outcome::Broken.into()),
        Err(failure) => {
            exchange.release(up, upload).await;
            return Err(failure);
        }
    };
    let (response, whole) = (&beginning.answer.response, beginning.whole);
    let (code, resumed) = (response.status.as_u16(), exchange.resumed);
    let (bookmark, start) = followed(exchange, response, late);
    if start.is_none() {
        exchange.avoided();
        upload.forget();
    }
    if resumed.is_none_or(|watch| watch.begins(response)) {
        let Ok(begun) = pass(exchange, down, beginning).await else {
            return Ok(Outcome::Broken.into());
        };
        let own_time = (own_time + (begun - answered)).as_secs_f64();
        metrics.own_time.observe(own_time);
        if whole {
            // A watch without an event.
            start.iter().for_each(|_| exchange.avoided());
            exchange.release(up, upload).await;
            return Ok(End::Whole.outcome(code, upload.is_read()).into());
        }
    }
    if code == StatusCode::SWITCHING_PROTOCOLS
        && let Some(bookmark) = &bookmark
    {
        rare(|| splice(down, up, termination(exchange, bookmark))).await;
        return Ok(Outcome::Upgraded.into());
    }
    stream(exchange, down, up, upload, (code, start), bookmark.as_ref()).await
}

/// What follows an answer that begins, if it is that of a long-running request, and what is to be looked at before it
/// passes. `late`: the request began during the drain.
fn followed<'a>(
    exchange: &Exchange<'a>,
    response: &ResponseHeader,
    late: bool,
) -> (Option<FinalBookmark<'a>>, AnswerStart) {
    let (context, server) = (exchange.context, exchange.route.address);
    let continued = exchange.resumed.and_then(|it| it.handed_over.as_ref());
    let is_long = context.kind != RequestKind::Short;
    let bookmark = is_long.then(|| FinalBookmark::of(context, server, response, late, continued));
    let start = match exchange.avoids_410 {
        true => answer_start(exchange.resumed, response),
        false => None,
    };
    (bookmark, start)
}

/// What is passed on of the answer `response`, and first of its body. `None`: nobody is to get it. In this order: each
/// kind is one of the answers that none before it takes.
async fn begin(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    up: &mut UpstreamSession,
    upload: &Upload,
    response: Box<ResponseHeader>,
    sent: &AtomicBool,
) -> Result<Option<Beginning>, ExchangeFailure> {
    let status = response.status;
    let snapshot = || exchange.context.shared.published.snapshot.load();
    if status.is_success() && !exchange.avoids_410 && exchange.overlay.is_none() {
        return Ok(Some(as_it_is(response, up)));
    }
    if let Some(of_resource) = not_executed(exchange.route.server_kind, &response) {
        return Err(ExchangeFailure::NotExecuted { of_resource });
    }
    let read = if status == StatusCode::GONE && exchange.avoids_410 {
        ReadKind::Expired
    } else if let Some(watch) = exchange.resumed
        && !watch.accepts(&response)
    {
        // Who is overloaded, or builds a watch cache, may go on later.
        let of_resource = false;
        return Err(match (status.as_u16(), &watch.handed_over) {
            (429 | 503, Some(_)) => ExchangeFailure::NotExecuted { of_resource },
            _ => ExchangeFailure::NotContinued,
        });
    } else if turned_away::may_be(&exchange.asking(), &snapshot(), &response) {
        ReadKind::TurnedAway
    } else if let Some(overlay) = &exchange.overlay
        && overlay.concerns(status)
    {
        let merging = async {
            tokio::select! {
                biased;
                merged = merge(exchange, overlay, down, up, response, upload) => merged,
                failure = is_to_be_left(exchange, sent) => Err(failure),
            }
        };
        return rare(|| merging).await;
    } else if status == StatusCode::NOT_FOUND
        && exchange.route.no_such_resource != NoSuchResource::Pass
        && !denials::is_no_path_of_it(&snapshot(), &exchange.context.info)
    {
        ReadKind::NotFound
    } else if not_understood::may_be(&exchange.asking(), &snapshot(), &response) {
        ReadKind::NotUnderstood
    } else {
        return Ok(Some(as_it_is(response, up)));
    };
    // Boxed, so that the future of every request has no room for it.
    rare(|| read_first(exchange, read, down, up, response)).await
}

/// An answer of which nothing is read first.
fn as_it_is(response: Box<ResponseHeader>, up: &mut UpstreamSession) -> Beginning {
    let (body, whole) = (Bytes::new(), up.is_complete());
    let answer = KeptAnswer { response, body };
    Beginning { answer, whole }
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
    if down.gone().now_or_never().is_some() {
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
        let (idle, followed) = upload.interest(down);
        tokio::select! {
            biased;
            response = up.read_response() => {
                let response = response.map_err(broke_off)?;
                note_answer(exchange, &response);
                return Ok(Some((up, response, own_time)));
            }
            () = upload.progress() => {}
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
    let too_late = async {
        match exchange.resumed {
            Some(_) => rare(|| tokio::time::sleep(ANSWER_TIMEOUT)).await,
            None => std::future::pending().await,
        }
    };
    let Some(patience) = exchange.route.patience else {
        return tokio::select! {
            biased;
            failure = is_to_be_left(exchange, sent) => failure,
            () = too_late => ExchangeFailure::NotContinued,
        };
    };
    tokio::time::sleep(patience).await;
    let late = Error::explain(ErrorType::ReadTimedout, "its answer takes too long");
    ExchangeFailure::broke_off(late)
}

/// Resolves when the server is suspected to be frozen and need not be waited for. `sent`: some of the request may have
/// arrived.
async fn is_to_be_left(exchange: &Exchange<'_>, sent: &AtomicBool) -> ExchangeFailure {
    let (context, address) = (exchange.context, exchange.route.address);
    let Some(leaving) = &exchange.leaving else {
        return std::future::pending().await;
    };
    let budget = &context.upstreams.read_budget;
    if leaving.reads {
        budget.read();
    }
    let is_possible = || {
        let sent = sent.load(Ordering::Relaxed);
        (leaving.reads || !sent)
            && (leaving.has_answer
                || plan::can_leave(context, address, leaving.tried) && (!sent || budget.take()))
    };
    let frozen = &context.shared.servers.frozen;
    frozen.is_to_be_left(address, is_possible).await;
    ExchangeFailure::Frozen
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

/// Passes on the header of an answer, and what is there of its body. Returns when it began to.
async fn pass(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    beginning: Beginning,
) -> pingora_core::Result<Instant> {
    let Beginning { answer, whole } = beginning;
    let KeptAnswer { response, body } = answer;
    let begun = pass_header(exchange, down, response, whole && body.is_empty()).await?;
    if !body.is_empty() {
        rare(|| write_piece(exchange, down, body, whole)).await?;
    }
    Ok(begun)
}

/// Writes what is there of a body, within the budget for slow clients. `whole`: that is all of it.
async fn write_piece(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    piece: Bytes,
    whole: bool,
) -> pingora_core::Result<bool> {
    let mut writer = exchange.answer_writer(whole.then_some(piece.len()));
    write(&mut writer, down, piece, whole).await
}

/// What was kept for the client of a request for which no other server is tried.
pub enum Kept {
    Answer(Arc<KeptAnswer>),
    /// A 410, below a header that the client has.
    Event(Bytes),
}

/// Passes on what was kept.
pub async fn pass_kept(
    exchange: &Exchange<'_>,
    kept: Kept,
    down: &mut ClientSession,
    upload: &Upload,
) -> Outcome {
    let (code, passed) = match kept {
        Kept::Answer(answer) => {
            let (answer, whole) = (KeptAnswer::clone(&answer), true);
            let code = answer.response.status.as_u16();
            let passed = pass(exchange, down, Beginning { answer, whole }).await;
            (code, passed.is_ok())
        }
        Kept::Event(event) => (200, write_piece(exchange, down, event, true).await.is_ok()),
    };
    match passed {
        true => End::Whole.outcome(code, upload.is_read()),
        false => Outcome::Broken,
    }
}

/// Writes the response header; `end`: there is no body. Returns when it began to.
async fn pass_header(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut response: Box<ResponseHeader>,
    end: bool,
) -> pingora_core::Result<Instant> {
    let (context, shared) = (exchange.context, exchange.context.shared);
    // On an upgrade `Connection` is about the upgrade, and the client's protocol writes the rest.
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        // An answer from a pod behind `proxy` says nothing of the caller.
        let is_unauthorized =
            response.status == StatusCode::UNAUTHORIZED && !context.info.is_proxied();
        let ends_anonymous = exchange.route.details.ends_anonymous;
        if shared.shutdown.is_draining() || context.ends_connection(is_unauthorized, ends_anonymous)
        {
            down.end_connection(&context.downstream);
        }
        // Waiting requests may go on: it is known whether the connection ends.
        if let Some(permit) = exchange.permit {
            permit.end();
        }
        strip_hop_by_hop_of_answer(&mut response);
    } else if context.kind != RequestKind::Upgrade {
        return Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what is no upgrade");
    }
    write_marks(exchange, &mut response)?;
    let now = Instant::now();
    let meter = &context.meter;
    meter.answer_begins(response.status.as_u16(), now);
    if let ClientSession::H1(session) = down {
        if context.kind != RequestKind::Upgrade && shared.shutdown.is_leaving() {
            session.set_keepalive(None);
        }
        frame_for_http1(session.req_header().version, &mut response, &context.method)?;
    }
    down.write_header(response, end).await?;
    Ok(now)
}

/// Writes what this proxy says of an answer, and removes what only it may say.
fn write_marks(exchange: &Exchange<'_>, response: &mut ResponseHeader) -> pingora_core::Result<()> {
    let (context, shared) = (exchange.context, exchange.context.shared);
    // Only for peers' proxies: an apiserver must not forge it.
    if matches!(response.status.as_u16(), 404 | 503) {
        response.remove_header(&NOT_EXECUTED);
    }
    if exchange.is_for_peer() && response.status == StatusCode::NOT_FOUND {
        response.insert_header(NOT_EXECUTED, OF_RESOURCE)?;
    }
    // Only for peers' proxies, too.
    response.remove_header(&SERVER_ID);
    context.name_proxy(response)?;
    // Only this proxy sets it: the value of another proxy is about another apiserver.
    if context.settings.if_ready.enabled {
        response.remove_header(&READY);
    }
    if let Some(ready) = exchange.route.ready {
        shared.metrics.ready_answered(ready);
        response.insert_header(READY, if ready { "true" } else { "false" })?;
    }
    Ok(())
}

/// Removes hop-by-hop headers from an answer, and those that `Connection` lists.
fn strip_hop_by_hop_of_answer(response: &mut ResponseHeader) {
    if response.version == Version::HTTP_2 {
        // They are malformed there (RFC 9113 §8.2.2): h2 lets none through.
        return;
    }
    for name in hop_by_hop(&response.headers) {
        response.remove_header(&name);
    }
}

/// Sets how an answer's body is delimited for an HTTP/1 client.
fn frame_for_http1(
    client: Version,
    response: &mut ResponseHeader,
    method: &Method,
) -> pingora_core::Result<()> {
    let bodiless = *method == Method::HEAD
        || response.status.is_informational()
        || matches!(response.status.as_u16(), 204 | 304);
    let chunked =
        client >= Version::HTTP_11 && !bodiless && !response.headers.contains_key(CONTENT_LENGTH);
    if chunked {
        response.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
    } else {
        response.remove_header(&TRANSFER_ENCODING);
    }
    // Some clients would wait for a body, and read the next answer as the body.
    if response.status == StatusCode::NO_CONTENT {
        response.remove_header(&CONTENT_LENGTH);
    }
    response.set_version(Version::HTTP_11);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_body_names_no_length_unless_it_is_that_of_another() {
        let length_left = |status, method| {
            let mut response = ResponseHeader::build(status, None).unwrap();
            response.insert_header(CONTENT_LENGTH, 5).unwrap();
            frame_for_http1(Version::HTTP_11, &mut response, &method).unwrap();
            assert!(!response.headers.contains_key(TRANSFER_ENCODING));
            response.headers.contains_key(CONTENT_LENGTH)
        };
        assert!(!length_left(204, Method::GET));
        // The length of the GET answer, or of the document that the client has.
        assert!(length_left(200, Method::HEAD));
        assert!(length_left(304, Method::GET));
        assert!(length_left(200, Method::GET));
    }

    #[test]
    fn what_connection_lists_goes_with_it() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "X-One,, x-two ,\u{e9}"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-two", "2"),
            ("x-three", "3"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            response.append_header(name, value).unwrap();
        }
        strip_hop_by_hop_of_answer(&mut response);
        let left: Vec<_> = response
            .headers
            .keys()
            .map(http::HeaderName::as_str)
            .collect();
        assert_eq!(left, ["x-three"]);
    }
}
