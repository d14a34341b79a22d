//! An upgraded connection (`exec`, `attach`, `port-forward`, a WebSocket): bytes both ways until either side ends.
//!
//! pingora's sessions cannot read while they write, and two sides that both wait for the other to read would wait for
//! ever. So both connections are taken out of their sessions, with what was already read of them, and each direction
//! is copied on its own. As in kube-apiserver's own upgrade proxy there is no half-closed stream: what one side sent
//! before its end is delivered, and then both are closed.

use std::future::poll_fn;
use std::io::{self, Cursor};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};

/// How long the other side may take to receive the rest, and that it is the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection without its session.
struct Taken {
    stream: Stream,
    /// Read with the header, and not looked at yet.
    early: Bytes,
    /// There is nothing after that.
    ended: bool,
}

/// Copies both ways between a client that was told 101 and the server that told it, until one of them ends or `turn`
/// comes. Nothing is left of `down` afterwards.
pub async fn splice(down: &mut ServerSession, up: HttpSession, turn: impl Future<Output = ()>) {
    let (Some(client), Some(server)) = (take_client(down).await, take_server(up).await) else {
        return;
    };
    let (mut from_client, mut to_client) = split(client.stream);
    let (mut from_server, mut to_server) = split(server.stream);
    tokio::select! {
        // How a side ended makes no difference to the other.
        _ = copy(&client.early, client.ended, &mut from_client, &mut to_server) => {}
        _ = copy(&server.early, server.ended, &mut from_server, &mut to_client) => {}
        () = turn => {}
    }
    let farewell = async {
        tokio::join!(close(&mut to_client), close(&mut to_server));
        tokio::join!(drain(from_client), drain(from_server));
    };
    // Whoever does not take it in time is cut off.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn take_client(down: &mut ServerSession) -> Option<Taken> {
    let (early, ended) = read_at_once(down.read_request_body()).await;
    let empty = ServerSession::new_http1(Box::new(Cursor::new(Vec::new())));
    match std::mem::replace(down, empty) {
        ServerSession::H1(session) => Some(Taken {
            stream: session.into_inner(),
            early,
            ended,
        }),
        _ => None,
    }
}

async fn take_server(up: HttpSession) -> Option<Taken> {
    let HttpSession::H1(mut session) = up else {
        return None;
    };
    let (early, ended) = read_at_once(session.read_body_bytes()).await;
    Some(Taken {
        stream: session.into_inner(),
        early,
        ended,
    })
}

/// What a session has of its peer's bytes: one read hands out all that came with the header, and a read that has to
/// wait takes nothing.
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
        // Flushes whenever there is nothing more to read.
        tokio::io::copy(from, to).await?;
    }
    Ok(())
}

async fn close(side: &mut WriteHalf<Stream>) {
    // A side that is gone already is closed too.
    let _ = side.shutdown().await;
}

/// Reads what a side still sends: with bytes unread the closing would reset the connection, and the last that it was
/// sent could be lost on its way.
async fn drain(mut from: ReadHalf<Stream>) {
    let mut scrap = vec![0; 4096];
    while from.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
}
