//! Reads the requests of an HTTP/1 connection.

use std::time::Duration;

use bytes::BytesMut;
use http::Version;
use pingora_core::ErrorType;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;

use crate::net::RedactedError;
use crate::relay::answer::{Refusal, StatusFormat};
use crate::relay::client::{
    ClientSession, FIRST_REQUEST_TIMEOUT, Head, HeadError, linger_unread, read_head,
};
use crate::relay::shared::Shared;

/// Time for a request's header to arrive, as in kube-apiserver.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// The value of `Keep-Alive: timeout` on answers over HTTP/1, in seconds. The real timeout is
/// [`crate::relay::client::IDLE_TIMEOUT`].
const KEEPALIVE: u64 = 60;

/// Reads the next request of an HTTP/1 connection; `None` when there is none.
pub(super) async fn read(
    shared: &Shared,
    stream: Stream,
    begun: BytesMut,
    shutdown: &ShutdownWatch,
) -> Option<ClientSession> {
    let keepalive = (!*shutdown.borrow()).then_some(KEEPALIVE);
    let mut session = tokio::select! {
        biased;
        read = tokio::time::timeout(HEADER_TIMEOUT, head(shared, stream, begun, keepalive)) => read.ok()??,
        () = gives_up(shutdown.clone()) => return None,
    };
    // A body may pause for any time, as that of `exec` does.
    session.set_read_timeout(None);
    session.set_pipelining_enabled(true);
    let http10 = session.req_header().version < Version::HTTP_11;
    if http10 {
        session.set_keepalive(None);
    }
    Some(ClientSession::H1(Box::new(session)))
}

/// Reads a request's head. A client whose head cannot be read gets a refusal, if it is still there.
async fn head(
    shared: &Shared,
    mut stream: Stream,
    begun: BytesMut,
    keepalive: Option<u64>,
) -> Option<ServerSession> {
    let head = read_head(&mut stream, begun).await;
    let mut session = ServerSession::new_http1(stream);
    session.set_keepalive(keepalive);
    let parsed = match head {
        Ok(head) => parse(&mut session, head).await,
        Err(HeadError::Gone) => return None,
        Err(HeadError::TooLarge) => Err(Refusal::HeaderTooLarge),
        Err(HeadError::Malformed) => Err(Refusal::Unreadable),
    };
    match parsed {
        Ok(true) => Some(session),
        Ok(false) => None,
        Err(refusal) => {
            shared.metrics.refused(refusal);
            // The connection is closed afterwards, whether this can be written or not.
            let (header, body) = refusal.response(0, None, StatusFormat::Json, false).ok()?;
            session.write_error_response(*header, body).await.ok()?;
            if let ServerSession::H1(session) = session {
                linger_unread(session.into_inner()).await;
            }
            None
        }
    }
}

/// Lets pingora parse a head, and adds the fields that pingora could not read; `false`: there is no request.
async fn parse(session: &mut ServerSession, head: Head) -> Result<bool, Refusal> {
    session.set_pipelined_prefix(head.bytes);
    session.set_read_timeout(Some(HEADER_TIMEOUT));
    match session.read_request().await {
        Ok(true) => {}
        Err(error) if *error.etype() == ErrorType::InvalidHTTPHeader => {
            tracing::debug!(error = %RedactedError(&error), "unreadable request");
            return Err(Refusal::Unreadable);
        }
        Ok(false) | Err(_) => return Ok(false),
    }
    let header = session.req_header_mut();
    for (name, value) in head.aside {
        let added = header.append_header(name, value);
        added.map_err(|_| Refusal::HeaderTooLarge)?;
    }
    Ok(true)
}

/// Resolves when a request that has not arrived completely is no longer waited for because the proxy stops.
async fn gives_up(mut shutdown: ShutdownWatch) {
    // The guard in the result must not be held. An error means that the process is ending.
    let _ = shutdown.wait_for(|stops| *stops).await.is_ok();
    tokio::time::sleep(FIRST_REQUEST_TIMEOUT).await;
}
