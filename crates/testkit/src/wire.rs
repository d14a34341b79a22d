//! A connection that sends requests unchanged: any header, body in pieces, trailers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use http::{HeaderMap, Request};
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::client::{Client, Response, Streaming};
use super::one_task;

/// For a response header, and then for the whole body: either may follow 100 MiB on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A body in pieces, with or without a declared length.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    frames: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    length: Option<u64>,
    unfinished: bool,
}

impl Pieces {
    /// Its length is declared in the header.
    pub fn measured(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self {
            length: Some(body.len() as u64),
            frames: (!body.is_empty()).then_some(body).into_iter().collect(),
            trailers: None,
            unfinished: false,
        }
    }

    /// Chunks over HTTP/1.1.
    pub fn of(frames: impl IntoIterator<Item = Bytes>) -> Self {
        Self {
            frames: frames.into_iter().collect(),
            trailers: None,
            length: None,
            unfinished: false,
        }
    }

    /// After the pieces neither more nor an end.
    pub fn unfinished(mut self) -> Self {
        self.unfinished = true;
        self
    }

    pub fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = self.frames.pop_front().map(Frame::data);
        match data.or_else(|| self.trailers.take().map(Frame::trailers)) {
            None if self.unfinished => Poll::Pending,
            frame => Poll::Ready(frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.trailers.is_none() && !self.unfinished
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// One connection, opened by a [`Client`] with its certificate. Its headers are not added.
pub enum Wire {
    Http1(http1::SendRequest<Pieces>),
    Http2(http2::SendRequest<Pieces>),
}

impl Wire {
    pub async fn http1(client: &Client) -> Self {
        let tls = client.connect_raw(&["http/1.1"]).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        Self::Http1(sender)
    }

    pub async fn http2(client: &Client) -> Self {
        let tls = client.connect_raw(&["h2"]).await.unwrap();
        let io = TokioIo::new(tls);
        Self::Http2(one_task::http2(io).await.unwrap())
    }

    /// One of each version, opened when its turn comes: an idle one would be closed while the other is slow.
    pub fn each(client: &Client) -> [BoxFuture<'_, Self>; 2] {
        [Self::http1(client).boxed(), Self::http2(client).boxed()]
    }

    /// Whether it can take another request.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed(),
            Self::Http2(sender) => !sender.is_closed(),
        }
    }

    /// Sends `request`, whose URI has no authority, to `host`; returns with the response's header.
    pub async fn open(
        &mut self,
        host: &str,
        mut request: Request<Pieces>,
    ) -> anyhow::Result<Streaming> {
        let answer = async {
            match self {
                Self::Http1(sender) => {
                    request.headers_mut().insert("host", host.parse()?);
                    sender.ready().await?;
                    anyhow::Ok(sender.send_request(request).await?)
                }
                Self::Http2(sender) => {
                    let mut parts = request.uri().clone().into_parts();
                    parts.scheme = Some(http::uri::Scheme::HTTPS);
                    parts.authority = Some(host.parse()?);
                    *request.uri_mut() = http::Uri::from_parts(parts)?;
                    *request.version_mut() = http::Version::HTTP_2;
                    sender.ready().await?;
                    Ok(sender.send_request(request).await?)
                }
            }
        };
        let response = timeout(LIMIT, answer)
            .await
            .context("no response header")??;
        Ok(Streaming::new(response))
    }

    /// The whole answer.
    pub async fn send(&mut self, host: &str, request: Request<Pieces>) -> anyhow::Result<Response> {
        let streaming = self.open(host, request).await?;
        timeout(LIMIT, streaming.collect())
            .await
            .context("no end of the body")?
    }
}

/// A request without headers.
pub fn request(method: &str, target: &str, body: Pieces) -> Request<Pieces> {
    let request = Request::builder().method(method).uri(target);
    request.body(body).expect("a method and a target")
}
