//! The request's body on its way to an apiserver.
//!
//! Over HTTP/2 a piece waits for the server's window without keeping anybody from reading the answer: a server may
//! answer while it reads, and stop reading until its answer is taken.

use std::future::poll_fn;

use bytes::Bytes;
use h2::SendStream;
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
pub struct Upload {
    /// The client's body was read to its end.
    read: bool,
    /// The server takes no more of it. Mostly it has answered early, and its answer is what counts.
    refused: bool,
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
    /// The sending half of an HTTP/2 stream.
    writer: Option<SendStream<Bytes>>,
}

/// What an upload waits for.
#[derive(Debug, Clone, Copy)]
pub struct Listening {
    /// The server, to take what is pending.
    pub pending: bool,
    /// The client, for a body or for going away. What is left of a body that nobody wants must not be taken for the
    /// next request.
    pub followed: bool,
    /// The client's body was read to its end: from now on it can only go away.
    pub read: bool,
}

impl Upload {
    /// Nothing to send.
    pub fn none() -> Self {
        Self {
            read: true,
            refused: false,
            pending: None,
            writer: None,
        }
    }

    /// A body that follows the header just written to `up`.
    pub fn to(up: &mut HttpSession) -> Self {
        let writer = match up {
            HttpSession::H2(session) => session.take_request_body_writer(),
            _ => None,
        };
        Self {
            read: false,
            refused: false,
            pending: None,
            writer,
        }
    }

    /// Sent to its end: the server's connection can take another request after the answer.
    pub fn is_sent(&self) -> bool {
        self.read && !self.refused && self.pending.is_none()
    }

    /// What to wait for next.
    pub fn listening(&self) -> Listening {
        let pending = self.pending.is_some();
        Listening {
            pending,
            followed: !pending && (self.read || !self.refused),
            read: self.read,
        }
    }

    /// Nothing more will be sent.
    pub fn is_over(&self) -> bool {
        self.read || self.refused
    }

    /// Takes a piece from the client; `end`: it was the last.
    pub async fn take(
        &mut self,
        piece: pingora_core::Result<Option<Bytes>>,
        end: bool,
        up: &mut HttpSession,
    ) -> Result<(), Gone> {
        let piece = piece.map_err(|_| Gone::Client)?;
        let end = end || piece.is_none();
        self.read = end;
        let data = piece.unwrap_or_default();
        if self.writer.is_some() {
            self.pending = Some((data, end));
        } else {
            self.refused = send(data, end, up).await.is_err();
        }
        Ok(())
    }

    /// Sends of what is pending as much as the server's window allows. May be given up and called again.
    pub async fn progress(&mut self) {
        let (Some(writer), Some((data, end))) = (&mut self.writer, &mut self.pending) else {
            return std::future::pending().await;
        };
        match send_some(writer, data, *end).await {
            Ok(false) => {}
            Ok(true) => self.pending = None,
            Err(_) => {
                self.pending = None;
                self.refused = true;
            }
        }
    }

    /// The outcome of an answer that was delivered to its end.
    pub fn answered(&self, code: u16) -> Outcome {
        Outcome::Answered {
            code,
            reusable: self.read,
        }
    }
}

/// Whether all of `data` has been sent. Nothing is lost if this is dropped while it waits.
async fn send_some(
    writer: &mut SendStream<Bytes>,
    data: &mut Bytes,
    end: bool,
) -> Result<bool, h2::Error> {
    if data.is_empty() {
        if end {
            writer.send_data(Bytes::new(), true)?;
        }
        return Ok(true);
    }
    writer.reserve_capacity(data.len());
    let mut room = writer.capacity();
    if room == 0 {
        room = poll_fn(|context| writer.poll_capacity(context))
            .await
            .unwrap_or(Err(h2::Reason::CANCEL.into()))?;
        if room == 0 {
            return Ok(false);
        }
    }
    let part = data.split_to(room.min(data.len()));
    writer.send_data(part, end && data.is_empty())?;
    Ok(data.is_empty())
}

async fn send(data: Bytes, end: bool, up: &mut HttpSession) -> pingora_core::Result<()> {
    // An empty piece would be the end of a chunked body.
    if !data.is_empty() {
        up.write_request_body(data, false).await?;
    }
    if end {
        up.finish_request_body().await
    } else {
        Ok(())
    }
}
