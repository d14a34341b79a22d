//! Pieces of HTTP/2 bodies, within the windows of both sides, and `Content-Length`, on which both sides of a connection must
//! agree.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};
use pingora_core::{ErrorType, OrErr};

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

/// The value of a repeated Content-Length. The values were compared when the request was read.
pub fn single_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next()?;
    let several = lengths.next().is_some() || first.as_bytes().contains(&b',');
    let one = first
        .as_bytes()
        .split(|byte| *byte == b',')
        .next()?
        .trim_ascii();
    several.then(|| HeaderValue::from_bytes(one).ok())?
}

/// Whether all values of `Content-Length` are the same number (RFC 9110, section 8.6).
pub fn lengths_agree(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let mut lengths = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let number = |value: &[u8]| {
        let digits = value.trim_ascii();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    };
    match lengths.next() {
        None => true,
        Some(first) => {
            let first = number(first);
            first.is_some() && lengths.all(|other| number(other) == first)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_agree_however_often_they_are_said() {
        let one = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_LENGTH, HeaderValue::from_str(value).unwrap());
            }
            lengths_agree(&headers)
        };
        for values in [&[][..], &["5"], &["5", "5"], &["5, 5"], &["0", "00"]] {
            assert!(one(values), "{values:?}");
        }
        for values in [
            &["5", "6"][..],
            &["5,6"],
            &["+5"],
            &[""],
            &["5,"],
            &["99999999999999999999"],
        ] {
            assert!(!one(values), "{values:?}");
        }
    }
}
