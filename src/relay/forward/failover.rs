//! The loop over servers.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::ErrorType;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::after_expiry::{KeptExpiry, after_expiry};
use super::kept_answers::KeptAnswers;
use super::report::report;
use super::request::{Authentication, FailedReroute, ForwardedRequest, Refused, unwritable};
use crate::net::rare;
use crate::relay::answer::Refusal;
use crate::relay::client::unread::outflow::Outflow;
use crate::relay::client::{ClientSession, VerificationPermit};
use crate::relay::context::RequestContext;
use crate::relay::exchange::{self, Delivered, Leaving, Upload};
use crate::relay::inspect::denials::{self, LocalServer};
use crate::relay::outcome::{ExchangeFailure, KeptAnswer, Outcome};
use crate::relay::plan::{self, Action, Plan, Route};
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, ServerKind};
use crate::request::caller::Caller;

/// How long a request with a token waits until other callers of the same connection are verified, and how much longer
/// for each request that waits before it.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(1);
const VERIFICATION_TIMEOUT_EACH: Duration = Duration::from_millis(100);
/// How long a request waits until it may ask other servers whether they know a custom resource.
const NOT_FOUND_RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// Why no other server is tried.
#[derive(Debug, Clone, Copy)]
enum RouteEnd {
    /// No other server is left.
    Exhausted(Refusal),
    /// The request cannot be sent again, or may not pass now.
    Refused(Refusal),
}

impl RouteEnd {
    fn refusal(self) -> Refusal {
        match self {
            RouteEnd::Exhausted(refusal) | RouteEnd::Refused(refusal) => refusal,
        }
    }
}

/// Tries `route`, and then other servers that can serve the request.
pub async fn forward(
    request: &mut ForwardedRequest<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &mut Route,
) -> Result<Delivered, Refused> {
    // Before anything is taken that others wait for: the client decides how long this lasts.
    let context = request.context;
    let outflow = &context.downstream.outflow;
    if !outflow.may_ask() && !rare(|| is_its_turn(outflow, session)).await {
        return Ok(Outcome::Broken.into());
    }
    let (mut authentication, exclusive) = authenticate(request, upload, route)?;
    if authentication.is_unverified && !is_peers(context) && session.is_http2() {
        match rare(|| wait_for_permit(context, session)).await {
            Ok(permit) => authentication.permit = permit,
            Err(outcome) => return Ok(outcome.into()),
        }
    }
    let attempted = {
        // Pinned where it is made: `await` would first copy it there.
        let attempt = pin!(attempt(
            request,
            &authentication,
            session,
            upload,
            route,
            (exclusive, Some(&[]), None)
        ));
        attempt.await?
    };
    match attempted {
        Ok(delivered) => Ok(delivered),
        Err(failure) => {
            let failed = (failure, exclusive);
            rare(|| fail_over(request, &authentication, session, upload, route, failed)).await
        }
    }
}

/// Writes the headers that are the same for every server. Returns what identifies the caller, and whether the request
/// needs a connection of its own.
fn authenticate<'a>(
    request: &ForwardedRequest<'a>,
    upload: &mut Upload,
    route: &Route,
) -> Result<(Authentication<'a>, bool), Refused> {
    let context = request.context;
    let certificate = request.write_common_headers(upload)?;
    // Only an apiserver can authenticate other callers.
    let headers = upload.header_mut().filter(|_| !certificate);
    let token = headers.and_then(|header| context.tokens.of(&header.headers));
    let known = certificate || token.is_some_and(|token| context.tokens.is_known(token));
    let is_unverified = !known && route.details.ends_anonymous;
    let privileged = &context.shared.privileged;
    let mut named = upload.header_mut().filter(|_| certificate).into_iter();
    let unauthenticated = named.any(|header| privileged.name_unauthenticated(&header.headers));
    // A body may be too long to be sent again, and a peer's users do not know each other. A request that failed on
    // its own connection has failed: no other request can have closed it.
    let exclusive = unauthenticated || is_unverified && is_peers(context) && upload.is_expected();
    let authentication = Authentication {
        certificate,
        token,
        is_unverified,
        permit: None,
    };
    Ok((authentication, exclusive))
}

fn is_peers(context: &RequestContext<'_>) -> bool {
    *context.request.caller == Caller::Peer
}

/// Asks one server. `exclusive`: on a connection of its own; `tried`: the servers that have failed,
/// if the request may leave this one; `permit`: held while it is asked.
async fn attempt(
    request: &ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &Route,
    (exclusive, tried, permit): (
        bool,
        Option<&[SocketAddr]>,
        Option<Box<SemaphorePermit<'_>>>,
    ),
) -> Result<Result<Delivered, ExchangeFailure>, Refused> {
    let context = request.context;
    let exchange = request.exchange(authentication, route, upload, exclusive);
    let (mut exchange, header) = exchange?;
    exchange.expiry = request.expiry(upload);
    exchange.leaving = tried.map(|tried| Leaving {
        reads: context.kind == RequestKind::Short && request.is_safe(),
        has_answer: permit.is_some(),
        tried,
        budget: &context.upstreams.read_budget,
        ticker: &context.upstreams.ticker,
    });
    match exchange::run(&exchange, session, header, upload, permit).await {
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
    let shared = context.shared;
    let mut kept = KeptAnswers::default();
    // A frozen server that this read has left. It is asked again if no other can answer.
    let mut left: Option<Route> = None;
    let mut may_leave = true;
    let mut tried: Vec<SocketAddr> = Vec::new();
    let end = loop {
        if let ExchangeFailure::Expired(expired) = failure {
            let from = route.clone();
            let kept = KeptExpiry { expired, from };
            let following = after_expiry(request, authentication, session, upload, (kept, tried));
            return Ok(Box::pin(following).await);
        }
        context.meter.attempt_failed(&failure);
        let custom = request.is_custom();
        exclusive = failure.is_of_the_connection() && !exclusive;
        let noted = Noted { exclusive, custom };
        note_failure(request, route, &failure, noted, &mut kept, &mut tried);
        let may_be_known_elsewhere = kept.may_be_known_elsewhere();
        if matches!(failure, ExchangeFailure::Frozen)
            && !context.request.rerouted
            && !may_be_known_elsewhere
        {
            left = Some(route.clone());
        }
        let mut permit = None;
        // The client decides how long the rest of its body takes.
        if may_be_known_elsewhere && upload.is_read() {
            match timeout(NOT_FOUND_RETRY_TIMEOUT, shared.not_found_retries.acquire()).await {
                Ok(acquired) => permit = acquired.ok().map(Box::new),
                Err(_) => break RouteEnd::Refused(Refusal::DoubtfulNotFound),
            }
        }
        let turned_away = kept.turned_away.is_some();
        let last = request.refusal(&failure, custom);
        match next_route(request, last, turned_away, &tried, upload) {
            // All others have been asked. What this one would say stays unknown: others wait for the permit.
            Ok(next) if may_be_known_elsewhere && shared.frozen.is_suspected(next.address) => {
                break RouteEnd::Refused(match turned_away {
                    true => Refusal::Terminating,
                    false => Refusal::DoubtfulNotFound,
                });
            }
            Ok(next) => {
                if next.address != route.address {
                    shared.metrics.failed_over(&failure, custom);
                }
                *route = next;
            }
            Err(end) => match left.take() {
                Some(frozen) if matches!(end, RouteEnd::Exhausted(_)) => {
                    *route = frozen;
                    may_leave = false;
                }
                _ => break end,
            },
        }
        let leaving = may_leave.then_some(&*tried);
        let kind = (exclusive, leaving, permit);
        match attempt(request, authentication, session, upload, route, kind).await? {
            Ok(delivered) => return Ok(delivered),
            Err(next) => failure = next,
        }
    };
    let Some(passed) = passed_on(context, end, kept) else {
        if request.failed_reroute.is_some() {
            shared.metrics.failed_reroute(false);
        }
        request.count_rerouted(end.refusal().code(), None);
        return Err(Refused {
            refusal: end.refusal(),
            server: Some(route.address),
        });
    };
    let (from, answer) = &*passed;
    let exchange = request.exchange(authentication, from, upload, false);
    Ok(request
        .pass(&exchange?.0, session, upload, from, answer)
        .await)
}

/// What is noted of a failure.
struct Noted {
    /// The same server is tried again, on a connection of its own.
    exclusive: bool,
    /// The request is about a custom resource.
    custom: bool,
}

/// Notes that `route` has failed: that it was tried, what its server answered, and what that says of the server.
fn note_failure(
    request: &mut ForwardedRequest<'_>,
    route: &Route,
    failure: &ExchangeFailure,
    noted: Noted,
    kept: &mut KeptAnswers,
    tried: &mut Vec<SocketAddr>,
) {
    let context = request.context;
    let denial = match failure {
        ExchangeFailure::DoubtfulNotFound(Some(answer)) => {
            Some(answer).filter(|answer| denial_counts(context, route, answer))
        }
        _ => None,
    };
    if let Some(answer) = denial {
        tried.push(route.address);
        kept.add_denial(route, answer);
    } else if !noted.exclusive {
        report(context.shared, route, failure, noted.custom);
        tried.push(route.address);
        kept.add(route, failure);
    }
    if route.server_kind != ServerKind::Local && denial.is_none() {
        request.failed_reroute = Some(FailedReroute(route.rerouted_as.clone()));
    }
}

/// The answer that the client gets, of those that were kept, now that no other server is tried.
fn passed_on(
    context: &RequestContext<'_>,
    end: RouteEnd,
    kept: KeptAnswers,
) -> Option<Box<(Route, Arc<KeptAnswer>)>> {
    match end {
        // A peer's proxy tries other servers itself.
        RouteEnd::Exhausted(Refusal::Terminating) | RouteEnd::Refused(Refusal::Terminating) => {
            kept.turned_away.filter(|_| !context.request.rerouted)
        }
        RouteEnd::Exhausted(Refusal::DoubtfulNotFound)
        | RouteEnd::Refused(Refusal::DoubtfulNotFound)
            if all_deny(context, &kept.denying) =>
        {
            kept.denial
        }
        RouteEnd::Exhausted(_) => kept.unanimous(),
        RouteEnd::Refused(_) => None,
    }
}

/// The next route. `last`: the refusal if no other server can be tried; `turned_away`: a server has turned
/// the request away.
fn next_route(
    request: &mut ForwardedRequest<'_>,
    last: Refusal,
    turned_away: bool,
    tried: &[SocketAddr],
    upload: &Upload,
) -> Result<Route, RouteEnd> {
    let last = match last {
        last if last.forbids_repetition() => return Err(RouteEnd::Refused(last)),
        _ if turned_away => Refusal::Terminating,
        last => last,
    };
    if !upload.can_begin_again() {
        return Err(RouteEnd::Refused(last));
    }
    let (shared, asked) = (request.context.shared, request.context.request);
    let Plan { ready, action, .. } = plan::next(shared, asked, tried, last);
    match action {
        Action::Forward(next) => {
            request.ready = ready;
            Ok(*next)
        }
        Action::Answer(refusal) if refusal == last => Err(RouteEnd::Exhausted(last)),
        Action::Answer(refusal) => Err(RouteEnd::Refused(refusal)),
    }
}

/// Whether the "no such resource" that `route` has led to counts.
fn denial_counts(context: &RequestContext<'_>, route: &Route, answer: &KeptAnswer) -> bool {
    let (shared, info) = (context.shared, context.request.info);
    let snapshot = shared.published.snapshot.load();
    let (local, server) = (local_server(shared), (route.server_kind, route.address));
    let denials = &shared.denials;
    denials.counts(&snapshot, local, info, server, &answer.response)
}

/// Whether no server is left that could have the resource that `denying` do not have.
fn all_deny(context: &RequestContext<'_>, denying: &[SocketAddr]) -> bool {
    let (shared, request) = (context.shared, context.request);
    let snapshot = shared.published.snapshot.load();
    let (local, rerouted) = (local_server(shared), request.rerouted);
    denials::are_all(&snapshot, local, request.info, rerouted, denying)
}

fn local_server(shared: &Shared) -> LocalServer {
    LocalServer {
        address: shared.config.api_server.address,
        epoch: shared.local.epoch(),
        initialized: shared.local.is_initialized(),
    }
}

/// Waits for a verification permit. A request with a token waits for a limited time, because the
/// requests before it may be slow for other reasons. Behind an anonymous request the connection is going to end.
async fn wait_for_permit<'a>(
    context: &RequestContext<'a>,
    session: &mut ClientSession,
) -> Result<Option<VerificationPermit<'a>>, Outcome> {
    let waiting = context.downstream.wait_for_permit();
    let patience = VERIFICATION_TIMEOUT + VERIFICATION_TIMEOUT_EACH * waiting.before;
    let named = *context.request.caller != Caller::Anonymous;
    tokio::select! {
        permit = context.downstream.verification_permit() => permit.map(Some).ok_or(Outcome::Declined),
        () = session.gone() => Err(Outcome::Broken),
        () = tokio::time::sleep(patience), if named => Ok(None),
    }
}

/// Waits until this connection may have more answers; `false`: the client went away.
async fn is_its_turn(outflow: &Outflow, session: &mut ClientSession) -> bool {
    tokio::select! {
        () = outflow.turn_to_ask() => true,
        () = session.gone() => false,
    }
}
