//! Tells the state of servers, and the log, of an exchange that failed.

use crate::log_throttle::LogRateLimit;
use crate::net::RedactedError;
use crate::relay::outcome::ExchangeFailure;
use crate::relay::plan::Route;
use crate::relay::shared::Shared;
use crate::routing::table::ServerKind;

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
        (
            ServerKind::Proxied | ServerKind::Native | ServerKind::Bare,
            ExchangeFailure::Expired(_),
        ) => {
            shared.servers.health.answered(route.address);
            None
        }
        (_, ExchangeFailure::Expired(_) | ExchangeFailure::NotContinued) => None,
        // The cause may be on this side.
        (ServerKind::Local, _) | (_, ExchangeFailure::Unmerged) => LOG_RATE.admit(),
        _ => shared.servers.health.failed(route.address).then_some(0),
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
