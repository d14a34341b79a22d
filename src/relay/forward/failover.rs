//! The way of a request to servers: the first one, and the loop over the others after one has failed.

use std::net::SocketAddr;
use std::pin::pin;

use pingora_core::ErrorType;
use tokio::sync::SemaphorePermit;

use super::authentication::{
    Authentication, authenticate, is_peers, may_have_answer, wait_for_permit,
};
use super::request::{ForwardedRequest, Refused, unwritable};
use super::tries::{RouteEnd, Tries};
use crate::net::rare;
use crate::relay::client::ClientSession;
use crate::relay::exchange::{self, Delivered, Expiry, Leaving, ResumedWatch, Upload};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::plan::Route;
use crate::relay::upstream::RequestKind;

/// Tries `route`, and then other servers that can serve the request.
pub async fn forward(
    mut request: ForwardedRequest<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &mut Route,
) -> Result<Delivered, Refused> {
    // Before anything is taken that others wait for: the client decides how long this lasts.
    let context = request.context;
    let outflow = &context.downstream.outflow;
    if !outflow.may_ask() && !rare(|| may_have_answer(outflow, session)).await {
        return Ok(Outcome::Broken.into());
    }
    let (mut authentication, exclusive) = authenticate(&request, upload, route)?;
    if authentication.is_unverified && !is_peers(context) && session.is_http2() {
        match rare(|| wait_for_permit(context, session)).await {
            Ok(permit) => authentication.permit = permit,
            Err(outcome) => return Ok(outcome.into()),
        }
    }
    let first = Attempt {
        exclusive,
        tried: Some(&[]),
        resumed: None,
        permit: None,
    };
    let attempted = {
        // Pinned where it is made: `await` would first copy it there.
        let attempt = pin!(attempt(
            &request,
            &authentication,
            session,
            upload,
            route,
            first
        ));
        attempt.await?
    };
    match attempted {
        Ok(delivered) => Ok(delivered),
        Err(failure) => {
            let failed = (failure, exclusive);
            rare(|| {
                fail_over(
                    &mut request,
                    &authentication,
                    session,
                    upload,
                    route,
                    failed,
                )
            })
            .await
        }
    }
}

/// How one server is asked.
struct Attempt<'a> {
    /// On a connection of its own.
    exclusive: bool,
    /// The servers that have failed, if the request may leave this one.
    tried: Option<&'a [SocketAddr]>,
    /// Another server has answered the watch with 410.
    resumed: Option<&'a ResumedWatch>,
    /// Held while it is asked.
    permit: Option<Box<SemaphorePermit<'a>>>,
}

/// Asks one server.
async fn attempt(
    request: &ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &Route,
    attempt: Attempt<'_>,
) -> Result<Result<Delivered, ExchangeFailure>, Refused> {
    let context = request.context;
    let exchange = request.exchange(authentication, route, upload, attempt.exclusive);
    let (mut exchange, header) = exchange?;
    let resumed = attempt.resumed;
    exchange.expiry = resumed.map_or_else(|| request.expiry(upload), Expiry::Asked);
    exchange.leaving = attempt.tried.map(|tried| Leaving {
        reads: resumed.is_some() || context.kind == RequestKind::Short && request.is_safe(),
        has_answer: resumed.is_some() || attempt.permit.is_some(),
        tried,
        budget: &request.upstreams.read_budget,
        ticker: &request.upstreams.ticker,
    });
    match exchange::run(&exchange, session, header, upload, attempt.permit).await {
        Ok(delivered) => {
            request.count_answer(route, &delivered);
            Ok(Ok(delivered))
        }
        // The request was sent to no server.
        Err(ExchangeFailure::Unsent(error)) if *error.etype() == ErrorType::InvalidHTTPHeader => {
            Err(unwritable(&error))
        }
        Err(failure) => Ok(Err(failure)),
    }
}

/// Tries other servers after `route` has failed. `exclusive`: on a connection of its own.
async fn fail_over(
    request: &mut ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &mut Route,
    (mut failure, mut exclusive): (ExchangeFailure, bool),
) -> Result<Delivered, Refused> {
    let context = request.context;
    let mut tries = Tries::default();
    let end = loop {
        context.meter.attempt_failed(&failure);
        // A server may close a connection that was used before at any time: it is asked again, on another one.
        exclusive = failure.is_of_the_connection() && !exclusive;
        tries
            .failed(request, route, &failure, exclusive, upload)
            .await;
        let next = tries.next(request, route, &failure, exclusive, upload);
        let (next, permit) = match next.await {
            Ok(next) => next,
            Err(end) => break end,
        };
        let tried = tries.may_leave();
        if next.address != route.address && tried.is_some() {
            let custom = request.is_custom();
            context.shared.metrics.failed_over(&failure, custom);
        }
        *route = next;
        let how = Attempt {
            exclusive,
            tried,
            resumed: tries.resumed(),
            permit,
        };
        match attempt(request, authentication, session, upload, route, how).await {
            Ok(Ok(delivered)) => return Ok(delivered),
            Ok(Err(next)) => failure = next,
            // The client may have the header of a watch.
            Err(refused) if tries.resumed().is_some() => break RouteEnd::Refused(refused.refusal),
            Err(refused) => return Err(refused),
        }
    };
    end_without(
        request,
        authentication,
        session,
        upload,
        route,
        (tries, end),
    )
    .await
}

/// No other server is tried: the client gets an answer that was kept, or a refusal.
async fn end_without(
    request: &ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &Route,
    (tries, end): (Tries, RouteEnd),
) -> Result<Delivered, Refused> {
    let context = request.context;
    let (expired, kept) = tries.end(context, end);
    if let Some(expired) = expired {
        return Ok(expired.pass(request, authentication, session, upload).await);
    }
    let Some(kept) = kept else {
        if request.failed_reroute.is_some() {
            context.shared.metrics.failed_reroute(false);
        }
        request.count_rerouted(end.refusal().code(), None);
        return Err(Refused {
            refusal: end.refusal(),
            server: Some(route.address),
        });
    };
    let (from, answer) = &*kept;
    let exchange = request.exchange(authentication, from, upload, false);
    Ok(request
        .pass(&exchange?.0, session, upload, from, answer)
        .await)
}
