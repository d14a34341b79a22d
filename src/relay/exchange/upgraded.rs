//! Upgraded connections (`exec`, `attach`, `port-forward`, WebSocket): copies bytes both ways until one side ends.
//!
//! pingora's sessions cannot read while they write, and two sides that both wait for the other to read would hang. So
//! both connections are taken out of their sessions, with the bytes that were read already, and each direction is
//! copied independently. As in kube-apiserver's own upgrade proxy there is no half-closed stream: the data that one
//! side sent before its end is delivered, and then both sides are closed.

use std::io::Cursor;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink, split};

use crate::relay::client::ClientSession;
use crate::relay::upstream::UpstreamSession;

/// How long the other side may take to receive the rest and the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection without its session, and what was read together with the header.
type RawConnection = (Stream, Bytes);

/// Copies both ways between client and server after a 101, until one of them ends or `termination` resolves. `down` is
/// empty afterwards.
pub(super) async fn splice(
    down: &mut ClientSession,
    up: UpstreamSession,
    termination: impl Future<Output = ()>,
) {
    let raw = (take_client(down).await, take_server(up).await);
    let (Some((client, client_early)), Some((server, server_early))) = raw else {
        return;
    };
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let mut upward = (&*client_early).chain(&mut from_client);
    let mut downward = (&*server_early).chain(&mut from_server);
    tokio::select! {
        // The way a side ended does not matter. Flushes when there is nothing to read.
        _ = copy(&mut upward, &mut to_server) => {}
        _ = copy(&mut downward, &mut to_client) => {}
        () = termination => {}
    }
    let closing = async {
        // A side that has gone away is closed already.
        let _ = tokio::join!(to_client.shutdown(), to_server.shutdown());
        // Closing a connection with unread bytes would reset it, and the last bytes to that side could be lost.
        let (mut of_client, mut of_server) = (sink(), sink());
        let rest_of_client = copy(&mut from_client, &mut of_client);
        let _ = tokio::join!(rest_of_client, copy(&mut from_server, &mut of_server));
    };
    // A side that is too slow is cut off.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
}

async fn take_client(down: &mut ClientSession) -> Option<RawConnection> {
    let early = read_at_once(down.read_body()).await;
    let empty = ServerSession::new_http1(Box::new(Cursor::new(Vec::new())));
    let ClientSession::H1(session) = down else {
        return None;
    };
    match std::mem::replace(&mut **session, empty) {
        ServerSession::H1(session) => Some((session.into_inner(), early)),
        _ => None,
    }
}

async fn take_server(up: UpstreamSession) -> Option<RawConnection> {
    let UpstreamSession::H1(mut session) = up else {
        return None;
    };
    let early = read_at_once(session.read_body_bytes()).await;
    Some((session.into_inner(), early))
}

/// The bytes that a session has read already. One read returns all of them, and a read that would wait loses nothing. A
/// connection that has ended says so again.
async fn read_at_once(read: impl Future<Output = pingora_core::Result<Option<Bytes>>>) -> Bytes {
    let early = read.now_or_never();
    early.and_then(Result::ok).flatten().unwrap_or_default()
}
