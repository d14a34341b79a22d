//! An exchange with one server, and the bodies of it at the same time: the request's on its way up ([`Upload`]), and the
//! answer's on its way to the client ([`Answer`]).
//!
//! Over HTTP/2 a piece of the request waits for the server's window while the answer is read: a server may answer while it
//! reads, and stop reading until its answer is taken. A piece of the answer waits for the client's window while the
//! request is read: a client may send its whole body before it reads. Over HTTP/1.1 (kube-apiserver speaks it only if its
//! HTTP/2 is switched off) pingora cannot read while it writes: each piece is written before more is read.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use pingora_core::{Error, ErrorType, OrErr};

use super::expired::{AnswerStart, PieceError, ResumedWatch, next_piece};
use super::upload::Upload;
use super::watch_rest::WatchRest;
use crate::log_throttle::log_rarely;
use crate::net::{RedactedError, poll_send, rare};
use crate::relay::client::{AnswerWriter, ClientSession, VerificationPermit};
use crate::relay::documents::Overlay;
use crate::relay::inspect::Asking;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::plan::{RequestContext, Route};
use crate::relay::upstream::{
    ConnectionChoice, ConnectionPool, RequestKind, Token, UpstreamSession,
};
use crate::relay::watch::{Dependencies, FinalBookmark, Watch, until_terminated};
use crate::request::headers::GOES_ON;
use crate::routing::decide::Row;
use crate::watches::follower::NotContinued;

/// The largest frame that most clients accept.
const PART: usize = 16 << 10;
const PASSING: &str = "while passing on the answer";

/// The parameters of one exchange.
pub struct Exchange<'a> {
    pub context: &'a RequestContext<'a>,
    /// Where the request is sent.
    pub route: &'a Route,
    /// The connections that it may use, and which of them.
    pub pool: Arc<ConnectionPool>,
    pub connection: ConnectionChoice,
    /// The bearer token, if only an apiserver can verify it.
    pub token: Option<Token>,
    /// Held for an unverified caller.
    pub permit: Option<&'a VerificationPermit>,
    /// Set if the request may be sent to another server if nothing comes from this one.
    pub leaving: Option<Leaving<'a>>,
    /// A 410 does not pass: other servers are asked.
    pub avoids_410: bool,
    /// Set if this server is asked because another one has answered 410, or has stopped.
    pub resumed: Option<&'a ResumedWatch>,
    /// Set if something is to be added to a discovery document.
    pub overlay: Option<Box<Overlay>>,
}

/// A request that may be sent to another server while it waits for this one.
pub struct Leaving<'a> {
    /// Also after it was sent here.
    pub reads: bool,
    /// Another server has answered, and this one is only asked whether it says the same: it is left even if no other
    /// can be asked.
    pub has_answer: bool,
    /// The servers that have failed before.
    pub tried: &'a [SocketAddr],
}

impl Exchange<'_> {
    /// What the meaning of the answer depends on.
    pub(super) fn asking(&self) -> Asking<'_> {
        let context = self.context;
        Asking {
            method: &context.method,
            info: &context.info,
            server_kind: self.route.server_kind,
            no_such_resource: self.route.no_such_resource,
            for_peer: self.is_for_peer(),
        }
    }

    /// A peer's proxy gets the answer: a 404 that is passed on is marked as one that is not in doubt.
    pub(super) fn is_for_peer(&self) -> bool {
        self.route.row == Row::Rerouted
    }

    /// Nothing that was looked at of the answer was a 410: counts a watch that another server serves.
    pub(super) fn avoided(&self) {
        if self.resumed.is_some_and(|it| it.handed_over.is_none()) {
            self.context.shared.metrics.watches.expired(true);
        }
    }

    /// What a long-running request depends on.
    pub(super) fn dependencies(&self) -> Dependencies {
        Dependencies {
            caller: self.context.caller.clone(),
            trust: self.pool.to.trust.clone(),
            presented: self.pool.to.presents_certificate,
            server_kind: self.route.server_kind,
        }
    }

    /// Writes the answer within the budget for slow clients. `length`: of the body, if known.
    pub(super) fn answer_writer(&self, length: Option<usize>) -> AnswerWriter<'_> {
        let context = self.context;
        let outflow = &context.downstream.outflow;
        let long = context.kind != RequestKind::Short;
        let mut writer = AnswerWriter::new(&context.shared.limits.unread, outflow, long, length);
        writer.unlimited = context.is_unlimited();
        writer
    }

    /// Returns a connection to the pool if the whole answer was read and the request sent completely. Otherwise the server
    /// would read the next request as the rest of this body.
    pub(super) async fn release(&self, mut up: UpstreamSession, upload: &Upload) {
        let is_over = upload.is_sent() && up.is_complete();
        if is_over && self.connection == ConnectionChoice::Any {
            self.pool.release(up, self.route.address).await;
        }
    }
}

/// How far the answer to a request was delivered.
pub enum Delivered {
    /// The request ended.
    Ended(Outcome),
    /// The answer to a watch has begun. Who serves the client's connection lets the rest run.
    Continues(Box<WatchRest>),
}

impl From<Outcome> for Delivered {
    fn from(outcome: Outcome) -> Self {
        Self::Ended(outcome)
    }
}

/// How an answer has ended for the client.
pub(super) enum End {
    Whole,
    /// It was ended before its server has ended it.
    Early,
    /// The client went away, or has half an answer.
    Broken,
    /// A server that was asked to go on with a watch does not. Nothing of its answer was passed on.
    NotContinued,
}

impl End {
    /// `reusable`: whether the client's connection can take another request if the server has ended the answer.
    pub(super) fn outcome(&self, code: u16, reusable: bool) -> Outcome {
        match self {
            End::Whole => Outcome::Answered { code, reusable },
            // A request's body may not have been read to its end.
            End::Early => Outcome::Answered {
                code,
                reusable: false,
            },
            End::Broken | End::NotContinued => Outcome::Broken,
        }
    }

    /// After a piece that was the last, or not.
    fn after(sent: pingora_core::Result<bool>) -> Option<Self> {
        match sent {
            Ok(last) => last.then_some(End::Whole),
            Err(_) => Some(End::Broken),
        }
    }
}

/// An answer on its way to the client. What its methods return: how it has ended, if it has.
pub(super) struct Answer<'s, 'w> {
    /// Of a long-running request.
    final_bookmark: Option<&'s FinalBookmark<'s>>,
    writer: &'s mut AnswerWriter<'w>,
    /// The sending half of an HTTP/2 stream, if the request's body is sent at the same time: [`Self::progress`] notices
    /// when the client goes away, and the session does not.
    duplex: Option<SendStream<Bytes>>,
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
}

impl<'s, 'w> Answer<'s, 'w> {
    pub(super) fn new(
        final_bookmark: Option<&'s FinalBookmark<'s>>,
        writer: &'s mut AnswerWriter<'w>,
    ) -> Self {
        Self {
            final_bookmark,
            writer,
            duplex: None,
            pending: None,
        }
    }

    /// Passes on what was read of `server`; `None`: it has ended the answer.
    async fn piece(
        &mut self,
        down: &mut ClientSession,
        (up, server): (&mut UpstreamSession, SocketAddr),
        piece: Result<Option<Bytes>, PieceError>,
    ) -> Result<Option<End>, ExchangeFailure> {
        let end = match piece {
            Ok(Some(data)) => self.pass(down, data, up.is_complete()).await,
            Ok(None) => rare(|| self.end(down, up.read_trailers())).await,
            Err(PieceError::BrokeOff(error)) => {
                log_break(server, &error);
                rare(|| self.end_early(down, true)).await
            }
            Err(PieceError::Failed(failure)) => return Err(failure),
        };
        match end {
            Some(End::NotContinued) => Err(ExchangeFailure::NotContinued),
            end => Ok(end),
        }
    }

    /// Passes a piece on; `last`: nothing comes after it.
    pub(super) async fn pass(
        &mut self,
        down: &mut ClientSession,
        data: Bytes,
        last: bool,
    ) -> Option<End> {
        if data.is_empty() && !last {
            return None;
        }
        if let Some(watch) = self.final_bookmark.and_then(FinalBookmark::watch) {
            return self.pass_frames(watch, down, data, last).await;
        }
        let sent = match self.duplex {
            Some(_) => self.writer.reserve(data.len()).await.map(|()| {
                self.pending = Some((data, last));
                false
            }),
            None => write(self.writer, down, data, last).await,
        };
        End::after(sent)
    }

    /// Passes on the frames of a watch that are whole with this piece.
    async fn pass_frames(
        &mut self,
        watch: &Watch,
        down: &mut ClientSession,
        mut data: Bytes,
        last: bool,
    ) -> Option<End> {
        loop {
            let sent = match watch.next(&mut data) {
                Ok(Some(frames)) => write(self.writer, down, frames, false).await,
                Ok(None) => break,
                Err(NotContinued) => return Some(End::NotContinued),
            };
            if sent.is_err() {
                return Some(End::Broken);
            }
        }
        watch.wrote(self.writer);
        match last {
            true => rare(|| self.end(down, std::future::ready(Ok(None)))).await,
            false => None,
        }
    }

    /// Sends as much of what is pending as the client's window allows, or waits until the client goes away. Cancel safe.
    async fn progress(&mut self) -> Option<End> {
        let Some(stream) = &mut self.duplex else {
            return std::future::pending().await;
        };
        let pending = &mut self.pending;
        let full = pending.is_some();
        let sending = async {
            let sent = poll_fn(|context| {
                if let Poll::Ready(reason) = stream.poll_reset(context) {
                    return Poll::Ready(Err(reason.map_or_else(|error| error, Into::into)));
                }
                match pending {
                    Some((data, end)) => poll_send(stream, data, *end, context),
                    None => Poll::Pending,
                }
            });
            sent.await.or_err(ErrorType::WriteError, PASSING)
        };
        let whole = match full {
            true => self.writer.write(pin!(sending)).await,
            false => sending.await,
        };
        let last = |whole: bool| whole && self.pending.take().is_some_and(|(_, end)| end);
        End::after(whole.map(last))
    }

    /// The server has ended the answer.
    pub(super) async fn end(
        &mut self,
        down: &mut ClientSession,
        trailers: impl Future<Output = pingora_core::Result<Option<HeaderMap>>>,
    ) -> Option<End> {
        let ending = async {
            // An apiserver that ends a watch mostly needs no last event of the proxy.
            if let Some(final_bookmark) = self.final_bookmark
                && final_bookmark.is_needed()
            {
                final_bookmark.end(down).await?;
            }
            // The mark is for this proxy alone.
            let trailers = trailers.await?.filter(|it| !it.contains_key(GOES_ON));
            self.end_body(down, trailers)
        };
        End::after(ending.await.map(|()| true))
    }

    /// The proxy ends a long-running request, or (`is_broken`) the connection to the server broke. In the second case a watch may
    /// end as if its apiserver had ended it: a reset would make the client list again.
    pub(super) async fn end_early(
        &mut self,
        down: &mut ClientSession,
        is_broken: bool,
    ) -> Option<End> {
        let Some(final_bookmark) = self.final_bookmark else {
            return Some(End::Broken);
        };
        let written = match is_broken {
            true => final_bookmark.after_break(down).await,
            false => final_bookmark.write(down).await,
        };
        let ended = written.and_then(|()| self.end_body(down, None));
        Some(ended.map_or(End::Broken, |()| End::Early))
    }

    /// Ends a body whose last piece was not marked as the last.
    fn end_body(
        &mut self,
        down: &mut ClientSession,
        trailers: Option<HeaderMap>,
    ) -> pingora_core::Result<()> {
        let ended = match (&mut self.duplex, trailers) {
            (Some(stream), Some(trailers)) => stream.send_trailers(trailers),
            (Some(stream), None) => stream.send_data(Bytes::new(), true),
            (None, Some(trailers)) => return down.write_trailers(trailers),
            // The session ends the body.
            (None, None) => Ok(()),
        };
        ended.or_err(ErrorType::WriteError, PASSING)
    }
}

/// Writes a piece in parts: each part that the client reads counts as progress. Returns whether it was the last piece.
pub(super) async fn write(
    writer: &mut AnswerWriter<'_>,
    down: &mut ClientSession,
    mut data: Bytes,
    last: bool,
) -> pingora_core::Result<bool> {
    loop {
        let length = match down.is_http2() {
            true => data.len().min(PART),
            false => data.len(),
        };
        let part = data.split_to(length);
        let whole = data.is_empty();
        writer.reserve(length).await?;
        let writing = pin!(down.write_body(part, last && whole));
        writer.write(writing).await?;
        if whole {
            return Ok(last);
        }
    }
}

pub(super) fn log_break(server: SocketAddr, error: &Error) {
    log_rarely!(info, %server, error = %RedactedError(error), "the answer broke off");
}

/// Passes both bodies until the answer's end. `start`: what is looked at before it is passed.
pub(super) async fn stream(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    upload: &mut Upload,
    (code, mut start): (u16, AnswerStart),
    final_bookmark: Option<&FinalBookmark<'_>>,
) -> Result<Delivered, ExchangeFailure> {
    let server = exchange.route.address;
    let is_handed_over = exchange.resumed.is_some_and(|it| it.handed_over.is_some());
    // A short request has no room for it.
    let mut termination = final_bookmark.map(|it| rare(|| termination(exchange, it)));
    let mut writer = exchange.answer_writer(up.content_length()).of(&up);
    let mut answer = Answer::new(final_bookmark, &mut writer);
    answer.duplex = duplex(down, upload, final_bookmark);
    let end = loop {
        let full = answer.pending.is_some();
        // It needs nothing of its request any more. Who hands a watch over looks itself.
        if (start.is_none() || is_handed_over)
            && !full
            && !upload.is_expected()
            && let Some(watch) = final_bookmark.and_then(FinalBookmark::rest)
        {
            return Ok(WatchRest::of(exchange, watch, (Some(up), start), code));
        }
        let (idle, followed) = upload.interest(down);
        let followed = followed && !(idle && answer.duplex.is_some());
        let end = tokio::select! {
            piece = answer_piece(exchange, &mut up, &mut start), if !full => {
                if start.is_none() && piece.is_ok() {
                    upload.forget();
                }
                if let Err(PieceError::BrokeOff(error)) = &piece
                    && let Some(watch) = final_bookmark.and_then(FinalBookmark::rest)
                    && watch.can_be_left()
                {
                    log_break(server, error);
                    return Ok(WatchRest::of(exchange, watch, (None, None), code));
                }
                answer.piece(down, (&mut up, server), piece).await?
            }
            end = answer.progress() => end,
            () = upload.progress() => None,
            piece = down.read_body_or_idle(idle), if followed => {
                let taken = upload.take(piece, down.is_body_done(), &mut up).await;
                taken.is_err().then_some(End::Broken)
            }
            Some(()) = async { termination.as_mut()?.await; Some(()) }, if !full => {
                rare(|| answer.end_early(down, false)).await
            }
        };
        let Some(end) = end else { continue };
        break end;
    };
    // A quiet watch may end before it is clear that no 410 comes.
    start.iter().for_each(|_| exchange.avoided());
    if let End::Whole = end {
        exchange.release(up, upload).await;
    }
    Ok(end.outcome(code, upload.is_read()).into())
}

/// Reads the next piece of an answer. May be dropped and called again.
async fn answer_piece(
    exchange: &Exchange<'_>,
    up: &mut UpstreamSession,
    start: &mut AnswerStart,
) -> Result<Option<Bytes>, PieceError> {
    match start {
        Some(_) => {
            let piece = next_piece(up, start).await?;
            exchange.avoided();
            Ok(piece)
        }
        None => up.read_body().await.map_err(PieceError::BrokeOff),
    }
}

/// Resolves when the proxy is to end a long-running request.
pub(super) async fn termination(exchange: &Exchange<'_>, final_bookmark: &FinalBookmark<'_>) {
    let dependencies = exchange.dependencies();
    let client = &exchange.context.downstream.client;
    until_terminated(final_bookmark, client, &dependencies).await;
}

/// See [`Answer::duplex`]. A watch has no request body, and [`FinalBookmark`] ends it.
fn duplex(
    down: &mut ClientSession,
    upload: &Upload,
    final_bookmark: Option<&FinalBookmark<'_>>,
) -> Option<SendStream<Bytes>> {
    let watch = final_bookmark.and_then(FinalBookmark::watch);
    match down {
        ClientSession::H2(stream) if upload.is_expected() && watch.is_none() => {
            stream.writer.take()
        }
        _ => None,
    }
}
