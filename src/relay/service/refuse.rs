//! Answers requests that no apiserver answers.

use std::pin::pin;
use std::time::Instant;

use http::Method;
use rand::Rng as _;

use crate::relay::answer::{Refusal, StatusFormat};
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::context::RequestContext;
use crate::relay::outcome::Outcome;
use crate::request::caller::Caller;
use crate::request::headers::SERVER_ID;

/// Counts a refusal and answers it.
pub(super) async fn answer_refused(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    refusal: Refusal,
) -> Outcome {
    let (shared, downstream) = (context.shared, &context.downstream);
    context.meter.answer_begins(refusal.code(), Instant::now());
    shared.metrics.refused(refusal);
    if shared.shutdown.is_draining() || ends_connection(context, refusal) {
        session.end_connection(downstream);
    }
    if shared.shutdown.is_leaving() {
        session.close_after();
    }
    let (unread, outflow) = (&shared.limits.unread, &downstream.outflow);
    let mut answer_writer = AnswerWriter::new(unread, outflow, false, Some(0));
    let writing = pin!(write(context, session, refusal));
    match answer_writer.write(writing).await {
        Ok(reusable) => Outcome::Answered {
            code: refusal.code(),
            reusable,
        },
        Err(_) => Outcome::Broken,
    }
}

/// Whether the connection ends after a refusal, as it would at an apiserver.
fn ends_connection(context: &RequestContext<'_>, refusal: Refusal) -> bool {
    match context.caller {
        Caller::Peer => false,
        Caller::Anonymous => context.shared.local.user_details().ends_anonymous,
        _ => refusal == Refusal::Unauthorized,
    }
}

/// Writes the answer. Returns whether the session can take another request.
async fn write(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    refusal: Refusal,
) -> pingora_core::Result<bool> {
    let (shared, config) = (context.shared, &context.settings.if_ready);
    // The apiserver may have gone down since the plan was made.
    let initialized = || refusal != Refusal::NotInitialized && shared.local.is_initialized();
    let ready = context.if_ready.then(initialized);
    if let Some(ready) = ready {
        shared.metrics.ready_answered(ready);
    }
    let jitter = rand::thread_rng().gen_range(0..=config.retry_after_jitter_seconds);
    let retry_after = config.retry_after_seconds + jitter;
    let format = StatusFormat::accepted(context.accept.as_ref());
    let (mut header, body) = refusal.response(retry_after, ready, format, context.rerouted)?;
    if context.may_seek_a_proxy() {
        header.insert_header(SERVER_ID, shared.server_id_header())?;
    }
    let head = context.method == Method::HEAD;
    session
        .write_header(header, head && session.is_http2())
        .await?;
    if !head {
        session.write_body(body, true).await?;
    }
    Ok(session.is_body_done())
}
