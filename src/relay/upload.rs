//! The request's body on its way to an apiserver.
//!
//! Over HTTP/2 a piece waits for the server's window without keeping anybody from reading the answer: a server may
//! answer while it reads, and stop reading until its answer is taken. Over HTTP/1.1, which kube-apiserver speaks with us
//! only if its HTTP/2 is switched off, pingora cannot read while it writes: each piece is written before more of the
//! answer is read.
//!
//! The beginning of a body is kept until an answer comes, so that another server can be asked.

use std::future::poll_fn;

use bytes::Bytes;
use h2::SendStream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;

use super::download::poll_send;
use super::forward::Outcome;

/// Who ended an exchange.
pub enum Gone {
    /// The client.
    Client,
    /// The apiserver, by this error.
    Server(Box<pingora_core::Error>),
}

/// How much of a body is kept to be sent again. Most objects are smaller than this.
const KEPT: usize = 64 << 10;

/// The request's body on its way up.
pub struct Upload {
    /// There is a body.
    expected: bool,
    /// The client waits for a `100 Continue` before it sends its body.
    continue_owed: bool,
    /// What was read so far, for another server to be sent; `None` if it is too much, or not needed any more.
    kept: Option<Vec<u8>>,
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
    /// The client, for more of its body or for going away.
    pub followed: bool,
    /// Nothing of a body is to be read now: the client can only go away.
    pub idle: bool,
}

impl Upload {
    /// The body of a request that was just read. `expected`: there is one; `expects_continue`: the client waits for a
    /// `100 Continue`.
    pub fn new(expected: bool, expects_continue: bool) -> Self {
        Self {
            expected,
            continue_owed: expected && expects_continue,
            kept: Some(Vec::new()),
            read: !expected,
            refused: false,
            pending: None,
            writer: None,
        }
    }

    /// Whether there is a body.
    pub fn is_expected(&self) -> bool {
        self.expected
    }

    /// Whether the client is to be told to go on, now that somebody will read its body. Once.
    pub fn is_continue_owed(&mut self) -> bool {
        std::mem::take(&mut self.continue_owed)
    }

    /// The body follows the header just written to `up`: what another server was sent of it already, first.
    pub async fn begin(&mut self, up: &mut HttpSession) {
        if !self.expected {
            return;
        }
        self.writer = writer(up);
        self.refused = false;
        self.pending = None;
        let kept = self.kept.as_deref().unwrap_or_default();
        if self.read || !kept.is_empty() {
            let again = Bytes::copy_from_slice(kept);
            self.send(again, self.read, up).await;
        }
    }

    /// Whether another server can be sent all of it.
    pub fn can_begin_again(&self) -> bool {
        self.kept.is_some()
    }

    /// No other server will be asked.
    pub fn forget(&mut self) {
        self.kept = None;
    }

    fn keep(&mut self, piece: &[u8]) {
        if let Some(kept) = &mut self.kept {
            match kept.len() + piece.len() <= KEPT {
                true => kept.extend_from_slice(piece),
                false => self.kept = None,
            }
        }
    }

    /// Sent to its end: the server's connection can take another request after the answer.
    pub fn is_sent(&self) -> bool {
        self.read && !self.refused && self.pending.is_none()
    }

    /// What to wait for next. Over HTTP/1 a client is not seen to go away behind a body that is not read, and what is
    /// left of one that nobody wants must not be taken for the next request.
    pub fn listening(&self, down: &ServerSession) -> Listening {
        let pending = self.pending.is_some();
        let idle = self.read || pending || self.refused;
        Listening {
            pending,
            followed: down.is_http2() || !idle || (self.read && !pending),
            idle,
        }
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
        self.keep(&data);
        self.send(data, end, up).await;
        Ok(())
    }

    async fn send(&mut self, data: Bytes, end: bool, up: &mut HttpSession) {
        match self.writer {
            Some(_) => self.pending = Some((data, end)),
            None => self.refused = send(data, end, up).await.is_err(),
        }
    }

    /// Sends of what is pending as much as the server's window allows. May be given up and called again.
    pub async fn progress(&mut self) {
        let (Some(writer), Some((data, end))) = (&mut self.writer, &mut self.pending) else {
            return std::future::pending().await;
        };
        match poll_fn(|context| poll_send(writer, data, *end, context)).await {
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

fn writer(up: &mut HttpSession) -> Option<SendStream<Bytes>> {
    match up {
        HttpSession::H2(session) => session.take_request_body_writer(),
        _ => None,
    }
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
