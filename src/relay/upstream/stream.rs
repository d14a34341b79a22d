//! One request to a server: an HTTP/2 stream, or an HTTP/1.1 connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme, Uri};
use http::{HeaderMap, Request, StatusCode, Version};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::client::HttpSession as Http1Session;
use pingora_core::{Error, ErrorType, OkOrErr, OrErr};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use crate::net::{lengths_agree, poll_receive, release, single_length};
use crate::request::headers::set;

const SENDING: &str = "while sending a request";
const READING: &str = "while reading an answer";

/// A request to a server. It is boxed, because it is handed through many futures. The futures of HTTP/1.1 are boxed, too,
/// as in [`ClientSession`](crate::relay::client::ClientSession).
pub enum UpstreamSession {
    H1(Box<Http1Session>),
    H2(Box<UpstreamStream>),
}

/// The first bytes of an answer's body, and whether they are the whole body.
pub struct BodyPrefix {
    pub body: Vec<u8>,
    pub complete: bool,
}

/// A request on a shared connection. Dropping it before the end of the answer resets the stream.
pub struct UpstreamStream {
    connection: Arc<Connection>,
    /// Until the header was sent.
    requests: Option<SendRequest<Bytes>>,
    response: Option<ResponseFuture>,
    /// For the request's body.
    writer: Option<SendStream<Bytes>>,
    body: Option<RecvStream>,
    /// Bytes of the piece that was read last. Its server may send as much more once the next one is asked for: until
    /// then the piece is on its way to the client, and counts as unread.
    passing: usize,
    /// `Content-Length` of the answer.
    length: Option<usize>,
}

impl UpstreamSession {
    /// For HTTP/1.1 on a connection of its own.
    pub fn http1(stream: Stream) -> Self {
        let mut session = Http1Session::new(stream);
        // A long-running request may be silent for any time.
        session.read_timeout = None;
        Self::H1(Box::new(session))
    }

    pub fn http2(stream: UpstreamStream) -> Self {
        Self::H2(Box::new(stream))
    }

    /// Writes a request's header. A request without a body ends with it. `name`: the server's name, for clients that send
    /// no host.
    pub async fn write_header(
        &mut self,
        mut header: Box<Parts>,
        body_expected: bool,
        name: &str,
    ) -> pingora_core::Result<()> {
        let host = header.headers.get(HOST);
        if header.uri.authority().is_none() && host.is_none_or(HeaderValue::is_empty) {
            let name = HeaderValue::try_from(name);
            let name = name.or_err(ErrorType::InvalidHTTPHeader, "the server's name")?;
            set(&mut header.headers, HOST, name)?;
        }
        if let Some(length) = single_length(&header.headers) {
            set(&mut header.headers, CONTENT_LENGTH, length)?;
        }
        match self {
            Self::H2(stream) => {
                if header.version != Version::HTTP_2 {
                    for name in [CONNECTION, TRANSFER_ENCODING] {
                        header.headers.remove(name);
                    }
                }
                stream.write_header(header, !body_expected)
            }
            Self::H1(session) => {
                let mut header = Box::new(RequestHeader::from(*header));
                if !header.headers.contains_key(HOST)
                    && let Some(authority) = header.uri.authority().cloned()
                {
                    header.insert_header(HOST, authority.as_str())?;
                }
                if body_expected && !header.headers.contains_key(CONTENT_LENGTH) {
                    header.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
                }
                header.set_version(Version::HTTP_11);
                Box::pin(session.write_request_header(header))
                    .await
                    .map(drop)
            }
        }
    }

    /// Reads the final answer's header. Cancel safe.
    pub async fn read_response(&mut self) -> pingora_core::Result<Box<ResponseHeader>> {
        let session = match self {
            Self::H2(stream) => return stream.read_response().await,
            Self::H1(session) => session,
        };
        loop {
            Box::pin(session.read_response()).await?;
            let interim = |status: StatusCode| {
                status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
            };
            if let Some(header) = session
                .resp_header()
                .filter(|header| !interim(header.status))
            {
                return Ok(Box::new(header.clone()));
            }
        }
    }

    /// Reads a piece of the answer's body; `None` at its end. Cancel safe.
    pub async fn read_body(&mut self) -> pingora_core::Result<Option<Bytes>> {
        match self {
            Self::H2(stream) => poll_fn(|context| stream.poll_body(context)).await,
            Self::H1(session) => Box::pin(session.read_body_bytes()).await,
        }
    }

    /// Reads the first bytes of a body: until its end, until more than `limit` bytes were read, or until the timeout.
    pub async fn read_prefix(
        &mut self,
        limit: usize,
        timeout: Duration,
    ) -> pingora_core::Result<BodyPrefix> {
        let mut body = Vec::new();
        let mut complete = self.is_complete();
        let deadline = Instant::now() + timeout;
        while !complete && body.len() <= limit {
            let Ok(piece) = timeout_at(deadline, self.read_body()).await else {
                break;
            };
            match piece? {
                Some(data) => body.extend_from_slice(&data),
                None => complete = true,
            }
            complete = complete || self.is_complete();
        }
        Ok(BodyPrefix { body, complete })
    }

    /// Whether the whole answer was read. A stream that was reset is not complete.
    pub fn is_complete(&mut self) -> bool {
        match self {
            Self::H2(stream) => stream.is_complete(),
            Self::H1(session) => session.is_body_done(),
        }
    }

    /// The trailers after the answer's body.
    pub async fn read_trailers(&mut self) -> pingora_core::Result<Option<HeaderMap>> {
        match self {
            Self::H2(stream) => stream.read_trailers().await,
            Self::H1(_) => Ok(None),
        }
    }

    /// `Content-Length` of the answer, once its header was read.
    pub fn content_length(&self) -> Option<usize> {
        match self {
            Self::H2(stream) => stream.content_length(),
            Self::H1(session) => length(&session.resp_header()?.headers),
        }
    }
}

impl UpstreamStream {
    /// `requests`: a handle that is ready for a request.
    pub(super) fn new(connection: Arc<Connection>, requests: SendRequest<Bytes>) -> Self {
        Self {
            connection,
            requests: Some(requests),
            response: None,
            writer: None,
            body: None,
            passing: 0,
            length: None,
        }
    }

    /// Sends the header; `end`: there is no body. The header names a host.
    pub fn write_header(&mut self, mut header: Box<Parts>, end: bool) -> pingora_core::Result<()> {
        name_authority(&mut header)?;
        header.version = Version::HTTP_2;
        let request = Request::from_parts(*header, ());
        let requests = self.requests.take();
        let mut requests = requests.or_err(ErrorType::InternalError, SENDING)?;
        let sent = requests.send_request(request, end);
        let (response, writer) = sent.or_err(ErrorType::H2Error, SENDING)?;
        self.response = Some(response);
        self.writer = (!end).then_some(writer);
        Ok(())
    }

    /// `Content-Length` of the answer, once its header was read.
    pub fn content_length(&self) -> Option<usize> {
        self.length
    }

    /// The sending half, for the request's body.
    pub fn take_writer(&mut self) -> Option<SendStream<Bytes>> {
        self.writer.take()
    }

    async fn read_response(&mut self) -> pingora_core::Result<Box<ResponseHeader>> {
        let response = self.response.as_mut();
        let response = response.or_err(ErrorType::InternalError, READING)?;
        let response = response.await.or_err(ErrorType::H2Error, READING)?;
        self.response = None;
        let (header, body) = response.into_parts();
        if !lengths_agree(&header.headers) {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, READING);
        }
        self.length = length(&header.headers);
        self.body = Some(body);
        Ok(Box::new(header.into()))
    }

    /// Reads a piece of the answer's body; `None` at its end.
    pub fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<pingora_core::Result<Option<Bytes>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(Ok(None));
        };
        release(body, std::mem::take(&mut self.passing));
        let piece = ready!(poll_receive(body, READING, context))?;
        self.passing = piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(Ok(piece))
    }

    /// As [`UpstreamSession::is_complete`].
    pub fn is_complete(&mut self) -> bool {
        let Some(body) = &mut self.body else {
            return false;
        };
        // A stream that was reset has ended, too: its error comes instead of data.
        body.is_end_stream() && {
            let mut context = Context::from_waker(Waker::noop());
            matches!(body.poll_data(&mut context), Poll::Ready(None))
        }
    }

    /// As [`UpstreamSession::read_trailers`].
    pub async fn read_trailers(&mut self) -> pingora_core::Result<Option<HeaderMap>> {
        let Some(body) = &mut self.body else {
            return Ok(None);
        };
        match body.trailers().await {
            // The server is going away, or needs no more of the request.
            Err(error)
                if (error.is_go_away() || error.is_reset())
                    && error.is_remote()
                    && error.reason() == Some(h2::Reason::NO_ERROR) =>
            {
                Ok(None)
            }
            trailers => trailers.or_err(ErrorType::ReadError, READING),
        }
    }
}

impl Drop for UpstreamStream {
    fn drop(&mut self) {
        self.connection.end();
    }
}

/// Names the request's authority in its URI, for `:authority`, and nowhere else: nginx refuses a request that says it
/// twice.
fn name_authority(header: &mut Parts) -> pingora_core::Result<()> {
    if header.uri.authority().is_none() {
        authority_from_host(header)?;
    }
    header.headers.remove(HOST);
    Ok(())
}

fn authority_from_host(header: &mut Parts) -> pingora_core::Result<()> {
    let host = header.headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = Authority::try_from(host.unwrap_or_default())
        .or_err(ErrorType::InvalidHTTPHeader, "no authority for HTTP/2")?;
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(authority);
    parts.path_and_query = header.uri.path_and_query().cloned();
    let uri = Uri::from_parts(parts).or_err(ErrorType::InvalidHTTPHeader, "no path for HTTP/2")?;
    header.uri = uri;
    Ok(())
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_becomes_the_authority() {
        let named = |host: &str| {
            let request = Request::get("/api?x=1").header(HOST, host).body(());
            let mut header = request.unwrap().into_parts().0;
            name_authority(&mut header).map(|()| {
                assert!(!header.headers.contains_key(HOST), "it is said once");
                header.uri.to_string()
            })
        };
        assert_eq!(named("[::1]:6443").unwrap(), "https://[::1]:6443/api?x=1");
        assert!(named("a b").is_err());
    }
}
