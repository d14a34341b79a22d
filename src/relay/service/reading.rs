//! What a request's header says, before anything is planned.

use std::sync::Arc;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Method, Version};
use pingora_core::protocols::http::ServerSession;

use crate::relay::answer::Refusal;
use crate::relay::client::large_headers::{self, LargeHeaderPermit};
use crate::relay::client::{
    ClientSession, Downstream, Expectation, has_one_length, is_hosted, names_a_path,
};
use crate::relay::observe::RequestSpan;
use crate::relay::shared::Shared;
use crate::relay::upstream::RequestKind;
use crate::request::caller::Caller;
use crate::request::info::{self, RequestInfo};
use crate::request::token;

/// Path and query of a request's target.
pub(super) fn split(target: &str) -> (&str, Option<&str>) {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    (if path.is_empty() { "/" } else { path }, query)
}

/// How the request uses its connection to a server. `asks_upgrade`: it asks for another protocol.
pub(super) fn kind(
    header: &Parts,
    info: &RequestInfo<'_>,
    path: &str,
    asks_upgrade: bool,
) -> RequestKind {
    let upgrade =
        asks_upgrade && (info.may_be_upgraded(path) || token::is_in_protocols(&header.headers));
    match info.long_running {
        _ if upgrade => RequestKind::Upgrade,
        true => RequestKind::Long,
        false => RequestKind::Short,
    }
}

/// Begins the request's span, if it is sampled.
pub(super) fn span<'a>(
    shared: &'a Shared,
    caller: &Caller,
    header: &mut Parts,
    path: &str,
) -> Option<Box<RequestSpan<'a>>> {
    let tracer = shared.tracer.as_ref()?;
    // Only an apiserver can verify other callers, also those of a peer.
    let trusted = match caller {
        Caller::User(_) => true,
        Caller::Peer => shared.privileged.named_user(&header.headers).is_some(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
    };
    RequestSpan::begin(tracer, trusted, header, path)
}

/// The user, for the access log: no apiserver's audit log has the proxy's own answers. Only the apiserver knows the
/// user of a token.
pub(super) fn user(shared: &Shared, caller: &Caller, header: &Parts) -> Option<HeaderValue> {
    let privileged = &shared.privileged;
    match caller {
        Caller::User(user) => Some(user.user.clone()),
        Caller::Peer => privileged.named_user(&header.headers).cloned(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => None,
    }
}

/// Whether Go's HTTP server would accept the request's form. CONNECT names no path, and proxies read it differently.
pub(super) fn is_well_formed(
    session: &ClientSession,
    header: &Parts,
    path: &str,
    query: Option<&str>,
) -> bool {
    names_a_path(session.as_http1())
        && header.method != Method::CONNECT
        && is_hosted(header)
        && info::is_well_formed(path, query)
}

/// Refuses requests that cannot be planned at all. `permit`: `None` if the header is too large.
pub(super) fn unfit(
    session: &ClientSession,
    header: &Parts,
    permit: Option<&LargeHeaderPermit>,
    expectation: Expectation,
) -> Option<Refusal> {
    match permit {
        None => Some(Refusal::HeaderTooLarge),
        Some(_) if !has_one_length(session.as_http1(), &header.headers) => {
            Some(Refusal::Unreadable)
        }
        Some(_) if expectation == Expectation::Unknown => Some(Refusal::ExpectationFailed),
        Some(_) => None,
    }
}

/// A permit for the size of a header; `None` if it is too large.
pub(super) fn header_permit(
    downstream: &Arc<Downstream>,
    header: &Parts,
    http1: Option<&ServerSession>,
) -> Option<LargeHeaderPermit> {
    let weight = large_headers::weight(header, http1);
    // Over HTTP/1 the bytes were counted while they were read.
    let fits = header.version < Version::HTTP_2 || weight <= large_headers::LIMIT;
    fits.then(|| LargeHeaderPermit::take(downstream, weight))
        .flatten()
}
