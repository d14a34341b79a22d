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

use super::report::report;
use super::request::{Authentication, ForwardedRequest};
use crate::relay::client::ClientSession;
use crate::relay::exchange::{self, Delivered, Expiry, Leaving, ResumedWatch, Upload, pass_event};
use crate::relay::inspect::expired::event;
use crate::relay::outcome::{ExchangeFailure, Expired, Outcome};
use crate::relay::plan::{self, Route};
use crate::watches::metrics::ExpiredResult;

/// How long a watch waits until it may ask other servers.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The 410 that the client gets if no server serves its watch.
pub(super) struct KeptExpiry {
    pub(super) expired: Expired,
    /// The server that it came from.
    pub(super) from: Route,
}

impl KeptExpiry {
    /// The server `route` does not serve the watch either.
    fn failed(&mut self, route: &Route, failure: &ExchangeFailure) {
        if let (Expired::Answer(_), ExchangeFailure::Expired(Expired::Event(event))) =
            (&self.expired, failure)
        {
            // The client has a header now, so it can no longer get the status.
            self.expired = Expired::Event(event.clone());
            self.from = route.clone();
        }
    }
}

/// Asks other servers for a watch that one has answered with 410. `tried`: the servers that failed before.
pub(super) async fn after_expiry(
    request: &ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    (mut kept, mut tried): (KeptExpiry, Vec<SocketAddr>),
) -> Delivered {
    let context = request.context;
    let shared = context.shared;
    let metrics = &shared.metrics.watches;
    let custom = request.is_custom();
    let mut failure = ExchangeFailure::Expired(kept.expired.clone());
    report(shared, &kept.from, &failure, custom);
    tried.push(kept.from.address);
    let limit = shared.expired_watches.clone();
    // A client that has not sent all of its request would decide how long the permit is held.
    let permit = match upload.is_read() {
        true => timeout(PERMIT_TIMEOUT, limit.acquire_owned()).await.ok(),
        false => None,
    };
    let permit = permit.and_then(Result::ok);
    let may_ask = permit.is_some();
    let watch = ResumedWatch::new(&kept.expired, permit);
    let mut again = None;
    loop {
        let exclusive = again.is_some();
        let next = || plan::after_expiry(shared, context.request, &tried);
        let next = again.or_else(|| may_ask.then(next).flatten());
        let Some(route) = next else { break };
        if !exclusive {
            shared.metrics.failed_over(&failure, custom);
        }
        let exchange = request.exchange(authentication, &route, upload, exclusive);
        let Ok((mut exchange, header)) = exchange else {
            break;
        };
        exchange.expiry = Expiry::Asked(&watch);
        exchange.leaving = Some(Leaving {
            reads: true,
            has_answer: true,
            tried: &tried,
            budget: &context.upstreams.read_budget,
            ticker: &context.upstreams.ticker,
        });
        failure = match exchange::run(&exchange, session, header, upload, None).await {
            Ok(delivered) => {
                if watch.is_accepted() {
                    watch.count(metrics, ExpiredResult::Avoided);
                }
                request.count_answer(&route, &delivered);
                return delivered;
            }
            Err(failure) => failure,
        };
        context.meter.attempt_failed(&failure);
        watch.failed();
        kept.failed(&route, &failure);
        // A server may close a connection that was used before at any time.
        again = (failure.is_of_the_connection() && !exclusive).then(|| route.clone());
        if again.is_none() {
            report(shared, &route, &failure, custom);
            tried.push(route.address);
        }
    }
    watch.count(metrics, ExpiredResult::Passed);
    watch.end_asking();
    pass_expired(request, authentication, session, upload, &kept, &watch).await
}

/// No server serves the watch: passes the 410.
async fn pass_expired(
    request: &ForwardedRequest<'_>,
    authentication: &Authentication<'_>,
    session: &mut ClientSession,
    upload: &mut Upload,
    KeptExpiry { expired, from }: &KeptExpiry,
    watch: &ResumedWatch,
) -> Delivered {
    let exchange = request.exchange(authentication, from, upload, false);
    let Ok((exchange, _)) = exchange else {
        return Outcome::Broken.into();
    };
    match (expired, watch.begun()) {
        (Expired::Answer(answer), None) => {
            request.pass(&exchange, session, upload, from, answer).await
        }
        (expired, begun) => {
            let content_type = begun.and_then(Option::as_ref);
            let passing = pass_event(&exchange, session, event(expired, content_type), upload);
            let delivered = passing.await.into();
            request.count_answer(from, &delivered);
            delivered
        }
    }
}
