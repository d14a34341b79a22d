//! Answers requests that no apiserver answers.

use std::pin::pin;
use std::time::Instant;

use crate::relay::answer::{self, Refusal, ResponseOptions};
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::context::RequestContext;
use crate::relay::forward::Refused;
use crate::relay::outcome::Outcome;
use crate::relay::shared::{Shared, retry_after};
use crate::request::caller::Caller;

/// Counts a refusal and answers it.
pub(super) async fn answer_refused(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    Refused { refusal, server }: Refused,
    mut options: ResponseOptions,
) -> Outcome {
    let RequestContext {
        shared,
        request,
        downstream,
        meter,
        ..
    } = context;
    meter.answer_begins(refusal.code(), Instant::now());
    let asked = (request.method, request.info);
    shared.refused(refusal, Some(asked), server);
    // The apiserver may have gone down since the plan was made.
    let initialized = shared.local.is_initialized();
    let ready = initialized && refusal != Refusal::NotInitialized;
    options.ready = options.ready.map(|before| before && ready);
    if let Some(ready) = options.ready {
        shared.metrics.ready_answered(ready);
    }
    if shared.shutdown.is_draining() || ends_connection(shared, request.caller, refusal) {
        session.end_connection(downstream);
    }
    let mut answer_writer =
        AnswerWriter::new(&shared.limits.unread, &downstream.outflow, false, Some(0));
    let seconds = retry_after(&request.settings.if_ready);
    let refusing = refuse(shared, session, refusal, seconds, &options);
    let refusing = pin!(async { Ok(refusing.await) });
    answer_writer
        .write(refusing)
        .await
        .unwrap_or(Outcome::Broken)
}

/// Whether the connection ends after a refusal, as it would at an apiserver.
fn ends_connection(shared: &Shared, caller: &Caller, refusal: Refusal) -> bool {
    match caller {
        Caller::Peer => false,
        Caller::Anonymous => shared.local.user_details().ends_anonymous,
        _ => refusal == Refusal::Unauthorized,
    }
}

async fn refuse(
    shared: &Shared,
    session: &mut ClientSession,
    refusal: Refusal,
    retry_after: u32,
    options: &ResponseOptions,
) -> Outcome {
    if shared.shutdown.is_leaving() {
        session.close_after();
    }
    match answer::refuse(session, refusal, retry_after, options).await {
        Ok(()) => Outcome::Answered {
            code: refusal.code(),
            reusable: session.is_body_done(),
        },
        Err(_) => Outcome::Broken,
    }
}
