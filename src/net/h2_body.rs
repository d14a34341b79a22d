//! Reads and writes pieces of HTTP/2 bodies, within the windows of both sides.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use pingora_core::ErrorType;
use pingora_core::OrErr;

/// Reads a piece of an HTTP/2 body, and lets its sender send as much more; `None` at its end. Cancel safe.
pub async fn receive(
    body: &mut RecvStream,
    what: &'static str,
) -> pingora_core::Result<Option<Bytes>> {
    let piece = poll_fn(|context| poll_receive(body, what, context)).await?;
    release(body, piece.as_ref().map_or(0, Bytes::len));
    Ok(piece)
}

/// Lets the sender send so many bytes more.
pub fn release(body: &mut RecvStream, bytes: usize) {
    // Also of a stream that has ended meanwhile.
    let _ = body.flow_control().release_capacity(bytes);
}

/// Reads a piece, and leaves it to the caller to [`release`] it.
pub fn poll_receive(
    body: &mut RecvStream,
    what: &'static str,
    context: &mut Context<'_>,
) -> Poll<pingora_core::Result<Option<Bytes>>> {
    let piece = ready!(body.poll_data(context)).transpose();
    Poll::Ready(piece.or_err(ErrorType::ReadError, what))
}

/// Sends as much of `data` as there is room for. Ready after any progress; returns whether all of it was sent.
pub fn poll_send(
    writer: &mut SendStream<Bytes>,
    data: &mut Bytes,
    end: bool,
    context: &mut Context<'_>,
) -> Poll<Result<bool, h2::Error>> {
    if data.is_empty() {
        if end {
            writer.send_data(Bytes::new(), true)?;
        }
        return Poll::Ready(Ok(true));
    }
    writer.reserve_capacity(data.len());
    let mut room = writer.capacity();
    if room == 0 {
        room = match writer.poll_capacity(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(room) => room.unwrap_or(Err(h2::Reason::CANCEL.into()))?,
        };
        if room == 0 {
            return Poll::Ready(Ok(false));
        }
    }
    let part = data.split_to(room.min(data.len()));
    writer.send_data(part, end && data.is_empty())?;
    Poll::Ready(Ok(data.is_empty()))
}
