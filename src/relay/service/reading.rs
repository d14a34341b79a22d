//! What a request's header says, before anything is planned.

use std::sync::Arc;
use std::time::SystemTime;

use http::header::HeaderValue;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};
use pingora_core::protocols::http::ServerSession;

use crate::config::settings::Settings;
use crate::relay::answer::Refusal;
use crate::relay::client::large_headers::{self, LargeHeaderPermit};
use crate::relay::client::{
    ClientSession, Downstream, Expectation, has_one_length, is_hosted, names_a_path,
};
use crate::relay::exchange::Upload;
use crate::relay::observe::RequestSpan;
use crate::relay::shared::Shared;
use crate::relay::upstream::RequestKind;
use crate::request::caller::Caller;
use crate::request::headers::means_upgrade;
use crate::request::info::{self, RequestInfo};
use crate::request::token;

/// A request as it was read, without its header, which is sent on.
pub(super) struct Received {
    /// The client's connection.
    pub(super) downstream: Arc<Downstream>,
    /// Those in force when it began.
    pub(super) settings: Settings,
    pub(super) caller: Caller,
    pub(super) method: Method,
    /// A copy, because the header's own holds everything that was read with it.
    target: Box<str>,
    /// It asks for another protocol.
    pub(super) asks_upgrade: bool,
    body_expected: bool,
    expectation: Expectation,
    /// `None`: the header is too large.
    permit: Option<LargeHeaderPermit>,
}

impl Received {
    /// Takes the header of a request, and reads what it says.
    pub(super) fn take(shared: &Shared, session: &mut ClientSession) -> Option<(Box<Parts>, Self)> {
        let body_expected = session.has_body();
        let (header, downstream) = (session.take_header()?, session.downstream()?);
        let connection = &downstream.client;
        connection.ask();
        let permit = header_permit(&downstream, &header, session.as_http1());
        let asks_upgrade = session.is_upgrade() && means_upgrade(&header.headers);
        let bearer = token::is_there(&header.headers, asks_upgrade);
        let judge = shared.callers.judge.load();
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let received = Self {
            settings: shared.settings.load(),
            caller: judge.caller(connection, bearer, SystemTime::now()),
            method: header.method.clone(),
            target: target.unwrap_or_default().into(),
            asks_upgrade,
            body_expected,
            expectation: Expectation::of(&header),
            permit,
            downstream,
        };
        Some((header, received))
    }

    /// Path and query of its target.
    pub(super) fn path_and_query(&self) -> (&str, Option<&str>) {
        let (path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*self.target, None),
        };
        (if path.is_empty() { "/" } else { path }, query)
    }

    /// Whether its header is too large for a shared connection.
    pub(super) fn is_large(&self) -> bool {
        self.permit
            .as_ref()
            .is_some_and(LargeHeaderPermit::is_large)
    }

    /// The request on its way to servers.
    pub(super) fn upload(&self, header: Box<Parts>) -> Upload {
        let expects_continue = self.expectation == Expectation::Continue;
        Upload::new(header, self.body_expected, expects_continue)
    }

    /// Refuses a request that cannot be planned at all.
    pub(super) fn unfit(&self, session: &ClientSession, header: &Parts) -> Option<Refusal> {
        match self.permit {
            None => Some(Refusal::HeaderTooLarge),
            Some(_) if !has_one_length(session.as_http1(), &header.headers) => {
                Some(Refusal::Unreadable)
            }
            Some(_) if self.expectation == Expectation::Unknown => Some(Refusal::ExpectationFailed),
            Some(_) => None,
        }
    }
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
        Caller::Peer => shared
            .callers
            .privileged
            .named_user(&header.headers)
            .is_some(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
    };
    RequestSpan::begin(tracer, trusted, header, path)
}

/// The user, for the access log: no apiserver's audit log has the proxy's own answers. Only the apiserver knows the
/// user of a token.
pub(super) fn user(shared: &Shared, caller: &Caller, header: &Parts) -> Option<HeaderValue> {
    let privileged = &shared.callers.privileged;
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

/// A permit for the size of a header; `None` if it is too large.
fn header_permit(
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
