//! Who sends a request, as servers are told it, and what a request waits for before a server is asked.

use std::time::Duration;

use super::request::{ForwardedRequest, Refused};
use crate::relay::client::unread::outflow::Outflow;
use crate::relay::client::{ClientSession, VerificationPermit};
use crate::relay::context::RequestContext;
use crate::relay::exchange::Upload;
use crate::relay::outcome::Outcome;
use crate::relay::plan::Route;
use crate::relay::upstream::Token;
use crate::request::caller::Caller;

/// How long a request with a token waits until other callers of the same connection are verified, and how much longer
/// for each request that waits before it.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(1);
const VERIFICATION_TIMEOUT_EACH: Duration = Duration::from_millis(100);

/// What identifies the caller to a server.
pub(super) struct Authentication<'a> {
    /// The proxy client certificate is presented, and headers name the user.
    pub(super) certificate: bool,
    pub(super) token: Option<Token>,
    /// No apiserver has accepted the token yet, and one may end the connection because of it.
    pub(super) is_unverified: bool,
    /// Held if the request had to wait for verification.
    pub(super) permit: Option<VerificationPermit<'a>>,
}

/// Writes the headers that are the same for every server. Returns what identifies the caller, and whether the request
/// needs a connection of its own.
pub(super) fn authenticate<'a>(
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
    let privileged = &context.shared.callers.privileged;
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

/// Whether the request comes from a peer's proxy.
pub(super) fn is_peers(context: &RequestContext<'_>) -> bool {
    *context.request.caller == Caller::Peer
}

/// Waits for a verification permit. A request with a token waits for a limited time, because the
/// requests before it may be slow for other reasons. Behind an anonymous request the connection is going to end.
pub(super) async fn wait_for_permit<'a>(
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
pub(super) async fn may_have_answer(outflow: &Outflow, session: &mut ClientSession) -> bool {
    tokio::select! {
        () = outflow.turn_to_ask() => true,
        () = session.gone() => false,
    }
}
