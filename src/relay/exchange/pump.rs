//! Both bodies at once: the request's on its way up ([`Upload`]), and the answer's on its way to the client ([`Answer`]).
//!
//! Over HTTP/2 a piece of the request waits for the server's window while the answer is read: a server may answer while it
//! reads, and stop reading until its answer is taken. A piece of the answer waits for the client's window while the
//! request is read: a client may send its whole body before it reads. Over HTTP/1.1 (kube-apiserver speaks it only if its
//! HTTP/2 is switched off) pingora cannot read while it writes: each piece is written before more is read.
//!
//! The beginning of a request is kept until an answer comes (`replay`), so that it can be sent to another server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use http::request::Parts;
use pingora_core::{Error, ErrorType, OrErr};

use super::expired::{AnswerStart, PieceError, next_piece};
use super::headers::{Exchange, SentHeader};
use super::replay::Replay;
use super::watch_rest::{Delivered, WatchRest};
use crate::log_throttle::LogRateLimit;
use crate::net::{Rare, RedactedError, poll_send, rare};
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::{FinalBookmark, ends};
use crate::request::caller::Caller;

/// The largest frame that most clients accept.
const PART: usize = 16 << 10;
const PASSING: &str = "while passing on the answer";

/// A request's header.
enum KeptHeader {
    Whole(Box<Parts>),
    /// A server was sent it.
    Sent(SentHeader),
}

/// A request on its way to servers.
pub struct Upload {
    /// The request's header, while a server may get the request.
    header: Option<KeptHeader>,
    expected: bool,
    /// The client waits for `100 Continue` before it sends its body.
    continue_owed: bool,
    /// What was read so far, for another server; `None` if it is too long, or no longer needed.
    kept: Option<Replay>,
    /// The client's body was read to its end.
    read: bool,
    /// The server accepts no more of the body. Usually it has answered early, and its answer counts.
    refused: bool,
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
    /// Comes after `pending`, if the body is sent again.
    replay: VecDeque<Bytes>,
    /// The sending half of an HTTP/2 stream.
    writer: Option<SendStream<Bytes>>,
}

/// What an upload waits for.
#[derive(Debug, Clone, Copy)]
pub struct UploadInterest {
    /// Wait for the server to accept pending data.
    pub pending: bool,
    /// Wait for the client: for more of the body, or until it goes away.
    pub followed: bool,
    /// No body is read now: the client can only go away.
    pub idle: bool,
}

impl Upload {
    /// `expected`: there is a body; `expects_continue`: the client waits for `100 Continue`.
    pub fn new(header: Box<Parts>, expected: bool, expects_continue: bool) -> Self {
        Self {
            header: Some(KeptHeader::Whole(header)),
            expected,
            continue_owed: expected && expects_continue,
            kept: Some(Replay::default()),
            read: !expected,
            refused: false,
            pending: None,
            replay: VecDeque::new(),
            writer: None,
        }
    }

    /// `None`: a server was sent it.
    pub fn header_mut(&mut self) -> Option<&mut Parts> {
        match &mut self.header {
            Some(KeptHeader::Whole(header)) => Some(header),
            _ => None,
        }
    }

    /// The header for a server, to which this one's own fields may be added.
    pub fn header_to_send(&mut self) -> pingora_core::Result<Box<Parts>> {
        let header = match self.header.take() {
            None => return Error::e_explain(ErrorType::InternalError, "the answer has begun"),
            Some(KeptHeader::Whole(header)) => {
                self.header = Some(KeptHeader::Sent(SentHeader::of(&header)));
                header
            }
            Some(KeptHeader::Sent(sent)) => {
                let header = sent.again();
                self.header = Some(KeptHeader::Sent(sent));
                header
            }
        };
        Ok(header)
    }

    /// Whether nothing more is to be read from the client.
    pub fn is_read(&self) -> bool {
        self.read
    }

    pub fn is_expected(&self) -> bool {
        self.expected
    }

    /// Whether to send `100 Continue` now. `true` once.
    pub fn is_continue_owed(&mut self) -> bool {
        std::mem::take(&mut self.continue_owed)
    }

    /// Starts the body after the header was written to `up`: first the pieces that an earlier server was sent.
    pub async fn begin(&mut self, up: &mut UpstreamSession) {
        if !self.expected {
            return;
        }
        self.writer = match up {
            UpstreamSession::H2(stream) => stream.take_writer(),
            UpstreamSession::H1(_) => None,
        };
        self.refused = false;
        self.pending = None;
        self.replay = self.kept.as_mut().map(Replay::pieces).unwrap_or_default();
        if self.replay.is_empty() {
            if self.read {
                self.send(Bytes::new(), true, up).await;
            }
            return;
        }
        while let Some((data, end)) = self.next_of_replay()
            && !self.refused
        {
            self.send(data, end, up).await;
            if self.pending.is_some() {
                return;
            }
        }
    }

    fn next_of_replay(&mut self) -> Option<(Bytes, bool)> {
        let data = self.replay.pop_front()?;
        let end = self.read && self.replay.is_empty();
        Some((data, end))
    }

    /// Whether the whole body can be sent to another server.
    pub fn can_begin_again(&self) -> bool {
        self.kept.is_some()
    }

    /// Drops what was kept: no other server will be tried.
    pub fn forget(&mut self) {
        self.header = None;
        self.kept = None;
    }

    /// Whether the body was sent completely: the server's connection can be used again after the answer.
    pub fn is_sent(&self) -> bool {
        self.read && !self.refused && self.pending.is_none()
    }

    /// What to wait for next. Over HTTP/1 a client that goes away is not noticed behind a body that is not read, and
    /// the rest of an unwanted body must not be read as the next request.
    pub fn interest(&self, down: &ClientSession) -> UploadInterest {
        let pending = self.pending.is_some();
        let idle = self.read || pending || self.refused;
        UploadInterest {
            pending,
            followed: down.is_http2() || !idle || (self.read && !pending),
            idle,
        }
    }

    /// Accepts a piece from the client; `end`: it is the last. An error: the client went away.
    pub async fn take(
        &mut self,
        piece: pingora_core::Result<Option<Bytes>>,
        end: bool,
        up: &mut UpstreamSession,
    ) -> pingora_core::Result<()> {
        let piece = piece?;
        let end = end || piece.is_none();
        self.read = end;
        let data = piece.unwrap_or_default();
        let fits = self.kept.as_mut().is_some_and(|kept| kept.keep(&data));
        if !fits {
            self.kept = None;
        }
        self.send(data, end, up).await;
        Ok(())
    }

    async fn send(&mut self, data: Bytes, end: bool, up: &mut UpstreamSession) {
        match self.writer {
            Some(_) => self.pending = Some((data, end)),
            None => self.refused = Box::pin(send(data, end, up)).await.is_err(),
        }
    }

    /// Sends as much of the pending data as the server's window allows. Cancel safe.
    pub async fn progress(&mut self) {
        let (Some(writer), Some((data, end))) = (&mut self.writer, &mut self.pending) else {
            return std::future::pending().await;
        };
        match poll_fn(|context| poll_send(writer, data, *end, context)).await {
            Ok(false) => {}
            Ok(true) => self.pending = self.next_of_replay(),
            Err(_) => {
                self.pending = None;
                self.replay.clear();
                self.refused = true;
            }
        }
    }

    /// The outcome of an answer that was delivered completely.
    pub fn answered(&self, code: u16) -> Outcome {
        Outcome::Answered {
            code,
            reusable: self.read,
        }
    }
}

/// Sends a piece over HTTP/1.1. An HTTP/2 stream has a writer as long as there is a body.
async fn send(data: Bytes, end: bool, up: &mut UpstreamSession) -> pingora_core::Result<()> {
    let UpstreamSession::H1(session) = up else {
        return Ok(());
    };
    // An empty piece would be the end of a chunked body.
    if !data.is_empty() {
        session.write_body(&data).await?;
    }
    if end {
        session.finish_body().await?;
    }
    Ok(())
}

/// How an answer has ended for the client.
pub(super) enum End {
    Whole,
    /// It was ended before its server has ended it.
    Early,
    /// The client went away, or has half an answer.
    Broken,
}

impl End {
    /// `whole`: what it is if the server has ended it.
    pub(super) fn outcome(self, whole: Outcome) -> Outcome {
        match (self, whole) {
            // A request's body may not have been read to its end.
            (End::Early, Outcome::Answered { code, .. }) => Outcome::Answered {
                code,
                reusable: false,
            },
            (End::Whole | End::Early, whole) => whole,
            (End::Broken, _) => Outcome::Broken,
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
    pub(super) final_bookmark: &'s FinalBookmark<'s>,
    pub(super) caller: &'s Caller,
    pub(super) server: SocketAddr,
    pub(super) writer: &'s mut AnswerWriter<'w>,
    /// The sending half of an HTTP/2 stream, if the request's body is sent at the same time: [`Self::progress`] notices
    /// when the client goes away, and the session does not.
    pub(super) duplex: Option<SendStream<Bytes>>,
    /// Read and not sent yet, and whether it is the end.
    pub(super) pending: Option<(Bytes, bool)>,
}

impl Answer<'_, '_> {
    /// Passes on what was read of the server.
    async fn piece(
        &mut self,
        down: &mut ClientSession,
        up: &mut UpstreamSession,
        piece: Result<Option<Bytes>, PieceError>,
    ) -> Result<Option<End>, ExchangeFailure> {
        match piece {
            Ok(data) => Ok(self.take(down, up, data).await),
            Err(PieceError::Failed(failure)) => Err(failure),
            Err(PieceError::BrokeOff(error)) => Ok(rare(|| self.break_off(down, &error)).await),
        }
    }

    /// Passes a piece on that came from the server; `None`: the server has ended the answer.
    async fn take(
        &mut self,
        down: &mut ClientSession,
        up: &mut UpstreamSession,
        piece: Option<Bytes>,
    ) -> Option<End> {
        match piece {
            Some(data) => self.pass(down, data, up.is_complete()).await,
            None => rare(|| self.end(down, up.read_trailers())).await,
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
        let sent = match self.duplex {
            Some(_) => self.writer.reserve(data.len()).await.map(|()| {
                self.pending = Some((data, last));
                false
            }),
            None => self.write(down, data, last).await,
        };
        End::after(sent)
    }

    /// Writes a piece in parts: each part that the client reads counts as progress. Returns whether it was the last piece.
    async fn write(
        &mut self,
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
            self.writer.reserve(length).await?;
            let passing = pin!(self.final_bookmark.pass(down, part, last && whole));
            self.writer.write(passing).await?;
            self.final_bookmark.count(self.writer);
            if whole {
                return Ok(last);
            }
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
            self.final_bookmark.before_end(down).await?;
            self.end_body(down, trailers.await?)
        };
        End::after(ending.await.map(|()| true))
    }

    /// The connection to the server broke. A watch may end as if its apiserver had ended it: a reset would make the client
    /// list again. A peer's proxy ends its own client's watch, or asks others.
    pub(super) async fn break_off(
        &mut self,
        down: &mut ClientSession,
        error: &Error,
    ) -> Option<End> {
        static LOG_RATE: LogRateLimit = LogRateLimit::new();
        if let Some(left_out) = LOG_RATE.admit() {
            let (server, error) = (self.server, RedactedError(error));
            tracing::info!(%server, %error, left_out, "answer broke off");
        }
        if *self.caller == Caller::Peer || self.final_bookmark.after_break(down).await.is_err() {
            return Some(End::Broken);
        }
        Some(
            self.end_body(down, None)
                .map_or(End::Broken, |()| End::Early),
        )
    }

    /// The proxy ends a long-running request.
    pub(super) async fn end_early(&mut self, down: &mut ClientSession) -> Option<End> {
        let ended = match self.final_bookmark.write(down).await {
            Ok(()) => self.end_body(down, None),
            Err(error) => Err(error),
        };
        Some(ended.map_or(End::Broken, |()| End::Early))
    }

    /// Ends a body whose last piece was not marked as the last.
    fn end_body(
        &mut self,
        down: &mut ClientSession,
        trailers: Option<HeaderMap>,
    ) -> pingora_core::Result<()> {
        match (&mut self.duplex, trailers) {
            (Some(stream), trailers) => match trailers {
                Some(trailers) => stream.send_trailers(trailers),
                None => stream.send_data(Bytes::new(), true),
            }
            .or_err(ErrorType::WriteError, PASSING),
            (None, Some(trailers)) => down.write_trailers(trailers),
            // The session ends the body.
            (None, None) => Ok(()),
        }
    }
}

/// Passes both bodies until the answer's end. `start`: what is looked at before it is passed.
pub(super) async fn stream(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    upload: &mut Upload,
    (code, mut start): (u16, AnswerStart<'_>),
    final_bookmark: &FinalBookmark<'_>,
) -> Result<Delivered, ExchangeFailure> {
    let revalidation = exchange.revalidation();
    let long = exchange.context.kind != RequestKind::Short;
    // Only a long-running request waits for it, and a short one has no place for it.
    let mut turn = long.then(|| rare(|| ends(final_bookmark, &revalidation)));
    let mut writer = stream_writer(exchange, &up);
    let mut answer = Answer {
        final_bookmark,
        caller: &exchange.context.caller,
        server: exchange.route.address,
        writer: &mut writer,
        duplex: duplex(down, upload, final_bookmark),
        pending: None,
    };
    let end = loop {
        let full = answer.pending.is_some();
        if start.is_none() && !full && !upload.is_expected() {
            up = match rest(exchange, final_bookmark, down, (up, code)) {
                Ok(rest) => return Ok(Delivered::Continues(Box::new(rest))),
                Err(up) => up,
            };
        }
        let UploadInterest {
            pending,
            followed,
            idle,
        } = upload.interest(down);
        let followed = followed && !(idle && answer.duplex.is_some());
        let end = tokio::select! {
            piece = next_piece(&mut up, &mut start), if !full => {
                if start.is_none() && piece.is_ok() {
                    upload.forget();
                }
                answer.piece(down, &mut up, piece).await?
            }
            end = answer.progress() => end,
            () = upload.progress(), if pending => None,
            piece = down.read_body_or_idle(idle), if followed => {
                let taken = upload.take(piece, down.is_body_done(), &mut up).await;
                taken.is_err().then_some(End::Broken)
            }
            () = ended(&mut turn), if long && !full => rare(|| answer.end_early(down)).await,
        };
        if let Some(end) = end {
            break end;
        }
    };
    if let End::Whole = end {
        exchange.release(up, upload.is_sent()).await;
    }
    Ok(end.outcome(upload.answered(code)).into())
}

/// Over HTTP/1.1 the server's connection has no window.
fn stream_writer<'e>(exchange: &'e Exchange<'_>, up: &UpstreamSession) -> AnswerWriter<'e> {
    let writer = exchange.answer_writer(up.content_length());
    match up {
        UpstreamSession::H1(_) => writer.of_http1(),
        UpstreamSession::H2(_) => writer,
    }
}

/// See [`Answer::duplex`]. A watch has no request body, and [`FinalBookmark`] ends it.
fn duplex(
    down: &mut ClientSession,
    upload: &Upload,
    final_bookmark: &FinalBookmark<'_>,
) -> Option<SendStream<Bytes>> {
    match down {
        ClientSession::H2(stream) if upload.is_expected() && !final_bookmark.is_watch() => {
            stream.take_writer()
        }
        _ => None,
    }
}

/// Resolves when a future that is there has resolved.
async fn ended(turn: &mut Option<Rare<'_, ()>>) {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

/// What is left of a watch that needs nothing of its request any more; else the session again.
fn rest(
    exchange: &Exchange<'_>,
    final_bookmark: &FinalBookmark<'_>,
    down: &ClientSession,
    (up, code): (UpstreamSession, u16),
) -> Result<WatchRest, UpstreamSession> {
    let watch = match exchange.context.meter.is_traced() || !down.is_http2() {
        true => None,
        false => final_bookmark.rest(),
    };
    match (up, watch) {
        (UpstreamSession::H2(stream), Some(watch)) => {
            Ok(WatchRest::new(exchange, stream, code, watch))
        }
        (up, _) => Err(up),
    }
}
