//! The access log: a line for each request.

use http::Method;
use http::header::HeaderValue;

use crate::relay::outcome::Outcome;
use crate::request::caller::{Caller, ClientConnection};

/// What the access log says of a request.
pub(super) struct AccessEntry<'a> {
    pub(super) client: &'a ClientConnection,
    pub(super) caller: &'a Caller,
    pub(super) user: Option<&'a HeaderValue>,
    pub(super) decision: Option<&'static str>,
    pub(super) refusal: Option<&'static str>,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
}

impl AccessEntry<'_> {
    pub(super) fn log(self, result: Outcome) {
        let Self {
            client,
            caller,
            user,
            decision,
            refusal,
            method,
            path,
        } = self;
        tracing::info!(
            target: "access",
            client = ?client.address,
            caller = caller.name(),
            user = user.map(tracing::field::debug),
            decision,
            refusal,
            %method,
            path,
            ?result,
            "request"
        );
    }
}

/// What the access log says of a watch.
pub struct WatchRequest {
    pub user: Option<HeaderValue>,
    pub decision: Option<&'static str>,
    pub method: Method,
    pub path: Box<str>,
}
