//! A watch that is too old for one apiserver goes on at another one (KEP-1904).
//!
//! An apiserver answers a watch from a revision before its watch cache begins with 410, as HTTP status or as the first
//! event. Its client would list everything again. Where the caches begin is not always known: those of custom resources
//! begin at their first use, and a cache may have lost old events. So the 410 is kept, and the other servers that may
//! have the history are asked, each once ([`crate::routing::decide::after_expiry`]).
//!
//! If the 410 is an event, the client already has a header, because the header of a quiet watch must not wait. Then the
//! answer that goes on must have the same format, and only its body is passed. Whatever else another server answers, the
//! next one is asked. If none serves the watch, its client gets the 410 that was kept; as an event, if it has a header by then.
//!
//! The proxy that a peer has rerouted a watch to passes a 410: the peer asks the others.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::authentication::Authentication;
use super::request::ForwardedRequest;
use crate::relay::client::ClientSession;
use crate::relay::context::RequestContext;
use crate::relay::exchange::{Delivered, ResumedWatch, Upload, pass_event};
use crate::relay::inspect::expired::event;
use crate::relay::outcome::{ExchangeFailure, Expired, Outcome};
use crate::relay::plan::{self, Route};
use crate::relay::shared::Shared;
use crate::watches::metrics::ExpiredResult;

/// How long a watch waits until it may ask other servers.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A watch that one server has answered with 410.
pub(super) struct ExpiredWatch {
    /// The 410 that the client gets if no server serves its watch.
    expired: Expired,
    /// The server that it came from.
    from: Route,
    may_ask: bool,
    pub(super) watch: ResumedWatch,
}

impl ExpiredWatch {
    /// Waits until other servers may be asked.
    pub(super) async fn begin(
        shared: &Shared,
        expired: &Expired,
        from: &Route,
        upload: &Upload,
    ) -> Self {
        let limit = shared.limits.expired_watches.clone();
        // A client that has not sent all of its request would decide how long the permit is held.
        let permit = match upload.is_read() {
            true => timeout(PERMIT_TIMEOUT, limit.acquire_owned()).await.ok(),
            false => None,
        };
        let permit = permit.and_then(Result::ok);
        Self {
            expired: expired.clone(),
            from: from.clone(),
            may_ask: permit.is_some(),
            watch: ResumedWatch::new(expired, permit),
        }
    }

    /// The server `route` does not serve the watch either.
    pub(super) fn failed(&mut self, route: &Route, failure: &ExchangeFailure) {
        if let (Expired::Answer(_), ExchangeFailure::Expired(Expired::Event(event))) =
            (&self.expired, failure)
        {
            // The client has a header now, so it can no longer get the status.
            self.expired = Expired::Event(event.clone());
            self.from = route.clone();
        }
    }

    /// The next server. `tried`: those that were asked.
    pub(super) fn next(&self, context: &RequestContext<'_>, tried: &[SocketAddr]) -> Option<Route> {
        let next = || plan::after_expiry(context.shared, context.request, tried);
        self.may_ask.then(next).flatten()
    }

    /// No server serves the watch: passes the 410.
    pub(super) async fn pass(
        self: Box<Self>,
        request: &ForwardedRequest<'_>,
        authentication: &Authentication<'_>,
        session: &mut ClientSession,
        upload: &mut Upload,
    ) -> Delivered {
        let metrics = &request.context.shared.metrics.watches;
        metrics.expired(ExpiredResult::Passed);
        self.watch.end_asking();
        let from = &self.from;
        let exchange = request.exchange(authentication, from, upload, false);
        let Ok((exchange, _)) = exchange else {
            return Outcome::Broken.into();
        };
        match (&self.expired, self.watch.begun()) {
            (Expired::Answer(answer), None) => {
                request.pass(&exchange, session, upload, from, answer).await
            }
            (expired, begun) => {
                let content_type = begun.and_then(Option::as_ref);
                let event = event(expired, content_type);
                let delivered = pass_event(&exchange, session, event, upload).await.into();
                request.count_answer(from, &delivered);
                delivered
            }
        }
    }
}
