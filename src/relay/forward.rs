//! Sends a request to one server after the other until one answers. Called by [`crate::relay::service`].
//!
//! No write is sent twice: when an exchange broke off after part of it was sent, only reads are tried on another
//! server. A request that was certainly not executed is tried again whatever its verb, as long as its body can be sent
//! again. What failed, and which server is next, is in `tries`.
//!
//! Headers that only peers may send are removed, and the identity is written last.
//!
//! When no server is left, the client gets an answer that was kept. Otherwise it gets a 503. client-go repeats any request
//! whose answer has `Retry-After`, so a write that may have been executed gets a 503 without it.

mod tries;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{EXPECT, HeaderMap, HeaderValue};
use http::request::Parts;
use pingora_core::ErrorType;

use self::tries::Tries;
pub use self::tries::report;
use crate::net::rare;
use crate::relay::answer::Refusal;
use crate::relay::client::{ClientSession, Outflow, VerificationPermit};
use crate::relay::exchange::{self, Delivered, Exchange, Leaving, Upload, pass_kept};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::plan::{RequestContext, Route};
use crate::relay::upstream::{ConnectionChoice, ConnectionPool, RequestKind, Token};
use crate::request::caller::Caller;
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, PEER_PROXIED, REROUTED, set, stamp_address, strip_hop_by_hop,
};
use crate::request::surplus::keep_client_headers;
use crate::routing::table::ServerKind;

/// How long a request with a token waits until other callers of the same connection are verified, and how much longer
/// for each request that waits before it.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(1);
const VERIFICATION_TIMEOUT_EACH: Duration = Duration::from_millis(100);

/// Tries `route`, and then other servers that can serve the request. `large`: its header is too large for a shared
/// connection.
pub async fn forward<'a>(
    context: &'a RequestContext<'a>,
    session: &mut ClientSession,
    upload: &mut Upload,
    route: &mut Route,
    large: bool,
) -> Result<Delivered, Refusal> {
    // Before anything is taken that others wait for: the client decides how long this lasts.
    let outflow = &context.downstream.outflow;
    if !outflow.may_ask() && !rare(|| may_have_answer(outflow, session)).await {
        return Ok(Outcome::Broken.into());
    }
    let mut request = ForwardedRequest::new(context, upload, large)?;
    let is_unverified = !request.is_known && route.details.ends_anonymous;
    let is_peers = context.caller == Caller::Peer;
    if is_unverified && !is_peers && session.is_http2() {
        match rare(|| wait_for_permit(context, session)).await {
            Ok(permit) => request.permit = permit,
            Err(outcome) => return Ok(outcome.into()),
        }
    }
    // A body may be too long to be sent again, and a peer's users do not know each other. A request that failed on
    // its own connection has failed: no other request can have closed it.
    let is_peers_body = is_unverified && is_peers && upload.is_expected();
    request.begins_alone = request.is_unauthenticated || is_peers_body;
    // As long as none has failed, there is nothing to know.
    let mut tries: Option<Box<Tries>> = None;
    loop {
        let attempted = {
            // Pinned where it is made: `await` would first copy it there.
            let attempt = pin!(request.attempt(session, upload, route, tries.as_deref_mut()));
            attempt.await
        };
        let failure = match attempted {
            Ok(delivered) => return Ok(delivered),
            Err(failure) => failure,
        };
        let known = tries.get_or_insert_with(|| Box::new(Tries::new(request.begins_alone)));
        match rare(|| known.next(context, route, failure, upload)).await {
            Ok(next) => *route = *next,
            Err(refusal) => {
                return rare(|| request.end(session, upload, known, refusal)).await;
            }
        }
    }
}

/// Waits until this connection may have more answers; `false`: the client went away.
async fn may_have_answer(outflow: &Outflow, session: &mut ClientSession) -> bool {
    tokio::select! {
        () = outflow.until(|| outflow.may_ask()) => true,
        () = session.gone() => false,
    }
}

/// Waits for a verification permit. A request with a token waits for a limited time, because the
/// requests before it may be slow for other reasons. Behind an anonymous request the connection is going to end.
async fn wait_for_permit<'a>(
    context: &'a RequestContext<'a>,
    session: &mut ClientSession,
) -> Result<Option<VerificationPermit>, Outcome> {
    let waiting = context.downstream.waiting.clone();
    // The connection has it, and this request.
    let before = u32::try_from(Arc::strong_count(&waiting) - 2).unwrap_or(u32::MAX);
    let patience = VERIFICATION_TIMEOUT + VERIFICATION_TIMEOUT_EACH * before;
    let named = context.caller != Caller::Anonymous;
    tokio::select! {
        permit = context.downstream.verification_permit() => permit.map(Some).ok_or(Outcome::Declined),
        () = session.gone() => Err(Outcome::Broken),
        () = tokio::time::sleep(patience), if named => Ok(None),
    }
}

/// A request with the headers that are the same for every server, and what identifies its caller there.
pub struct ForwardedRequest<'a> {
    context: &'a RequestContext<'a>,
    /// Its header is too large for a shared connection.
    large: bool,
    /// The proxy client certificate is presented, and headers name the user.
    certificate: bool,
    /// These headers name a user that apiservers take for unauthenticated.
    pub is_unauthenticated: bool,
    /// The bearer token, if only an apiserver can verify it.
    token: Option<Token>,
    /// No apiserver ends the connection because of the caller: it has a certificate, or its token was accepted before.
    is_known: bool,
    /// Held if the request had to wait for verification.
    permit: Option<VerificationPermit>,
    /// The first server is asked on a connection of its own.
    begins_alone: bool,
}

impl<'a> ForwardedRequest<'a> {
    pub fn new(
        context: &'a RequestContext<'a>,
        upload: &mut Upload,
        large: bool,
    ) -> Result<Self, Refusal> {
        let (shared, tokens) = (context.shared, context.tokens);
        let header = upload.header_mut().ok_or(Refusal::BadTarget)?;
        let certificate = for_any_server(context, header);
        let certificate = certificate.map_err(|_| Refusal::BadTarget)?;
        let headers = &header.headers;
        let token = match certificate {
            true => None,
            false => tokens.of(headers),
        };
        Ok(Self {
            context,
            large,
            certificate,
            is_unauthenticated: certificate
                && shared.callers.privileged.name_unauthenticated(headers),
            token,
            is_known: certificate || token.is_some_and(|token| tokens.is_known(token)),
            permit: None,
            begins_alone: false,
        })
    }

    /// Asks one server.
    async fn attempt(
        &self,
        session: &mut ClientSession,
        upload: &mut Upload,
        route: &Route,
        mut tries: Option<&mut Tries<'a>>,
    ) -> Result<Delivered, ExchangeFailure> {
        let permit = tries.as_mut().and_then(|tries| tries.permit.take());
        let (context, tries) = (self.context, tries.as_deref());
        let exclusive = tries.map_or(self.begins_alone, |tries| tries.exclusive);
        let exchange = self.exchange(route, upload, exclusive);
        let (mut exchange, header) = exchange.map_err(|mut error| {
            error.etype = ErrorType::InvalidHTTPHeader;
            ExchangeFailure::Unsent(error)
        })?;
        let resumed = tries.and_then(Tries::resumed);
        let resumes = context.resume.is_some() && !context.rerouted && !upload.is_expected();
        exchange.resumed = resumed;
        exchange.avoids_410 = resumed.is_some() || resumes && context.kind == RequestKind::Long;
        let tried = tries.map_or(Some(&[][..]), Tries::may_leave);
        exchange.leaving = tried.map(|tried| Leaving {
            reads: resumed.is_some() || context.kind == RequestKind::Short && context.is_safe(),
            has_answer: resumed.is_some() || permit.is_some(),
            tried,
        });
        let delivered = exchange::run(&exchange, session, header, upload, permit).await?;
        self.count_answer(route, &delivered, tries);
        Ok(delivered)
    }

    /// The exchange with the server of `route`, and the header that is sent there. `exclusive`: on a connection of its
    /// own.
    pub fn exchange<'s>(
        &'s self,
        route: &'s Route,
        upload: &mut Upload,
        exclusive: bool,
    ) -> pingora_core::Result<(Exchange<'s>, Box<Parts>)> {
        let mut header = upload.header_to_send()?;
        let (context, shared) = (self.context, self.context.shared);
        let headers = &mut header.headers;
        for_server_kind(context, headers, route.server_kind)?;
        let overlay = route.overlay.as_ref();
        let overlay = overlay.map(|overlay| overlay.asked(&shared.merge_cache, headers));
        if let Caller::User(user) = &context.caller {
            let privileged = &shared.callers.privileged;
            privileged.stamp_details(headers, user, route.details)?;
        }
        let exchange = Exchange {
            context,
            route,
            pool: self.pool(route),
            connection: match exclusive {
                _ if self.large || context.kind == RequestKind::Upgrade => {
                    ConnectionChoice::NewHttp1
                }
                true => ConnectionChoice::New,
                false => ConnectionChoice::Any,
            },
            token: self.token,
            permit: self.permit.as_ref(),
            leaving: None,
            avoids_410: false,
            resumed: None,
            overlay: overlay.transpose()?,
        };
        Ok((exchange, header))
    }

    /// The connections that the request may use.
    fn pool(&self, route: &Route) -> Arc<ConnectionPool> {
        let context = self.context;
        // Tokens and anonymous requests go to a peer's proxy with our certificate, because it accepts only a peer's
        // reroute mark. An apiserver would reject an anonymous request with our certificate.
        let certificate = self.certificate || route.server_kind == ServerKind::Proxied;
        let local = route.server_kind == ServerKind::Local;
        let pool = context.upstreams.pool(local, certificate, context.kind);
        // Asked again: a server may have accepted it, or not, meanwhile.
        let is_known = |token| context.tokens.is_known(token);
        let is_shared =
            certificate || !route.details.ends_anonymous || self.token.is_some_and(is_known);
        match is_shared {
            true => pool.clone(),
            false => context.downstream.unverified_pool(pool),
        }
    }

    /// No other server is tried: the client gets an answer that was kept, or the refusal.
    async fn end(
        &self,
        session: &mut ClientSession,
        upload: &mut Upload,
        tries: &mut Tries<'a>,
        refusal: Refusal,
    ) -> Result<Delivered, Refusal> {
        let metrics = &self.context.shared.metrics;
        let Some((from, kept)) = tries.end(self.context, refusal) else {
            if let Some(peer) = &tries.failed_peer {
                metrics.failed_reroute(false);
                metrics.rerouted(refusal.code(), peer.rerouted_as.as_deref());
            }
            return Err(refusal);
        };
        let Ok((exchange, _)) = self.exchange(&from, upload, false) else {
            return Ok(Outcome::Broken.into());
        };
        let delivered = pass_kept(&exchange, kept, session, upload).await.into();
        self.count_answer(&from, &delivered, Some(tries));
        Ok(delivered)
    }

    fn count_answer(&self, route: &Route, delivered: &Delivered, tries: Option<&Tries<'_>>) {
        let shared = self.context.shared;
        let (code, is_cut) = match delivered {
            Delivered::Continues(rest) => (rest.code, false),
            Delivered::Ended(Outcome::Answered { code, reusable }) => (*code, !reusable),
            Delivered::Ended(Outcome::Upgraded) => (101, false),
            Delivered::Ended(Outcome::Broken | Outcome::Declined) => return,
        };
        let failed_peer = tries.and_then(|tries| tries.failed_peer.as_deref());
        if failed_peer.is_some() {
            shared.metrics.failed_reroute(true);
        }
        let peer = (route.server_kind != ServerKind::Local).then_some(route);
        if let Some(peer) = peer.or(failed_peer) {
            let resource = peer.rerouted_as.as_deref();
            shared.metrics.rerouted(code, resource);
        }
        // What was cut off may have been cut off because the peer is down.
        if let Some(peer) = peer.filter(|_| !is_cut) {
            shared.servers.health.answered(peer.address);
        }
    }
}

/// Writes the headers that are the same for every server. Returns whether the proxy client certificate is presented.
fn for_any_server(context: &RequestContext<'_>, header: &mut Parts) -> pingora_core::Result<bool> {
    let (shared, caller) = (context.shared, &context.caller);
    let headers = &mut header.headers;
    if *caller != Caller::Peer {
        let forged = shared.callers.privileged.strip(headers);
        if forged > 0 {
            shared.metrics.rejected_headers.inc_by(forged as u64);
        }
    }
    if context.settings.if_ready.enabled {
        headers.remove(IF_READY);
    }
    // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it: the proxy sends it.
    headers.remove(EXPECT);
    strip_hop_by_hop(
        headers,
        header.version,
        context.kind == RequestKind::Upgrade,
    )?;
    // The identity comes last, so that the header `Connection` cannot remove it.
    if let Caller::User(user) = caller {
        shared.callers.privileged.stamp(headers, user)?;
    }
    let certificate = shared.callers.privileged.user(caller, headers).is_some();
    if *caller != Caller::Peer || !headers.contains_key(FORWARDED_FOR) {
        stamp_address(headers, &context.downstream.client.address)?;
    }
    Ok(certificate)
}

/// Removes headers that the server may accept and the configuration does not name. As long as it is not known which it
/// accepts, only those that clients need go over a connection that presents the proxy client certificate. Then writes the
/// marks that limit a request to one reroute.
fn for_server_kind(
    context: &RequestContext<'_>,
    headers: &mut HeaderMap,
    server_kind: ServerKind,
) -> pingora_core::Result<()> {
    let (shared, caller) = (context.shared, &context.caller);
    if *caller != Caller::Peer {
        let (local, privileged) = (&shared.local, &shared.callers.privileged);
        let certificate = matches!(caller, Caller::User(_)) || server_kind == ServerKind::Proxied;
        // An apiserver publishes its names after it has started.
        let starting = server_kind == ServerKind::Local && !local.is_initialized();
        if certificate && (starting || !local.surplus_headers.is_known()) {
            keep_client_headers(headers, privileged);
        } else {
            let forged = local.surplus_headers.strip(headers, privileged);
            if forged > 0 {
                shared.metrics.rejected_headers.inc_by(forged as u64);
            }
        }
    }
    match server_kind {
        ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => {
            set(headers, REROUTED, HeaderValue::from_static("true"))?;
            set(headers, PEER_PROXIED, HeaderValue::from_static("true"))
        }
        // The apiserver gets only its own mark. Without it a native apiserver would pass the request on again.
        ServerKind::Local => match headers.remove(REROUTED) {
            Some(_) => set(headers, PEER_PROXIED, HeaderValue::from_static("true")),
            None => Ok(()),
        },
    }
}
