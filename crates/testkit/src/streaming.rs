//! Responses of the test client: complete, or still arriving.

use std::time::Duration;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

#[derive(Clone, Debug)]
pub struct Response {
    pub status: StatusCode,
    pub version: Version,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl Response {
    pub fn code(&self) -> u16 {
        self.status.as_u16()
    }

    /// A header's first value; "" if there is none, or if it is not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{}: not JSON ({error}): {}", self.status, self.text()))
    }
}

/// A response whose header is there and whose body may go on for ever.
pub struct Streaming {
    pub status: StatusCode,
    pub version: Version,
    pub headers: HeaderMap,
    response: http::Response<Incoming>,
    /// Received, and not asked for yet.
    buffer: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Streaming {
    pub(super) fn new(response: http::Response<Incoming>) -> Self {
        Self {
            status: response.status(),
            version: response.version(),
            headers: response.headers().clone(),
            response,
            buffer: BytesMut::new(),
            trailers: None,
        }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// The next bytes; `Ok(None)` at the clean end of the body; `Err` when it breaks, or when nothing comes in time.
    pub async fn next_chunk(&mut self, limit: Duration) -> anyhow::Result<Option<Bytes>> {
        if !self.buffer.is_empty() {
            return Ok(Some(self.buffer.split().freeze()));
        }
        timeout(limit, self.receive())
            .await
            .context("no more bytes in time")?
    }

    /// Whether it is open and nothing comes for so long.
    pub async fn is_quiet(&mut self, time: Duration) -> bool {
        self.buffer.is_empty() && timeout(time, self.receive()).await.is_err()
    }

    /// The next line, without its end.
    pub async fn next_line(&mut self, limit: Duration) -> anyhow::Result<Option<String>> {
        let line = async {
            loop {
                if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                    let line = self.buffer.split_to(end + 1);
                    return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
                }
                match self.receive().await? {
                    Some(chunk) => self.buffer.extend_from_slice(&chunk),
                    None => return Ok(None),
                }
            }
        };
        timeout(limit, line)
            .await
            .context("no more lines in time")?
    }

    /// The next event of a JSON watch.
    pub async fn next_event(&mut self, limit: Duration) -> anyhow::Result<Option<Value>> {
        match self.next_line(limit).await? {
            Some(line) => Ok(Some(serde_json::from_str(&line).context(line)?)),
            None => Ok(None),
        }
    }

    /// The rest of the body.
    pub async fn collect(mut self) -> anyhow::Result<Response> {
        let mut body = self.buffer.split();
        while let Some(chunk) = self.receive().await? {
            body.extend_from_slice(&chunk);
        }
        Ok(Response {
            status: self.status,
            version: self.version,
            headers: self.headers,
            body: body.freeze(),
            trailers: self.trailers,
        })
    }

    /// The bytes behind a `101 Switching Protocols`.
    pub async fn upgrade(self) -> anyhow::Result<TokioIo<Upgraded>> {
        Ok(TokioIo::new(hyper::upgrade::on(self.response).await?))
    }

    async fn receive(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(frame) = self.response.body_mut().frame().await {
            match frame.context("the body broke off")?.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(other) => self.trailers = other.into_trailers().ok().or(self.trailers.take()),
            }
        }
        Ok(None)
    }
}
