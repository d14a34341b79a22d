//! Response bodies: complete, or fed through a channel.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::{Hash as _, Hasher as _};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;

pub type BoxError = Box<dyn Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;
/// `Err`: the connection is dropped (HTTP/1.1) or the stream reset (HTTP/2).
pub type Answer = Result<Response<Body>, BoxError>;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub fn answer(
    status: StatusCode,
    content_type: &'static str,
    bytes: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

pub fn json(status: StatusCode, document: &Value) -> Response<Body> {
    answer(status, "application/json", format!("{document}\n"))
}

pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let mut response = answer(status, "text/plain; charset=utf-8", text.into());
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// A cacheable document: with an ETag, or 304 without a body if the client has it.
pub fn cacheable(
    request: &HeaderMap,
    content_type: &str,
    vary: &[&'static str],
    document: Vec<u8>,
) -> Response<Body> {
    let etag = etag(&document);
    let known = request
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| *known == etag);
    let mut response = Response::new(full(if known { Vec::new() } else { document }));
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_str(content_type).expect("a media type");
    if !known {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::ETAG, etag);
    for &name in vary {
        headers.append(header::VARY, HeaderValue::from_static(name));
    }
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response
}

/// Upper-case hexadecimal in quotes, as long as a SHA-512.
fn etag(document: &[u8]) -> HeaderValue {
    let digits = (0..8_u8).map(|part| {
        let mut hasher = DefaultHasher::new();
        (part, document).hash(&mut hasher);
        format!("{:016X}", hasher.finish())
    });
    let digits: String = digits.collect();
    HeaderValue::from_str(&format!("\"{digits}\"")).expect("hexadecimal digits")
}

/// A body that ends when its sender is dropped, and breaks off when it sends an error.
pub fn channel() -> (mpsc::Sender<Result<Bytes, BoxError>>, Body) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Channel(receiver).boxed_unsync())
}

/// The same for a body with trailers.
pub fn frames() -> (mpsc::Sender<Result<Frame<Bytes>, BoxError>>, Body) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, Channel(receiver).boxed_unsync())
}

struct Channel<Piece>(mpsc::Receiver<Result<Piece, BoxError>>);

/// A part of a body.
trait IntoFrame: Send + 'static {
    fn into_frame(self) -> Frame<Bytes>;
}

impl IntoFrame for Bytes {
    fn into_frame(self) -> Frame<Bytes> {
        Frame::data(self)
    }
}

impl IntoFrame for Frame<Bytes> {
    fn into_frame(self) -> Frame<Bytes> {
        self
    }
}

impl<Piece: IntoFrame> hyper::body::Body for Channel<Piece> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0
            .poll_recv(context)
            .map(|item| item.map(|piece| piece.map(Piece::into_frame)))
    }
}

/// A body that keeps something until it is dropped.
pub fn held(body: Body, what: impl Send + Unpin + 'static) -> Body {
    Held { body, _what: what }.boxed_unsync()
}

struct Held<T> {
    body: Body,
    _what: T,
}

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
