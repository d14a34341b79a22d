//! The access log: a line for each request.

use std::borrow::Cow;

use http::Method;
use http::header::HeaderValue;

use crate::relay::outcome::Outcome;
use crate::request::caller::{Caller, ClientConnection};

/// What the access log says of a request, besides its caller and how it ended.
pub struct AccessEntry<'a> {
    pub user: Option<HeaderValue>,
    pub decision: Option<&'static str>,
    pub refusal: Option<&'static str>,
    pub method: Method,
    pub path: Cow<'a, str>,
}

impl AccessEntry<'_> {
    /// For a watch, which ends when its request is gone.
    pub fn into_owned(self) -> AccessEntry<'static> {
        AccessEntry {
            path: self.path.into_owned().into(),
            ..self
        }
    }

    pub fn log(&self, client: &ClientConnection, caller: &Caller, result: Outcome) {
        tracing::info!(
            target: "access",
            client = ?client.address,
            caller = caller.name(),
            user = self.user.as_ref().map(tracing::field::debug),
            decision = self.decision,
            refusal = self.refusal,
            method = %self.method,
            path = &*self.path,
            ?result,
            "request"
        );
    }
}
