//! One request of a client: an HTTP/2 stream, or a request on an HTTP/1.1 connection, which pingora reads.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, OkOrErr, OrErr};
use pingora_http::ResponseHeader;

use super::connection::Downstream;
use crate::net::{poll_send, receive};

const READING: &str = "while reading a request";
const WRITING: &str = "while writing an answer";

/// A request of a client. It is boxed, because it is handed through several futures. The futures of HTTP/1 are boxed, too:
/// pingora's are large, and all watches would have room for them.
pub enum ClientSession {
    /// Always HTTP/1.
    H1(Box<ServerSession>),
    H2(Box<ClientStream>),
}

/// A request over HTTP/2. Dropping it before the end of the answer resets the stream.
pub struct ClientStream {
    downstream: Arc<Downstream>,
    /// Until it is taken.
    header: Option<Box<Parts>>,
    body: RecvStream,
    has_body: bool,
    /// Until the answer's header was written.
    respond: Option<SendResponse<Bytes>>,
    /// From then on, unless it was taken.
    writer: Option<SendStream<Bytes>>,
    ended: bool,
}

impl ClientSession {
    pub fn is_http2(&self) -> bool {
        matches!(self, Self::H2(_))
    }

    pub fn as_http1(&self) -> Option<&ServerSession> {
        match self {
            Self::H1(session) => Some(session),
            Self::H2(_) => None,
        }
    }

    /// The client's connection.
    pub fn downstream(&self) -> Option<Arc<Downstream>> {
        match self {
            Self::H1(session) => {
                let tls = session.digest()?.ssl_digest.as_ref()?;
                tls.extension.get::<Arc<Downstream>>().cloned()
            }
            Self::H2(stream) => Some(stream.downstream.clone()),
        }
    }

    /// The request's header, for the upstream request. An HTTP/1 session still needs its own copy.
    pub fn take_header(&mut self) -> Option<Box<Parts>> {
        match self {
            Self::H1(session) => Some(Box::new(session.req_header().as_ref().clone())),
            Self::H2(stream) => stream.header.take(),
        }
    }

    pub fn has_body(&mut self) -> bool {
        match self {
            Self::H1(session) => !session.is_body_empty(),
            Self::H2(stream) => stream.has_body,
        }
    }

    /// Whether the request asks for another protocol.
    pub fn is_upgrade(&self) -> bool {
        self.as_http1().is_some_and(ServerSession::is_upgrade_req)
    }

    /// Whether the request's body was read to its end.
    pub fn is_body_done(&mut self) -> bool {
        match self {
            Self::H1(session) => session.is_body_done(),
            Self::H2(stream) => stream.is_body_done(),
        }
    }

    /// Sends `100 Continue`. pingora would take it for the final answer, and close the connection because it came before
    /// the body's end.
    pub async fn write_continue(&mut self) -> pingora_core::Result<()> {
        let session = match self {
            Self::H1(session) => session,
            Self::H2(stream) => return stream.write_continue(),
        };
        session.set_close_on_response_before_downstream_finish(false);
        let written = Box::pin(session.write_continue_response()).await;
        session.set_close_on_response_before_downstream_finish(true);
        written
    }

    /// Asks the client to send no more requests on this connection: GOAWAY over HTTP/2, `Connection: close` over
    /// HTTP/1.1. Running requests finish. To be called before the answer's header is written.
    pub fn end_connection(&mut self, downstream: &Downstream) {
        match self {
            Self::H1(_) => self.close_after(),
            Self::H2(_) => downstream.end_http2(),
        }
        downstream.drop_unverified_pools();
    }

    /// Reads a piece of the request's body; `None` at its end.
    pub async fn read_body(&mut self) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H1(session) => Box::pin(session.read_request_body()).await,
            Self::H2(stream) => stream.read_body().await,
        }
    }

    /// Reads a piece of the request's body, unless `idle` or the body was read. Then it waits until the client goes away.
    pub async fn read_body_or_idle(&mut self, idle: bool) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H1(session) => Box::pin(session.read_body_or_idle(idle)).await,
            Self::H2(stream) if idle || stream.is_body_done() => {
                poll_fn(|context| stream.poll_gone(context)).await;
                Error::e_explain(ErrorType::H2Error, READING)
            }
            Self::H2(stream) => stream.read_body().await,
        }
    }

    /// Writes the answer's header; `end`: there is no body.
    pub async fn write_header(
        &mut self,
        header: Box<ResponseHeader>,
        end: bool,
    ) -> pingora_core::Result<()> {
        match self {
            Self::H1(session) => Box::pin(session.write_response_header(header)).await,
            Self::H2(stream) => stream.write_header(header, end),
        }
    }

    /// Writes a piece of the answer's body; `end`: it is the last.
    pub async fn write_body(&mut self, data: Bytes, end: bool) -> pingora_core::Result<()> {
        match self {
            Self::H1(session) => Box::pin(session.write_response_body(data, end)).await,
            Self::H2(stream) => stream.write_body(data, end).await,
        }
    }

    /// Writes the trailers, which end the answer. HTTP/1 has none.
    pub fn write_trailers(&mut self, trailers: HeaderMap) -> pingora_core::Result<()> {
        match self {
            Self::H1(_) => Ok(()),
            Self::H2(stream) => stream.write_trailers(trailers),
        }
    }

    /// Resolves when the client of an HTTP/2 stream has reset it or closed its connection.
    pub async fn gone(&mut self) {
        poll_fn(|context| self.poll_gone(context)).await;
    }

    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::H1(_) => Poll::Pending,
            Self::H2(stream) => stream.poll_gone(context),
        }
    }

    /// Ends the answer's body.
    pub async fn finish_body(&mut self) -> pingora_core::Result<()> {
        match self {
            Self::H1(session) => Box::pin(session.finish_body()).await,
            Self::H2(stream) => stream.finish(),
        }
    }

    /// Closes an HTTP/1 connection after this answer.
    pub fn close_after(&mut self) {
        if let Self::H1(session) = self {
            session.set_keepalive(None);
        }
    }

    /// Breaks the request off, so that the client does not take the answer for a complete one.
    pub async fn abort(&mut self, reason: Reason) {
        match self {
            Self::H1(session) => Box::pin(session.shutdown()).await,
            Self::H2(stream) => stream.reset(reason),
        }
    }
}

impl ClientStream {
    pub fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        downstream: Arc<Downstream>,
    ) -> Self {
        let (header, body) = request.into_parts();
        let empty = header.headers.get(CONTENT_LENGTH);
        let empty = empty.is_some_and(|length| length.as_bytes() == b"0");
        Self {
            downstream,
            header: Some(Box::new(header)),
            has_body: !empty && !body.is_end_stream(),
            body,
            respond: Some(respond),
            writer: None,
            ended: false,
        }
    }

    /// The sending half, for the answer's body. Once it is taken, nothing can be written here.
    pub fn take_writer(&mut self) -> Option<SendStream<Bytes>> {
        self.writer.take()
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match (&mut self.writer, &mut self.respond) {
            (Some(writer), _) => writer.poll_reset(context).map(drop),
            (None, Some(respond)) => respond.poll_reset(context).map(drop),
            (None, None) => Poll::Pending,
        }
    }

    fn is_body_done(&self) -> bool {
        !self.has_body || self.body.is_end_stream()
    }

    async fn read_body(&mut self) -> pingora_core::Result<Option<Bytes>> {
        receive(&mut self.body, READING).await
    }

    fn write_header(
        &mut self,
        mut header: Box<ResponseHeader>,
        end: bool,
    ) -> pingora_core::Result<()> {
        // [`Self::write_continue`] writes the only interim answer that clients get.
        if header.status.is_informational() {
            return Ok(());
        }
        let respond = self.respond.take();
        let mut respond = respond.or_err(ErrorType::InternalError, WRITING)?;
        if header.version != Version::HTTP_2 {
            for name in [&TRANSFER_ENCODING, &UPGRADE] {
                header.remove_header(name);
            }
        }
        if !header.headers.contains_key(DATE) {
            header.insert_header(DATE, get_cached_date())?;
        }
        let response = Response::from_parts((*header).into(), ());
        let sent = respond.send_response(response, end);
        self.writer = Some(sent.or_err(ErrorType::WriteError, WRITING)?);
        self.ended = end;
        Ok(())
    }

    /// Writes `100 Continue`.
    fn write_continue(&mut self) -> pingora_core::Result<()> {
        let respond = self.respond.as_mut();
        let respond = respond.or_err(ErrorType::InternalError, WRITING)?;
        let mut interim = Response::new(());
        *interim.status_mut() = StatusCode::CONTINUE;
        let sent = respond.send_informational(interim);
        sent.or_err(ErrorType::WriteError, WRITING)
    }

    /// The sending half, while the body has not ended.
    fn open_writer(&mut self) -> pingora_core::Result<&mut SendStream<Bytes>> {
        let writer = self.writer.as_mut().filter(|_| !self.ended);
        writer.or_err(ErrorType::InternalError, WRITING)
    }

    async fn write_body(&mut self, mut data: Bytes, end: bool) -> pingora_core::Result<()> {
        let writer = self.open_writer()?;
        while !poll_fn(|context| poll_send(writer, &mut data, end, context))
            .await
            .or_err(ErrorType::WriteError, WRITING)?
        {}
        self.ended = end;
        Ok(())
    }

    fn write_trailers(&mut self, trailers: HeaderMap) -> pingora_core::Result<()> {
        let sent = self.open_writer()?.send_trailers(trailers);
        self.ended = true;
        sent.or_err(ErrorType::WriteError, WRITING)
    }

    fn finish(&mut self) -> pingora_core::Result<()> {
        let Ok(writer) = self.open_writer() else {
            return Ok(());
        };
        let sent = writer.send_data(Bytes::new(), true);
        self.ended = true;
        sent.or_err(ErrorType::WriteError, WRITING)
    }

    fn reset(&mut self, reason: Reason) {
        match (&mut self.writer, &mut self.respond) {
            _ if self.ended => {}
            (Some(writer), _) => writer.send_reset(reason),
            (None, Some(respond)) => respond.send_reset(reason),
            (None, None) => {}
        }
    }
}
