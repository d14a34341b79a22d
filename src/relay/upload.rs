//! The request's body on its way to an apiserver.

use bytes::Bytes;
use pingora_core::protocols::http::client::HttpSession;

use super::forward::Outcome;

/// Who ended an exchange.
pub enum Gone {
    /// The client.
    Client,
    /// The apiserver, by this error.
    Server(Box<pingora_core::Error>),
}

/// The request's body on its way up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upload {
    /// There may be more.
    Reading,
    /// Read to its end.
    Done,
    /// Not read to its end, and nobody wants the rest: the client's connection cannot be used again.
    Stopped,
}

impl Upload {
    /// Read to its end.
    pub fn is_done(self) -> bool {
        self == Upload::Done
    }

    /// Whether the client is listened to, for a body or for going away. What is left of a stopped body must not be
    /// taken for the next request.
    pub fn is_followed(self) -> bool {
        self != Upload::Stopped
    }

    /// Sends a piece on; `end`: it was the last. A server that takes no more has mostly answered early: its answer is
    /// what counts.
    pub async fn step(
        &mut self,
        piece: pingora_core::Result<Option<Bytes>>,
        end: bool,
        up: &mut HttpSession,
    ) -> Result<(), Gone> {
        let piece = piece.map_err(|_| Gone::Client)?;
        let end = end || piece.is_none();
        match send(piece, end, up).await {
            Ok(()) if end => *self = Upload::Done,
            Ok(()) => {}
            // All of it was read, if not sent.
            Err(_) if end => *self = Upload::Done,
            Err(_) => *self = Upload::Stopped,
        }
        Ok(())
    }

    /// The outcome of an answer that was delivered to its end.
    pub fn answered(self, code: u16) -> Outcome {
        Outcome::Answered {
            code,
            reusable: self.is_done(),
        }
    }
}

async fn send(piece: Option<Bytes>, end: bool, up: &mut HttpSession) -> pingora_core::Result<()> {
    if let Some(data) = piece {
        up.write_request_body(data, end).await?;
    }
    if end {
        up.finish_request_body().await
    } else {
        Ok(())
    }
}
