//! The servers that were tried for one request: which of them failed, what they answered, and which is tried next.
//!
//! Answers are kept while other servers are tried, and passed on if none of them answers otherwise. An apiserver that is
//! shutting down turns requests away ([`crate::relay::inspect::turned_away`]). An apiserver may learn of a
//! CustomResourceDefinition, or of a version of one, later than others: its "no such resource" counts when every target has
//! answered the same. Neither request was executed, so any verb may be sent again.
//!
//! A watch that is too old for one apiserver goes on at another one (KEP-1904). An apiserver answers a watch from a
//! revision before its watch cache begins with 410, as HTTP status or as the first event. Its client would list everything
//! again. Where the caches begin is not always known: those of custom resources begin at their first use, and a cache may
//! have lost old events. So the 410 is kept, and the other servers that may have the history are asked, each once
//! ([`crate::routing::decide::after_expiry`]). If the 410 is an event, the client already has a header, because the header
//! of a quiet watch must not wait. Then the answer that goes on must have the same format, and only its body is passed.
//! Whatever else another server answers, the next one is asked. If none has the history, etcd may show that nothing changed
//! until a cache began, and one is asked from there. If none serves the watch, its client gets the 410; as an event, if it has
//! a header by then. The proxy that a peer has rerouted a watch to passes a 410: the peer asks the others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::ErrorType;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::log_throttle::{LogRateLimit, log_rarely};
use crate::net::RedactedError;
use crate::relay::answer::Refusal;
use crate::relay::exchange::{Kept, ResumedWatch, Upload, expired_event};
use crate::relay::inspect::denials;
use crate::relay::outcome::{ExchangeFailure, Expired, KeptAnswer};
use crate::relay::plan::{self, RequestContext, Route};
use crate::relay::shared::Shared;
use crate::relay::watch::unchanged_through;
use crate::routing::decide::Row;
use crate::routing::table::ServerKind;

/// How long a request waits until it may ask other servers because of what one says of the resource or the request.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a watch waits until it may ask other servers.
const EXPIRED_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a server is asked for what comes after the revision up to which etcd shows that nothing changed: its watch
/// cache may have begun later.
const LATER: usize = 3;
/// Longest wait for what etcd shows.
const UNCHANGED_TIMEOUT: Duration = Duration::from_secs(2);

/// An answer that was kept, and the route to the server that gave it.
type AnswerOf = Option<Box<(Route, Arc<KeptAnswer>)>>;

/// A watch that one server has answered with 410. Only servers that may have its history are tried since.
struct ExpiredWatch {
    /// The 410 that the client gets if no server serves its watch.
    expired: Expired,
    /// The server that it came from.
    from: Route,
    may_ask: bool,
    watch: ResumedWatch,
    /// Servers that have failed otherwise.
    unfit: Vec<SocketAddr>,
    /// What servers were asked for instead, the last of these the newest.
    later: Vec<i64>,
}

/// What is known of the servers that were tried for one request.
#[derive(Default)]
pub(super) struct Tries<'a> {
    /// The servers that have failed.
    tried: Vec<SocketAddr>,
    /// The next attempt has a connection of its own.
    pub(super) exclusive: bool,
    /// Held while the next server is asked.
    pub(super) permit: Option<Box<SemaphorePermit<'a>>>,
    /// The last peer that could not answer.
    pub(super) failed_peer: Option<Box<Route>>,
    /// Of a server that turned the request away.
    turned_away: AnswerOf,
    /// "No such resource", of the local apiserver.
    no_such_resource: AnswerOf,
    /// "No such resource" that counts ([`denials`]), the first one, and all servers that it came from.
    denial: AnswerOf,
    denying: Vec<SocketAddr>,
    /// Of a server that does not understand the request.
    not_understood: AnswerOf,
    /// A server failed for another reason, so it may serve the resource.
    contradicted: bool,
    expired: Option<Box<ExpiredWatch>>,
    /// A frozen server that this read has left. It is asked again if no other can answer.
    left: Option<Box<Route>>,
    /// It is asked again.
    has_returned: bool,
    /// No other server is left.
    exhausted: bool,
}

impl<'a> Tries<'a> {
    pub(super) fn new(exclusive: bool) -> Self {
        Self {
            exclusive,
            ..Self::default()
        }
    }

    /// The servers that have failed, if the request may leave the next one too. It may not if it is back at the frozen
    /// server that it had left.
    pub(super) fn may_leave(&self) -> Option<&[SocketAddr]> {
        (self.expired.is_some() || !self.has_returned).then_some(&*self.tried)
    }

    /// The watch that goes on after a 410.
    pub(super) fn resumed(&self) -> Option<&ResumedWatch> {
        Some(&self.expired.as_ref()?.watch)
    }

    /// The next route after the server of `route` has failed; or the refusal, if the request is not sent again.
    pub(super) async fn next(
        &mut self,
        context: &'a RequestContext<'a>,
        route: &Route,
        failure: ExchangeFailure,
        upload: &mut Upload,
    ) -> Result<Box<Route>, Refusal> {
        if let ExchangeFailure::Unsent(error) = &failure
            && *error.etype() == ErrorType::InvalidHTTPHeader
        {
            return Err(Refusal::BadTarget);
        }
        context.meter.attempt_failed(&failure);
        // A server may close a connection that was used before at any time: it is asked again, on another one.
        self.exclusive = failure.is_of_the_connection() && !self.exclusive;
        self.failed(context, route, &failure, upload).await;
        let next = match &mut self.expired {
            Some(_) if self.exclusive => Box::new(route.clone()),
            Some(watch) if watch.may_ask => {
                let next = plan::elsewhere(context, &self.tried, route.ready, None);
                let next = match next {
                    None => watch.later(context, route, upload).await,
                    next => next,
                };
                next.ok_or(Refusal::Unreachable)?
            }
            Some(_) => return Err(Refusal::Unreachable),
            None if self.not_understood.is_some() => {
                self.newer(context, route, &failure, upload).await?
            }
            None => self.planned(context, &failure, upload).await?,
        };
        if next.address != route.address && self.may_leave().is_some() {
            let metrics = &context.shared.metrics;
            metrics.failed_over(&failure, context.is_custom());
        }
        Ok(next)
    }

    /// Notes that `route` has failed: that it was tried, what its server answered, and what that says of the server.
    async fn failed(
        &mut self,
        context: &RequestContext<'_>,
        route: &Route,
        failure: &ExchangeFailure,
        upload: &Upload,
    ) {
        let kept = |answer: &Arc<KeptAnswer>| Some(Box::new((route.clone(), answer.clone())));
        let denial = match failure {
            ExchangeFailure::DoubtfulNotFound(Some(answer)) => {
                Some(answer).filter(|answer| denial_counts(context, route, answer))
            }
            _ => None,
        };
        if let Some(answer) = denial {
            self.tried.push(route.address);
            self.denying.push(route.address);
            self.denial = self.denial.take().or_else(|| kept(answer));
        } else if !self.exclusive {
            report(context, route, failure);
            self.tried.push(route.address);
            self.contradicted |= !failure.is_no_such_resource();
            match failure {
                ExchangeFailure::Terminating(answer) | ExchangeFailure::Unavailable(answer) => {
                    self.turned_away = kept(answer);
                }
                ExchangeFailure::NoSuchResource(answer) => self.no_such_resource = kept(answer),
                ExchangeFailure::NotUnderstood(answer) if self.not_understood.is_none() => {
                    self.not_understood = kept(answer);
                }
                _ => {}
            }
        }
        match (&mut self.expired, failure) {
            (Some(watch), failure) => watch.failed(route, failure),
            (expired, ExchangeFailure::Expired(answer)) => {
                let begun = ExpiredWatch::begin(context.shared, answer, route, upload).await;
                *expired = Some(Box::new(begun));
            }
            _ if route.server_kind != ServerKind::Local && denial.is_none() => {
                self.failed_peer = Some(Box::new(route.clone()));
            }
            _ => {}
        }
        let is_frozen = matches!(failure, ExchangeFailure::Frozen);
        if is_frozen && !context.rerouted && self.no_such_resource.is_none() {
            self.left = Some(Box::new(route.clone()));
        }
    }

    /// The next newer server, after one did not understand the request.
    async fn newer(
        &mut self,
        context: &'a RequestContext<'a>,
        route: &Route,
        failure: &ExchangeFailure,
        upload: &Upload,
    ) -> Result<Box<Route>, Refusal> {
        let last = refusal(context, failure);
        if last == Refusal::FailedMaybeExecuted || !upload.can_begin_again() {
            return Err(last);
        }
        if self.exclusive {
            return Ok(Box::new(route.clone()));
        }
        let permit = retry_permit(&context.shared.limits.not_understood, upload, last).await?;
        let at = self.not_understood.as_ref().map_or(route, |kept| &kept.0);
        let next = plan::elsewhere(context, &self.tried, route.ready, Some(at)).ok_or(last)?;
        self.permit = permit;
        Ok(next)
    }

    /// The next route as it is planned.
    async fn planned(
        &mut self,
        context: &'a RequestContext<'a>,
        failure: &ExchangeFailure,
        upload: &Upload,
    ) -> Result<Box<Route>, Refusal> {
        let shared = context.shared;
        // The next server is asked only because one has answered "no such resource".
        let may_be_known_elsewhere = self.no_such_resource.is_some();
        let permit = match may_be_known_elsewhere {
            true => {
                let doubt = Refusal::DoubtfulNotFound;
                retry_permit(&shared.limits.not_found, upload, doubt).await?
            }
            false => None,
        };
        let last = match refusal(context, failure) {
            Refusal::FailedMaybeExecuted => return Err(Refusal::FailedMaybeExecuted),
            _ if self.turned_away.is_some() => Refusal::Terminating,
            last => last,
        };
        if !upload.can_begin_again() {
            return Err(last);
        }
        let planned = match plan::next(context, &self.tried, last) {
            // All others have been asked. What this one would say stays unknown: others wait for the permit.
            Ok(next)
                if may_be_known_elsewhere && shared.servers.frozen.is_suspected(next.address) =>
            {
                Err(match self.turned_away {
                    Some(_) => Refusal::Terminating,
                    None => Refusal::DoubtfulNotFound,
                })
            }
            Err(refusal) if refusal == last => {
                self.has_returned |= self.left.is_some();
                self.exhausted = self.left.is_none();
                self.left.take().ok_or(last)
            }
            planned => planned,
        };
        planned.inspect(|_| self.permit = permit)
    }

    /// What the client gets, of what was kept, and the server that it came from, now that no other server is tried. `None`:
    /// `refusal`.
    pub(super) fn end(
        &mut self,
        context: &RequestContext<'_>,
        refusal: Refusal,
    ) -> Option<(Route, Kept)> {
        if let Some(it) = self.expired.take() {
            context.shared.metrics.watches.expired(false);
            let (resource, since) = (context.info.gvr(), context.resume);
            let (asked, later, tried) = (it.may_ask, &it.later, &self.tried);
            let text =
                "a watch gets a 410: no other server has its history, or could be asked in time";
            log_rarely!(info, ?resource, ?since, asked, ?tried, ?later, "{text}");
            it.watch.end_asking();
            let kept = match (it.expired, it.watch.begun()) {
                (Expired::Answer(answer), None) => Kept::Answer(answer),
                (expired, begun) => {
                    let content_type = begun.and_then(Option::as_ref);
                    Kept::Event(expired_event(&expired, content_type))
                }
            };
            return Some((it.from, kept));
        }
        if refusal != Refusal::FailedMaybeExecuted
            && let Some(kept) = self.not_understood.take()
        {
            return Some((kept.0, Kept::Answer(kept.1)));
        }
        let (shared, rerouted) = (context.shared, context.rerouted);
        let snapshot = shared.published.snapshot.load();
        let (own, address) = (&shared.local, shared.config.api_server.address);
        let local = own.is_initialized().then_some(address);
        let kept = match refusal {
            // A peer's proxy tries other servers itself.
            Refusal::Terminating => self.turned_away.take().filter(|_| !context.rerouted),
            // No server is left that could have the resource.
            Refusal::DoubtfulNotFound
                if denials::are_all(&snapshot, local, &context.info, rerouted, &self.denying) =>
            {
                self.denial.take()
            }
            _ if self.exhausted && !self.contradicted => self.no_such_resource.take(),
            _ => None,
        };
        kept.map(|kept| (kept.0, Kept::Answer(kept.1)))
    }
}

impl ExpiredWatch {
    /// Waits until other servers may be asked.
    async fn begin(shared: &Shared, expired: &Expired, from: &Route, upload: &Upload) -> Self {
        let limit = shared.limits.expired_watches.clone();
        // A client that has not sent all of its request would decide how long the permit is held.
        let permit = match upload.is_read() {
            true => timeout(EXPIRED_TIMEOUT, limit.acquire_owned()).await.ok(),
            false => None,
        };
        let permit = permit.and_then(Result::ok);
        Self {
            expired: expired.clone(),
            from: from.clone(),
            may_ask: permit.is_some(),
            watch: ResumedWatch::new(expired, permit),
            unfit: Vec::new(),
            later: Vec::new(),
        }
    }

    /// The server `route` does not serve the watch either.
    fn failed(&mut self, route: &Route, failure: &ExchangeFailure) {
        if let (Expired::Answer(_), ExchangeFailure::Expired(Expired::Event(event))) =
            (&self.expired, failure)
        {
            // The client has a header now, so it can no longer get the status.
            self.expired = Expired::Event(event.clone());
            self.from = route.clone();
        }
        if !matches!(failure, ExchangeFailure::Expired(_)) && !failure.is_of_the_connection() {
            self.unfit.push(route.address);
        }
    }

    /// No server has the history from where the watch begins. If etcd shows that nothing changed since, one is asked for what
    /// comes later: the cache of a custom resource begins at its first use, which this watch was by now.
    async fn later(
        &mut self,
        context: &RequestContext<'_>,
        last: &Route,
        upload: &mut Upload,
    ) -> Option<Box<Route>> {
        let (since, request) = context.resume.zip(context.again.as_ref())?;
        if self.later.len() >= LATER || !plan::is_of_this_etcd(context, since) {
            return None;
        }
        let route = plan::elsewhere(context, &self.unfit, last.ready, None)?;
        let end = Instant::now() + UNCHANGED_TIMEOUT;
        let asked = self.later.last().copied().unwrap_or(since);
        let through = unchanged_through(context, route.address, [since, asked], end).await?;
        self.later.push(through);
        upload.ask_for(request.after(through, Instant::now().into_std())?.uri);
        Some(route)
    }
}

/// Waits until the request may ask other servers; the error is `refusal`. `None`: it may without a permit, because its client
/// decides how long the rest of its body takes.
async fn retry_permit<'a>(
    limit: &'a Semaphore,
    upload: &Upload,
    refusal: Refusal,
) -> Result<Option<Box<SemaphorePermit<'a>>>, Refusal> {
    if !upload.is_read() {
        return Ok(None);
    }
    let acquired = timeout(RETRY_TIMEOUT, limit.acquire()).await;
    let permit = acquired.ok().and_then(Result::ok).ok_or(refusal)?;
    Ok(Some(Box::new(permit)))
}

/// The refusal after `failure` if no other server can be tried.
fn refusal(context: &RequestContext<'_>, failure: &ExchangeFailure) -> Refusal {
    match failure {
        // A peer asks whether this apiserver knows the resource, too.
        failure if failure.is_no_such_resource() && context.rerouted && context.is_custom() => {
            Refusal::NotServed
        }
        failure if failure.is_no_such_resource() => Refusal::DoubtfulNotFound,
        ExchangeFailure::Terminating(_) | ExchangeFailure::Unavailable(_) => Refusal::Terminating,
        ExchangeFailure::Unmerged => Refusal::Unmerged,
        ExchangeFailure::Frozen if context.rerouted => Refusal::PeerFrozen,
        failure if failure.maybe_executed() && !context.is_safe() => Refusal::FailedMaybeExecuted,
        _ => Refusal::Failed,
    }
}

/// Whether the "no such resource" that `route` has led to counts.
fn denial_counts(context: &RequestContext<'_>, route: &Route, answer: &KeptAnswer) -> bool {
    let (shared, info) = (context.shared, &context.info);
    let snapshot = shared.published.snapshot.load();
    let local = (shared.local.epoch(), shared.local.is_initialized());
    let server = (route.server_kind, route.address);
    let denials = &shared.servers.denials;
    denials.counts(&snapshot, local, info, server, &answer.response)
}

/// Tells the local state, the peer health and the log of an exchange that failed.
pub fn report(context: &RequestContext<'_>, route: &Route, failure: &ExchangeFailure) {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    let (shared, address) = (context.shared, route.address);
    let is_local = route.server_kind == ServerKind::Local;
    let refused = failure.is_refused();
    let worth_a_line = match failure {
        _ if is_local && refused => {
            shared.local.refused();
            None
        }
        // It may not know a new CRD yet. Its discovery of built-in resources is as it was.
        failure if failure.is_no_such_resource() && context.is_custom() => None,
        // The server was not expected to have this document; other servers have it.
        ExchangeFailure::DoubtfulNotFound(_) if is_local && route.row == Row::NotAResource => None,
        // The server responds, but serves something else than expected.
        ExchangeFailure::DoubtfulNotFound(_) => {
            shared.local.doubt();
            LOG_RATE.admit()
        }
        // It answers as it should: its history does not reach back.
        ExchangeFailure::Expired(_) if !is_local => {
            shared.servers.health.answered(address);
            None
        }
        // It answers as it should, or the probe or whoever merges documents logs this.
        ExchangeFailure::Terminating(_) if is_local => None,
        ExchangeFailure::Unavailable(_)
        | ExchangeFailure::NotUnderstood(_)
        | ExchangeFailure::Expired(_)
        | ExchangeFailure::NotContinued
        | ExchangeFailure::Unmerged => None,
        // The cause may be on this side, or it says nothing about other resources of the server.
        _ if is_local || failure.is_no_such_resource() => LOG_RATE.admit(),
        _ => shared.servers.health.failed(address).then_some(0),
    };
    if refused && !is_local {
        // Needed only while it is in doubt whether the peer is alive. Dropping it does no harm.
        let _ = shared.published.refused.try_send(address);
    }
    let (failure, error) = (failure.name(), failure.error().map(RedactedError));
    let error = error.map(tracing::field::display);
    let to = route.server_kind;
    match worth_a_line {
        Some(left_out) => {
            tracing::info!(?to, %address, failure, error, left_out, "exchange failed");
        }
        None => tracing::debug!(?to, %address, failure, error, "exchange failed"),
    }
}
