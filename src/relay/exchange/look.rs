//! What the header of an answer says about what is to be done with it.

use http::StatusCode;
use pingora_http::ResponseHeader;

use super::expiry::Expiry;
use super::parameters::Exchange;
use crate::relay::documents::MergeRequest;
use crate::relay::inspect::{denials, not_executed, turned_away};
use crate::relay::outcome::ExchangeFailure;
use crate::routing::decide::NoSuchResource;

/// What is to be done with an answer.
pub(super) enum Look<'a> {
    /// It is passed on as it comes.
    Pass,
    /// Another server may be asked.
    Fail(ExchangeFailure),
    /// Its body is read first.
    Read(ReadKind<'a>),
}

/// Why the body of an answer is read before it is passed on.
pub(super) enum ReadKind<'a> {
    /// A 410 that other servers may not give.
    Expired,
    /// It shows whether the server turns the request away.
    TurnedAway,
    /// Something is added to the document.
    Merge(&'a MergeRequest),
    /// It decides whether the 404 can be trusted.
    NotFound,
}

/// In this order: each looks only at answers that none before it takes.
pub(super) fn look<'a>(exchange: &'a Exchange<'_>, response: &ResponseHeader) -> Look<'a> {
    if let Some(of_resource) = not_executed(exchange.route.server_kind, response) {
        return Look::Fail(ExchangeFailure::NotExecuted { of_resource });
    }
    if response.status == StatusCode::GONE && !matches!(exchange.expiry, Expiry::Pass) {
        return Look::Read(ReadKind::Expired);
    }
    if !exchange.expiry.accepts(response) {
        return Look::Fail(ExchangeFailure::NotContinued);
    }
    let snapshot = || exchange.context.shared.published.snapshot.load();
    if turned_away::is_possible(response.status)
        && turned_away::may_be(&exchange.asking(), &snapshot(), response)
    {
        return Look::Read(ReadKind::TurnedAway);
    }
    if let Some(merge_request) = &exchange.merge_request
        && merge_request.concerns(response.status)
    {
        return Look::Read(ReadKind::Merge(merge_request));
    }
    if response.status == StatusCode::NOT_FOUND
        && exchange.route.no_such_resource != NoSuchResource::Pass
        && !denials::is_no_path_of_it(&snapshot(), exchange.context.request.info)
    {
        return Look::Read(ReadKind::NotFound);
    }
    Look::Pass
}
