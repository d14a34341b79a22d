//! Sends a request to a server and reads the header of its answer.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::parameters::Exchange;
use super::upload::{Disconnected, Upload, UploadInterest};
use crate::net::is_unprocessed;
use crate::relay::client::ClientSession;
use crate::relay::outcome::ExchangeFailure;
use crate::relay::upstream::UpstreamSession;

/// A request that was answered.
pub(super) struct Asked {
    pub(super) up: UpstreamSession,
    pub(super) response: Box<ResponseHeader>,
    /// Time that the proxy itself took until the request was sent.
    pub(super) own_time: Duration,
}

/// Sends the request and reads the header of its answer. `None`: the client went away. `sent`: some of it may have
/// arrived.
pub(super) async fn ask(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    header: Box<Parts>,
    upload: &mut Upload,
    sent: &AtomicBool,
) -> Result<Option<Asked>, ExchangeFailure> {
    let (mut up, reused) = exchange
        .group
        .session(
            &exchange.destination,
            exchange.context.kind,
            &exchange.pool_choice,
            exchange.connection_choice,
        )
        .await
        .map_err(ExchangeFailure::Unsent)?;
    let broke_off = |error: Box<Error>| match is_unprocessed(&error) {
        true => ExchangeFailure::Unprocessed(error),
        false => ExchangeFailure::BrokeOff { error, reused },
    };

    // A stream that is opened and reset at once counts against the connection. A server closes a connection with
    // too many of them, and other requests share it.
    if is_gone(down).await {
        return Ok(None);
    }
    let name = &*exchange.destination.name;
    sent.store(true, Ordering::Relaxed);
    let sending = up.write_header(header, upload.is_expected(), name).await;
    let own_time = exchange.context.meter.started.elapsed();
    sending.map_err(|error| match up {
        // Some of it may have arrived.
        UpstreamSession::H1(_) => broke_off(error),
        UpstreamSession::H2(_) => ExchangeFailure::Unsent(error),
    })?;
    if upload.is_continue_owed() && down.write_continue().await.is_err() {
        return Ok(None);
    }
    upload.begin(&mut up).await;
    match await_response(down, &mut up, upload).await {
        Ok(response) => Ok(Some(Asked {
            up,
            response,
            own_time,
        })),
        Err(Disconnected::Client) => Ok(None),
        Err(Disconnected::Server(error)) => Err(broke_off(error)),
    }
}

/// Reads the final response header while it sends the request's body.
async fn await_response(
    down: &mut ClientSession,
    up: &mut UpstreamSession,
    upload: &mut Upload,
) -> Result<Box<ResponseHeader>, Disconnected> {
    loop {
        let UploadInterest {
            pending,
            followed,
            idle,
        } = upload.interest(down);
        tokio::select! {
            biased;
            response = up.read_response() => return response.map_err(Disconnected::Server),
            () = upload.progress(), if pending => {}
            piece = down.read_body_or_idle(idle), if followed => {
                let end = down.is_body_done();
                upload.take(piece, end, up).await?;
            }
        }
    }
}

/// Resolves when the answer is not waited for any longer.
pub(super) async fn answer_timeout(exchange: &Exchange<'_>, sent: &AtomicBool) -> ExchangeFailure {
    let Some(patience) = exchange.route.patience else {
        return tokio::select! {
            biased;
            failure = exchange.is_to_be_left(sent) => failure,
            () = exchange.expiry.answer_timeout() => ExchangeFailure::NotContinued,
        };
    };
    let so_far = exchange.context.meter.started.elapsed();
    tokio::time::sleep(patience.after(so_far)).await;
    ExchangeFailure::BrokeOff {
        error: Error::explain(ErrorType::ReadTimedout, "its answer takes too long"),
        reused: false,
    }
}

/// Whether the client of an HTTP/2 stream has gone away.
async fn is_gone(down: &mut ClientSession) -> bool {
    poll_fn(|context| Poll::Ready(down.poll_gone(context).is_ready())).await
}
