//! Sends the answer's body to the client.
//!
//! Over HTTP/2 a piece waits for the client's window while the request's body is read: a client may send its whole body
//! before it reads. Over HTTP/1.1 pingora cannot read while it writes: each piece is written before more of the request
//! is read.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use pingora_core::{Error, ErrorType, OrErr};

use crate::net::poll_send;
use crate::relay::client::ClientSession;

const WHAT: &str = "while passing on the answer";

pub(super) struct Download {
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
    /// The sending half of an HTTP/2 stream.
    writer: Option<SendStream<Bytes>>,
}

impl Download {
    /// The header was written to `down`. `duplex`: the request's body is sent at the same time; otherwise this does
    /// nothing.
    pub(super) fn new(down: &mut ClientSession, duplex: bool) -> Self {
        let writer = match down {
            ClientSession::H2(stream) if duplex => stream.take_writer(),
            _ => None,
        };
        Self {
            pending: None,
            writer,
        }
    }

    /// Whether pieces are sent here, and [`Self::progress`] notices when the client goes away. Then `down` does not
    /// notice it.
    pub(super) fn follows_client(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether a piece waits for the client. No other piece may come before it.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Sends a piece; `end`: it is the last. Returns whether everything was sent.
    pub(super) async fn take(&mut self, mut data: Bytes, end: bool) -> pingora_core::Result<bool> {
        let Some(writer) = &mut self.writer else {
            return Error::e_explain(ErrorType::InternalError, WHAT);
        };
        let at_once = |context: &mut Context<'_>| {
            let sent = poll_send(writer, &mut data, end, context);
            Poll::Ready(sent.map_ok(|whole| whole && end))
        };
        match poll_fn(at_once).await {
            Poll::Ready(ended) if data.is_empty() => ended.or_err(ErrorType::WriteError, WHAT),
            Poll::Ready(Err(error)) => Err(error).or_err(ErrorType::WriteError, WHAT),
            _ => {
                self.pending = Some((data, end));
                Ok(false)
            }
        }
    }

    /// Sends as much of the pending data as the client's window allows. Returns whether it was the last. An error: the
    /// client went away. Cancel safe.
    pub(super) async fn progress(&mut self) -> pingora_core::Result<bool> {
        let Some(writer) = &mut self.writer else {
            return std::future::pending().await;
        };
        let pending = &mut self.pending;
        let sent = poll_fn(|context| {
            if let Poll::Ready(reason) = writer.poll_reset(context) {
                return Poll::Ready(Err(reason.map_or_else(|error| error, Into::into)));
            }
            match pending {
                Some((data, end)) => poll_send(writer, data, *end, context),
                None => Poll::Pending,
            }
        });
        let whole = sent.await.or_err(ErrorType::WriteError, WHAT)?;
        let ended = whole && pending.as_ref().is_some_and(|(_, end)| *end);
        if whole {
            *pending = None;
        }
        Ok(ended)
    }

    /// Ends a body whose last piece was not marked as the last.
    pub(super) async fn end(
        &mut self,
        trailers: Option<HeaderMap>,
        down: &mut ClientSession,
    ) -> pingora_core::Result<()> {
        match (&mut self.writer, trailers) {
            (Some(writer), Some(trailers)) => writer
                .send_trailers(trailers)
                .or_err(ErrorType::WriteError, WHAT),
            (Some(writer), None) => writer
                .send_data(Bytes::new(), true)
                .or_err(ErrorType::WriteError, WHAT),
            (None, Some(trailers)) => down.write_trailers(trailers),
            // The session ends the body.
            (None, None) => Ok(()),
        }
    }
}
