//! The servers that were tried for one request: which of them failed, what they answered, and which is tried next.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::expired_watch::ExpiredWatch;
use super::kept_answers::{AnswerOf, KeptAnswers};
use super::report::report;
use super::request::{FailedReroute, ForwardedRequest};
use crate::relay::answer::Refusal;
use crate::relay::context::RequestContext;
use crate::relay::exchange::{ResumedWatch, Upload};
use crate::relay::inspect::denials::{self, LocalServer};
use crate::relay::outcome::{ExchangeFailure, KeptAnswer};
use crate::relay::plan::{self, Action, Plan, Route};
use crate::relay::shared::Shared;
use crate::routing::table::ServerKind;

/// How long a request waits until it may ask other servers whether they know a custom resource.
const NOT_FOUND_RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// Why no other server is tried.
#[derive(Debug, Clone, Copy)]
pub(super) enum RouteEnd {
    /// No other server is left.
    Exhausted(Refusal),
    /// The request cannot be sent again, or may not pass now.
    Refused(Refusal),
}

impl RouteEnd {
    pub(super) fn refusal(self) -> Refusal {
        match self {
            RouteEnd::Exhausted(refusal) | RouteEnd::Refused(refusal) => refusal,
        }
    }
}

/// What is known of the servers that were tried for one request.
#[derive(Default)]
pub(super) struct Tries {
    /// The servers that have failed.
    tried: Vec<SocketAddr>,
    kept: KeptAnswers,
    /// A server has answered a watch with 410. Only servers that may have its history are tried since.
    expired: Option<Box<ExpiredWatch>>,
    /// A frozen server that this read has left. It is asked again if no other can answer.
    left: Option<Route>,
    /// It is asked again.
    has_returned: bool,
}

impl Tries {
    /// The servers that have failed, if the request may leave the next one too. It may not if it is back at the frozen
    /// server that it had left.
    pub(super) fn may_leave(&self) -> Option<&[SocketAddr]> {
        (self.expired.is_some() || !self.has_returned).then_some(&*self.tried)
    }

    /// The watch that goes on after a 410.
    pub(super) fn resumed(&self) -> Option<&ResumedWatch> {
        Some(&self.expired.as_ref()?.watch)
    }

    /// Notes that `route` has failed: that it was tried, what its server answered, and what that says of the server.
    /// `again`: the same server is asked again, on a connection of its own.
    pub(super) async fn failed(
        &mut self,
        request: &mut ForwardedRequest<'_>,
        route: &Route,
        failure: &ExchangeFailure,
        again: bool,
        upload: &Upload,
    ) {
        let context = request.context;
        let denial = match failure {
            ExchangeFailure::DoubtfulNotFound(Some(answer)) => {
                Some(answer).filter(|answer| denial_counts(context, route, answer))
            }
            _ => None,
        };
        if let Some(answer) = denial {
            self.tried.push(route.address);
            self.kept.add_denial(route, answer);
        } else if !again {
            report(context.shared, route, failure, request.is_custom());
            self.tried.push(route.address);
            self.kept.add(route, failure);
        }
        match (&mut self.expired, failure) {
            (Some(watch), failure) => watch.failed(route, failure),
            (expired, ExchangeFailure::Expired(answer)) => {
                let begun = ExpiredWatch::begin(context.shared, answer, route, upload).await;
                *expired = Some(Box::new(begun));
            }
            _ if route.server_kind != ServerKind::Local && denial.is_none() => {
                request.failed_reroute = Some(FailedReroute(route.rerouted_as.clone()));
            }
            _ => {}
        }
        if matches!(failure, ExchangeFailure::Frozen)
            && !context.request.rerouted
            && !self.kept.may_be_known_elsewhere()
        {
            self.left = Some(route.clone());
        }
    }

    /// The next route after `failure`, and what is held while its server is asked. `again`: as for [`Tries::failed`].
    pub(super) async fn next<'s>(
        &mut self,
        request: &mut ForwardedRequest<'s>,
        route: &Route,
        failure: &ExchangeFailure,
        again: bool,
        upload: &Upload,
    ) -> Result<(Route, Option<Box<SemaphorePermit<'s>>>), RouteEnd> {
        if let Some(watch) = &self.expired {
            let again = again.then(|| route.clone());
            let next = again.or_else(|| watch.next(request.context, &self.tried));
            return next
                .map(|next| (next, None))
                .ok_or(RouteEnd::Exhausted(Refusal::Unreachable));
        }
        let shared = request.context.shared;
        let may_be_known_elsewhere = self.kept.may_be_known_elsewhere();
        let mut permit = None;
        // The client decides how long the rest of its body takes.
        if may_be_known_elsewhere && upload.is_read() {
            match timeout(
                NOT_FOUND_RETRY_TIMEOUT,
                shared.limits.not_found_retries.acquire(),
            )
            .await
            {
                Ok(acquired) => permit = acquired.ok().map(Box::new),
                Err(_) => return Err(RouteEnd::Refused(Refusal::DoubtfulNotFound)),
            }
        }
        let turned_away = self.kept.turned_away.is_some();
        let last = request.refusal(failure, request.is_custom());
        match next_route(request, last, turned_away, &self.tried, upload) {
            // All others have been asked. What this one would say stays unknown: others wait for the permit.
            Ok(next)
                if may_be_known_elsewhere && shared.servers.frozen.is_suspected(next.address) =>
            {
                Err(RouteEnd::Refused(match turned_away {
                    true => Refusal::Terminating,
                    false => Refusal::DoubtfulNotFound,
                }))
            }
            Ok(next) => Ok((next, permit)),
            Err(end @ RouteEnd::Exhausted(_)) => {
                let frozen = self.left.take().ok_or(end)?;
                self.has_returned = true;
                Ok((frozen, permit))
            }
            Err(end) => Err(end),
        }
    }

    /// What the client gets, of what was kept, now that no other server is tried.
    pub(super) fn end(
        self,
        context: &RequestContext<'_>,
        end: RouteEnd,
    ) -> (Option<Box<ExpiredWatch>>, Option<AnswerOf>) {
        let kept = self.kept;
        let answer = match end {
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
        };
        (self.expired, answer)
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
    let denials = &shared.servers.denials;
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
