//! Sends a request to one server after the other until one answers.
//!
//! No write is sent twice: when an exchange broke off after part of it was sent, only reads are tried on another
//! server. A request that was certainly not executed is tried again whatever its verb, as long as its body can be sent
//! again.
//!
//! When no server is left, the client gets an answer that was kept ([`super::kept_answer`]). Otherwise it gets a 503.
//! client-go repeats any request whose answer has `Retry-After`, so a write that may have been executed gets a 503
//! without it.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use pingora_core::{Error, ErrorType};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::boxed::rare;
use super::client_session::ClientSession;
use super::denials;
use super::downstream::{Downstream, VerificationPermit};
use super::expired::{Expiry, FirstExpiry};
use super::framing::RedactedError;
use super::kept_answer::KeptAnswers;
use super::outcome::{ExchangeFailure, KeptAnswer, Outcome};
use super::plan;
use super::refusal::Refusal;
use super::request_metrics::RequestMeter;
use super::shared::Shared;
use super::tokens::{Token, Tokens};
use super::unread::outflow::Outflow;
use super::upload::Upload;
use super::upstream::{ConnectionChoice, PoolChoice, RequestKind, Upstreams};
use super::watch_rest::Delivered;
use crate::kube::gvr::Gvr;
use crate::log_throttle::LogRateLimit;
use crate::relay::exchange::{Exchange, Leaving};
use crate::relay::overlay::metrics::DocumentOutcome;
use crate::relay::recent::RequestEvent;
use crate::relay::route::{Action, Plan, Route, RouteRequest, ServerKind};
use crate::relay::upstream_headers;
use crate::request::caller::Caller;
use crate::routing::decide::Row;

/// How long a request with a token waits until other callers of the same connection are verified, and how much longer
/// for each request that waits before it.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(1);
const VERIFICATION_TIMEOUT_EACH: Duration = Duration::from_millis(100);
/// How long a request waits until it may ask other servers whether they know a custom resource.
const NOT_FOUND_RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is forwarded.
pub struct ForwardedRequest<'a> {
    pub route_request: &'a RouteRequest<'a>,
    pub downstream: &'a Downstream,
    /// Tokens that apiservers have accepted.
    pub tokens: &'a Tokens,
    pub kind: RequestKind,
    /// Its header is too large for a shared connection.
    pub exclusive: bool,
    /// `X-Kubernetes-Ready` on the answer.
    pub ready: Option<bool>,
    pub meter: &'a RequestMeter<'a>,
    pub failed_reroute: Option<FailedReroute>,
}

/// A peer could not answer: the name of the resource it was asked for, for the counter of rerouted requests.
pub struct FailedReroute(Option<Arc<Gvr>>);

/// What identifies the caller to a server.
pub(super) struct Authentication<'a> {
    /// The proxy client certificate is presented, and headers name the user.
    certificate: bool,
    token: Option<Token>,
    /// Held if the request had to wait for verification.
    permit: Option<VerificationPermit<'a>>,
}

/// The proxy answers with this refusal.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    pub refusal: Refusal,
    /// The server that was tried last, if any.
    pub server: Option<SocketAddr>,
}

impl Refused {
    /// No server was tried.
    pub fn untried(refusal: Refusal) -> Self {
        Self {
            refusal,
            server: None,
        }
    }
}

impl<'a> ForwardedRequest<'a> {
    /// Whether the request may be executed twice. `exec` over WebSocket is a GET too, but no read.
    fn is_safe(&self) -> bool {
        let reads = matches!(
            *self.route_request.method,
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        reads && self.kind != RequestKind::Upgrade
    }

    /// Tries `route`, and then other servers that can serve the request.
    pub async fn run(
        &mut self,
        shared: &Shared,
        upstreams: &Upstreams,
        session: &mut ClientSession,
        upload: &mut Upload,
        route: &mut Route,
    ) -> Result<Delivered, Refused> {
        // Before anything is taken that others wait for: the client decides how long this lasts.
        let outflow = &self.downstream.outflow;
        if !outflow.may_ask() && !rare(|| is_its_turn(outflow, session)).await {
            return Ok(Outcome::Broken.into());
        }
        let certificate = self.write_common_headers(shared, upload)?;
        // Only an apiserver can authenticate other callers.
        let headers = upload.header_mut().filter(|_| !certificate);
        let token = headers.and_then(|header| self.tokens.of(&header.headers));
        let known = certificate || token.is_some_and(|token| self.tokens.is_known(token));
        let unverified = !known && route.details.ends_anonymous;
        let mut named = upload.header_mut().filter(|_| certificate).into_iter();
        let unauthenticated =
            named.any(|header| shared.privileged.name_unauthenticated(&header.headers));
        // A body may be too long to be sent again, and a peer's users do not know each other. A request that failed on
        // its own connection has failed: no other request can have closed it.
        let peer = *self.route_request.caller == Caller::Peer;
        let exclusive = unauthenticated || unverified && peer && upload.is_expected();
        let waits = unverified && !peer && session.is_http2();
        let permit = match waits {
            false => None,
            true => match rare(|| self.wait_for_permit(session)).await {
                Ok(permit) => permit,
                Err(outcome) => return Ok(outcome.into()),
            },
        };
        let authentication = Authentication {
            certificate,
            token,
            permit,
        };
        let servers = (shared, upstreams, &authentication);
        let attempted = {
            // Pinned where it is made: `await` would first copy it there.
            let attempt = pin!(self.attempt(
                servers,
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
                rare(|| self.fail_over(servers, session, upload, route, failed)).await
            }
        }
    }

    /// Asks one server. `exclusive`: on a connection of its own; `tried`: the servers that have failed,
    /// if the request may leave this one; `permit`: held while it is asked.
    async fn attempt(
        &mut self,
        (shared, upstreams, authentication): (&Shared, &Upstreams, &Authentication<'a>),
        session: &mut ClientSession,
        upload: &mut Upload,
        route: &Route,
        (exclusive, tried, permit): (
            bool,
            Option<&[SocketAddr]>,
            Option<Box<SemaphorePermit<'_>>>,
        ),
    ) -> Result<Result<Delivered, ExchangeFailure>, Refused> {
        let exchange = self.exchange(shared, upstreams, authentication, route, upload, exclusive);
        let (mut exchange, header) = exchange?;
        exchange.expiry = self.expiry(upload);
        exchange.leaving = tried.map(|tried| Leaving {
            reads: self.kind == RequestKind::Short && self.is_safe(),
            has_answer: permit.is_some(),
            tried,
            budget: &upstreams.read_budget,
            ticker: &upstreams.ticker,
        });
        match exchange.run(session, header, upload, permit).await {
            Ok(delivered) => {
                self.count_answer(shared, route, &delivered);
                Ok(Ok(delivered))
            }
            // The request was sent to no server.
            Err(ExchangeFailure::Unsent(error))
                if *error.etype() == ErrorType::InvalidHTTPHeader =>
            {
                Err(unwritable(&error))
            }
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Tries other servers after `route` has failed. `exclusive`: on a connection of its own.
    async fn fail_over(
        &mut self,
        servers @ (shared, upstreams, authentication): (&Shared, &Upstreams, &Authentication<'a>),
        session: &mut ClientSession,
        upload: &mut Upload,
        route: &mut Route,
        (mut failure, mut exclusive): (ExchangeFailure, bool),
    ) -> Result<Delivered, Refused> {
        let mut kept = KeptAnswers::default();
        // A frozen server that this read has left. It is asked again if no other can answer.
        let mut left: Option<Route> = None;
        let mut may_leave = true;
        let mut tried: Vec<SocketAddr> = Vec::new();
        let end = loop {
            if let ExchangeFailure::Expired(expired) = failure {
                let from = route.clone();
                let first = FirstExpiry {
                    expired,
                    from,
                    tried,
                };
                let following =
                    self.after_expiry(shared, upstreams, authentication, session, upload, first);
                return Ok(Box::pin(following).await);
            }
            self.meter.attempt_failed(&failure);
            let custom = self.is_custom(shared);
            exclusive = failure.is_of_the_connection() && !exclusive;
            let denial = match &failure {
                ExchangeFailure::DoubtfulNotFound(Some(answer)) => Some(answer).filter(|answer| {
                    denials::counts(shared, self.route_request, route, &answer.response)
                }),
                _ => None,
            };
            if let Some(answer) = denial {
                tried.push(route.address);
                kept.add_denial(route, answer);
            } else if !exclusive {
                report(shared, route, &failure, custom);
                tried.push(route.address);
                kept.add(route, &failure);
            }
            if route.server_kind != ServerKind::Local && denial.is_none() {
                self.failed_reroute = Some(FailedReroute(route.rerouted_as.clone()));
            }
            let may_be_known_elsewhere = kept.may_be_known_elsewhere();
            if matches!(failure, ExchangeFailure::Frozen)
                && !self.route_request.rerouted
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
            let last = self.refusal(&failure, custom);
            match self.next_route(shared, last, turned_away, &tried, upload) {
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
            match self
                .attempt(
                    servers,
                    session,
                    upload,
                    route,
                    (exclusive, leaving, permit),
                )
                .await?
            {
                Ok(delivered) => return Ok(delivered),
                Err(next) => failure = next,
            }
        };
        let passed = match end {
            // A peer's proxy tries other servers itself.
            RouteEnd::Exhausted(Refusal::Terminating) | RouteEnd::Refused(Refusal::Terminating) => {
                kept.turned_away.filter(|_| !self.route_request.rerouted)
            }
            RouteEnd::Exhausted(Refusal::DoubtfulNotFound)
            | RouteEnd::Refused(Refusal::DoubtfulNotFound)
                if denials::are_all(shared, self.route_request, &kept.denying) =>
            {
                kept.denial
            }
            RouteEnd::Exhausted(_) => kept.unanimous(),
            RouteEnd::Refused(_) => None,
        };
        let Some(passed) = passed else {
            if self.failed_reroute.is_some() {
                shared.metrics.failed_reroute(false);
            }
            self.count_rerouted(shared, end.refusal().code(), None);
            return Err(Refused {
                refusal: end.refusal(),
                server: Some(route.address),
            });
        };
        let (from, answer) = &*passed;
        let exchange = self.exchange(shared, upstreams, authentication, from, upload, false);
        Ok(self.pass(&exchange?.0, session, upload, from, answer).await)
    }

    /// The next route. `last`: the refusal if no other server can be tried; `turned_away`: a server has turned
    /// the request away.
    fn next_route(
        &mut self,
        shared: &Shared,
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
        let Plan { ready, action, .. } = plan::next(shared, self.route_request, tried, last);
        match action {
            Action::Forward(next) => {
                self.ready = ready;
                Ok(*next)
            }
            Action::Answer(refusal) if refusal == last => Err(RouteEnd::Exhausted(last)),
            Action::Answer(refusal) => Err(RouteEnd::Refused(refusal)),
        }
    }

    /// Passes on an answer that was kept.
    pub(super) async fn pass(
        &self,
        exchange: &Exchange<'_>,
        session: &mut ClientSession,
        upload: &Upload,
        from: &Route,
        answer: &KeptAnswer,
    ) -> Delivered {
        let method = self.route_request.method;
        let passing = exchange.pass_kept(answer, session, method, upload);
        let delivered = passing.await.into();
        self.count_answer(exchange.shared, from, &delivered);
        delivered
    }

    /// Waits for a verification permit. A request with a token waits for a limited time, because the
    /// requests before it may be slow for other reasons. Behind an anonymous request the connection is going to end.
    async fn wait_for_permit(
        &self,
        session: &mut ClientSession,
    ) -> Result<Option<VerificationPermit<'a>>, Outcome> {
        let waiting = self.downstream.wait_for_permit();
        let patience = VERIFICATION_TIMEOUT + VERIFICATION_TIMEOUT_EACH * waiting.before;
        let named = *self.route_request.caller != Caller::Anonymous;
        tokio::select! {
            permit = self.downstream.verification_permit() => permit.map(Some).ok_or(Outcome::Declined),
            () = session.gone() => Err(Outcome::Broken),
            () = tokio::time::sleep(patience), if named => Ok(None),
        }
    }

    /// Writes the headers that are the same for every server. Returns whether the proxy client certificate is
    /// presented.
    fn write_common_headers(&self, shared: &Shared, upload: &mut Upload) -> Result<bool, Refused> {
        let caller = self.route_request.caller;
        let Some(header) = upload.header_mut() else {
            return Err(Refused::untried(Refusal::BadTarget));
        };
        upstream_headers::for_any_server(
            shared,
            header,
            &self.downstream.client,
            caller,
            self.kind,
            self.route_request.settings,
        )
        .map_err(|error| unwritable(&error))
    }

    pub(super) fn exchange<'s>(
        &self,
        shared: &'s Shared,
        upstreams: &'s Upstreams,
        authentication: &'s Authentication<'a>,
        route: &Route,
        upload: &mut Upload,
        exclusive: bool,
    ) -> Result<(Exchange<'s>, Box<Parts>), Refused>
    where
        'a: 's,
    {
        self.write_exchange(shared, upstreams, authentication, route, upload, exclusive)
            .map_err(|error| unwritable(&error))
    }

    fn write_exchange<'s>(
        &self,
        shared: &'s Shared,
        upstreams: &'s Upstreams,
        authentication: &'s Authentication<'a>,
        route: &Route,
        upload: &mut Upload,
        exclusive: bool,
    ) -> pingora_core::Result<(Exchange<'s>, Box<Parts>)>
    where
        'a: 's,
    {
        let Some(mut header) = upload.header_to_send()? else {
            return Error::e_explain(ErrorType::InternalError, "the answer has begun");
        };
        let (caller, kind) = (self.route_request.caller, route.server_kind);
        upstream_headers::for_server_kind(shared, &mut header.headers, caller, kind)?;
        let merge_request = route
            .overlay
            .as_ref()
            .map(|overlay| overlay.begin(&shared.merge_cache, &mut header.headers));
        if let Caller::User(user) = caller {
            let privileged = &shared.privileged;
            privileged.stamp_details(&mut header.headers, user, route.details)?;
        }
        let group = match route.server_kind {
            ServerKind::Local => &upstreams.local,
            ServerKind::Peer | ServerKind::Native => &upstreams.peers,
        };
        let exchange = Exchange {
            shared,
            request: self.route_request,
            downstream: self.downstream,
            token: authentication.token,
            tokens: self.tokens,
            permit: authentication.permit.as_ref(),
            group,
            destination: group.at(route.address),
            kind: self.kind,
            pool_choice: self.pool_choice(upstreams, authentication, route),
            connection_choice: match exclusive {
                _ if self.exclusive => ConnectionChoice::NewHttp1,
                true => ConnectionChoice::New,
                false => ConnectionChoice::Any,
            },
            ends_anonymous: route.details.ends_anonymous,
            server_kind: route.server_kind,
            ready: self.ready,
            names_server: self.route_request.may_seek_a_proxy(),
            no_such_resource: route.no_such_resource,
            is_rerouted_here: route.row == Row::Rerouted,
            patience: route.patience,
            leaving: None,
            expiry: Expiry::Pass,
            merge_request: merge_request.transpose()?.flatten().map(Box::new),
            meter: self.meter,
        };
        Ok((exchange, header))
    }

    /// The connections that the request may use.
    fn pool_choice(
        &self,
        upstreams: &Upstreams,
        authentication: &Authentication<'_>,
        route: &Route,
    ) -> PoolChoice {
        // Tokens and anonymous requests go to a peer's proxy with our certificate, because it believes only a peer's
        // reroute mark. An apiserver would reject an anonymous request with our certificate.
        if authentication.certificate || route.server_kind == ServerKind::Peer {
            return PoolChoice::Certificate;
        }
        let known = authentication
            .token
            .is_some_and(|token| self.tokens.is_known(token));
        if known || !route.details.ends_anonymous {
            return PoolChoice::Shared;
        }
        let own = self.downstream.unverified_pools(upstreams);
        PoolChoice::Unverified(match route.server_kind {
            ServerKind::Local => own.local,
            ServerKind::Peer | ServerKind::Native => own.peers,
        })
    }

    pub(super) fn count_answer(&self, shared: &Shared, route: &Route, delivered: &Delivered) {
        let (code, is_cut) = match delivered {
            Delivered::Continues(rest) => (rest.code, false),
            Delivered::Ended(Outcome::Answered { code, reusable }) => (*code, !reusable),
            Delivered::Ended(Outcome::Upgraded) => (101, false),
            Delivered::Ended(Outcome::Broken | Outcome::Declined) => return,
        };
        if self.failed_reroute.is_some() {
            shared.metrics.failed_reroute(true);
        }
        let from_peer = route.server_kind != ServerKind::Local;
        self.count_rerouted(shared, code, from_peer.then_some(route));
        if from_peer {
            // What was cut off may have been cut off because the peer is gone.
            if !is_cut {
                shared.health.answered(route.address);
            }
            shared.recent.rerouted.add(|| {
                let request = Some((self.route_request.method, self.route_request.info));
                RequestEvent::new(request, Some(route.address), code, route.row.name())
            });
            if route.overlay.is_some() {
                shared.metrics.documents.count(DocumentOutcome::Rerouted);
            }
        }
    }

    /// Whether the request is about a resource of a CRD or an aggregated API.
    pub(super) fn is_custom(&self, shared: &Shared) -> bool {
        let gvr = plan::gvr(self.route_request.info);
        gvr.is_some_and(|gvr| shared.published.snapshot.load().is_custom(gvr))
    }

    /// Counts a request that a peer was asked for. `by`: the route to the peer that answered; `None`: another server or
    /// the proxy did, with `code`.
    fn count_rerouted(&self, shared: &Shared, code: u16, by: Option<&Route>) {
        let failed = self.failed_reroute.as_ref();
        let gvr = by.map(|route| route.rerouted_as.as_deref());
        if let Some(gvr) = gvr.or(failed.map(|failed| failed.0.as_deref())) {
            shared.metrics.rerouted(code, gvr);
        }
    }

    /// The refusal after `failure` if no other server can be tried.
    fn refusal(&self, failure: &ExchangeFailure, custom: bool) -> Refusal {
        match failure {
            // A peer asks whether this apiserver knows the resource, too.
            failure if failure.is_no_such_resource() && self.route_request.rerouted && custom => {
                Refusal::NotServed
            }
            failure if failure.is_no_such_resource() => Refusal::DoubtfulNotFound,
            ExchangeFailure::Terminating(_) | ExchangeFailure::Unavailable(_) => {
                Refusal::Terminating
            }
            ExchangeFailure::Unmerged => Refusal::Unmerged,
            ExchangeFailure::Frozen if self.route_request.rerouted => Refusal::PeerFrozen,
            _ => Refusal::Failed {
                maybe_executed: failure.maybe_executed() && !self.is_safe(),
            },
        }
    }
}

/// Waits until this connection may have more answers; `false`: the client went away.
async fn is_its_turn(outflow: &Outflow, session: &mut ClientSession) -> bool {
    tokio::select! {
        () = outflow.turn_to_ask() => true,
        () = session.gone() => false,
    }
}

fn unwritable(error: &pingora_core::Error) -> Refused {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    if let Some(left_out) = LOG_RATE.admit() {
        tracing::warn!(error = %RedactedError(error), left_out, "request headers cannot be written");
    }
    Refused::untried(Refusal::BadTarget)
}

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

/// Reports a server's failure to the local state, the peer health and the log. `custom`: the request is about a
/// resource that every server is to serve.
pub(super) fn report(shared: &Shared, route: &Route, failure: &ExchangeFailure, custom: bool) {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    let refused = failure.is_refused();
    let worth_a_line = match (route.server_kind, failure) {
        (ServerKind::Local, _) if refused => {
            shared.local.refused();
            None
        }
        // It may not know a new CRD yet. Its discovery of built-in resources is as it was.
        (_, failure) if custom && failure.is_no_such_resource() => None,
        // The server was not expected to have this document; other servers have it.
        (ServerKind::Local, ExchangeFailure::DoubtfulNotFound(_)) if route.overlay.is_some() => {
            None
        }
        // The server responds, but serves something else than expected.
        (_, ExchangeFailure::DoubtfulNotFound(_)) => {
            shared.local.doubt();
            LOG_RATE.admit()
        }
        // The probe logs this once.
        (ServerKind::Local, ExchangeFailure::Terminating(_)) => None,
        // It serves other resources, or the probe logs this.
        (_, ExchangeFailure::Unavailable(_)) => None,
        // Says nothing about other resources of the server.
        (_, ExchangeFailure::NotExecuted { of_resource: true }) => LOG_RATE.admit(),
        // It answers as it should: its history does not reach back.
        (ServerKind::Peer | ServerKind::Native, ExchangeFailure::Expired(_)) => {
            shared.health.answered(route.address);
            None
        }
        (_, ExchangeFailure::Expired(_) | ExchangeFailure::NotContinued) => None,
        // The cause may be on this side.
        (ServerKind::Local, _) | (_, ExchangeFailure::Unmerged) => LOG_RATE.admit(),
        _ => shared.health.failed(route.address).then_some(0),
    };
    if refused && route.server_kind != ServerKind::Local {
        // Needed only while it is in doubt whether the peer is alive. Dropping it does no harm.
        let _ = shared.published.refused.try_send(route.address);
    }
    let (address, failure, error) = (
        route.address,
        failure.name(),
        failure.error().map(RedactedError),
    );
    let error = error.map(tracing::field::display);
    match worth_a_line {
        Some(left_out) => {
            tracing::info!(to = ?route.server_kind, %address, failure, error, left_out, "exchange failed");
        }
        None => {
            tracing::debug!(to = ?route.server_kind, %address, failure, error, "exchange failed")
        }
    }
}
