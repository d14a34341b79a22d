//! The access log: a line for each request.

use http::Method;
use http::header::HeaderValue;

use crate::relay::outcome::Outcome;
use crate::request::caller::{Caller, ClientConnection};

/// What the access log says of a request.
pub struct AccessEntry<'a> {
    pub client: &'a ClientConnection,
    pub caller: &'a Caller,
    pub user: Option<&'a HeaderValue>,
    pub decision: Option<&'static str>,
    pub refusal: Option<&'static str>,
    pub method: &'a Method,
    pub path: &'a str,
}

impl AccessEntry<'_> {
    pub fn log(self, result: Outcome) {
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
