//! The header of the answer, as the client gets it.

use std::time::Instant;

use http::StatusCode;
use http::header::HeaderValue;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::framing::{frame_for_http1, says_close, strip_hop_by_hop};
use super::parameters::Exchange;
use crate::relay::client::ClientSession;
use crate::relay::context::RequestContext;
use crate::relay::upstream::RequestKind;
use crate::request::caller::Caller;
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE, READY, SERVER_ID};

/// Writes the response header; `end`: there is no body. Returns when it began to.
pub(super) async fn pass_header(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut response: Box<ResponseHeader>,
    end: bool,
) -> pingora_core::Result<Instant> {
    let RequestContext {
        shared,
        request,
        downstream,
        kind,
        meter,
        ..
    } = exchange.context;
    // On an upgrade `Connection` is about the upgrade, and the client's protocol writes the rest.
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        if shared.shutdown.is_draining() || ends_connection(exchange, &response) {
            down.end_connection(downstream);
        }
        // Waiting requests may go on: it is known whether the connection ends.
        if let Some(permit) = exchange.permit {
            permit.end();
        }
        strip_hop_by_hop(&mut response);
    } else if *kind != RequestKind::Upgrade {
        return Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what is no upgrade");
    }
    write_marks(exchange, &mut response)?;
    let now = Instant::now();
    meter.answer_begins(response.status.as_u16(), now);
    match down {
        ClientSession::H2(_) => {}
        ClientSession::H1(session) => {
            if *kind != RequestKind::Upgrade && shared.shutdown.is_leaving() {
                session.set_keepalive(None);
            }
            frame_for_http1(session.req_header().version, &mut response, request.method)?;
        }
    }
    down.write_header(response, end).await?;
    Ok(now)
}

/// Writes what this proxy says of an answer, and removes what only it may say.
fn write_marks(exchange: &Exchange<'_>, response: &mut ResponseHeader) -> pingora_core::Result<()> {
    let (shared, request) = (exchange.context.shared, exchange.context.request);
    // Only for peers' proxies: an apiserver must not forge it.
    if matches!(
        response.status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::NOT_FOUND
    ) {
        response.remove_header(&NOT_EXECUTED);
    }
    if exchange.is_for_peer() && response.status == StatusCode::NOT_FOUND {
        response.insert_header(NOT_EXECUTED, OF_RESOURCE)?;
    }
    // Only for peers' proxies, too.
    if response.headers.contains_key(SERVER_ID) {
        response.remove_header(&SERVER_ID);
    }
    if request.may_seek_a_proxy() {
        response.insert_header(SERVER_ID, shared.server_id_header())?;
    }
    // Only this proxy sets it: the value of another proxy is about another apiserver.
    if request.settings.if_ready.enabled && response.headers.contains_key(READY) {
        response.remove_header(&READY);
    }
    if let Some(ready) = exchange.ready {
        shared.metrics.ready_answered(ready);
        response.insert_header(
            READY,
            HeaderValue::from_static(if ready { "true" } else { "false" }),
        )?;
    }
    Ok(())
}

/// Whether the client is to send no more requests on its connection: the apiserver did not authenticate it, or,
/// over an HTTP/1.1 connection for this client alone, the apiserver closes it. An answer from a pod behind `proxy`
/// does not count.
fn ends_connection(exchange: &Exchange<'_>, response: &ResponseHeader) -> bool {
    let request = exchange.context.request;
    let refused = response.status == StatusCode::UNAUTHORIZED && !request.info.is_proxied();
    match request.caller {
        Caller::Peer => false,
        Caller::Anonymous if exchange.route.details.ends_anonymous => true,
        _ => refused || says_close(&response.headers),
    }
}
