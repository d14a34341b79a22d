//! Upgraded connections (`exec`, `attach`, `port-forward`, WebSocket): copies bytes both ways until one side ends.
//!
//! pingora's sessions cannot read while they write, and two sides that both wait for the other to read would hang. So
//! both connections are taken out of their sessions, with the bytes that were read already, and each direction is
//! copied independently. As in kube-apiserver's own upgrade proxy there is no half-closed stream: the data that one
//! side sent before its end is delivered, and then both sides are closed.

use std::future::poll_fn;
use std::io::{self, Cursor};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};

use crate::relay::client::ClientSession;
use crate::relay::upstream::UpstreamSession;

/// How long the other side may take to receive the rest and the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection without its session.
struct RawConnection {
    stream: Stream,
    /// Read together with the header.
    early: Bytes,
    /// The stream ended after that.
    ended: bool,
}

/// Copies both ways between client and server after a 101, until one of them ends or `turn` resolves. `down` is empty
/// afterwards.
pub(super) async fn splice(
    down: &mut ClientSession,
    up: UpstreamSession,
    turn: impl Future<Output = ()>,
) {
    let (Some(client), Some(server)) = (take_client(down).await, take_server(up).await) else {
        return;
    };
    let (mut from_client, mut to_client) = split(client.stream);
    let (mut from_server, mut to_server) = split(server.stream);
    tokio::select! {
        // The way a side ended does not matter.
        _ = copy(&client.early, client.ended, &mut from_client, &mut to_server) => {}
        _ = copy(&server.early, server.ended, &mut from_server, &mut to_client) => {}
        () = turn => {}
    }
    let closing = async {
        tokio::join!(close(&mut to_client), close(&mut to_server));
        tokio::join!(drain(from_client), drain(from_server));
    };
    // A side that is too slow is cut off.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
}

async fn take_client(down: &mut ClientSession) -> Option<RawConnection> {
    let (early, ended) = read_at_once(down.read_body()).await;
    let empty = ServerSession::new_http1(Box::new(Cursor::new(Vec::new())));
    let ClientSession::H1(session) = down else {
        return None;
    };
    match std::mem::replace(&mut **session, empty) {
        ServerSession::H1(session) => Some(RawConnection {
            stream: session.into_inner(),
            early,
            ended,
        }),
        _ => None,
    }
}

async fn take_server(up: UpstreamSession) -> Option<RawConnection> {
    let UpstreamSession::H1(mut session) = up else {
        return None;
    };
    let (early, ended) = read_at_once(session.read_body_bytes()).await;
    Some(RawConnection {
        stream: session.into_inner(),
        early,
        ended,
    })
}

/// The bytes that a session has read already. One read returns all of them, and a read that would wait loses nothing.
async fn read_at_once(
    read: impl Future<Output = pingora_core::Result<Option<Bytes>>>,
) -> (Bytes, bool) {
    let mut read = pin!(read);
    let now = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
    match now {
        Poll::Ready(Ok(Some(early))) => (early, false),
        Poll::Ready(Ok(None) | Err(_)) => (Bytes::new(), true),
        Poll::Pending => (Bytes::new(), false),
    }
}

async fn copy(
    early: &[u8],
    ended: bool,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    to.write_all(early).await?;
    to.flush().await?;
    if !ended {
        // Flushes when there is nothing to read.
        tokio::io::copy(from, to).await?;
    }
    Ok(())
}

async fn close(side: &mut WriteHalf<Stream>) {
    // A side that has gone away is closed already.
    let _ = side.shutdown().await;
}

/// Reads the rest that a side sends. Closing a connection with unread bytes would reset it, and the last bytes to that
/// side could be lost.
async fn drain(mut from: ReadHalf<Stream>) {
    let mut discarded = vec![0; 4096];
    while from.read(&mut discarded).await.is_ok_and(|read| read > 0) {}
}
